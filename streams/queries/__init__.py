"""Answers to streams of linear queries, charged like the steps of a training."""

from streams.queries.continual_monitoring import ChargedUsers, KeyRelease, QueryAnswerer, Release
from streams.sdk.errors import ReleasedTwice

__all__ = ["ChargedUsers", "KeyRelease", "QueryAnswerer", "Release", "ReleasedTwice"]
