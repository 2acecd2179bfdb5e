"""Answers to streams of linear queries, through the same charges as a training."""

from streams.queries.answerer import ChargedUsers, QueryAnswerer
from streams.queries.release import Release
from streams.sdk.errors import ReleasedTwice

__all__ = ["ChargedUsers", "QueryAnswerer", "Release", "ReleasedTwice"]
