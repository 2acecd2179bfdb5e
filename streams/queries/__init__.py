"""Answers to streams of linear queries, through the same charges as a training."""

from streams.queries.answerer import Answer, AnsweredTwice, ChargedUsers, QueryAnswerer

__all__ = ["Answer", "AnsweredTwice", "ChargedUsers", "QueryAnswerer"]
