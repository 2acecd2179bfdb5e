"""Answers to streams of linear queries, through the same charges as a training."""

from streams.queries.answerer import ChargedUsers, QueryAnswerer, ReleasedTwice
from streams.queries.release import Release

__all__ = ["ChargedUsers", "QueryAnswerer", "Release", "ReleasedTwice"]
