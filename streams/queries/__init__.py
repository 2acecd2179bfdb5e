"""Answers to streams of linear queries, charged like the steps of a training."""

from streams.queries.answerer import ChargedUsers, QueryAnswerer, Release
from streams.sdk.errors import ReleasedTwice

__all__ = ["ChargedUsers", "QueryAnswerer", "Release", "ReleasedTwice"]
