"""The one exception of the local launcher."""

from __future__ import annotations


class LocalStackError(Exception):
    """Something local could not be found, fetched, started or kept running.

    The message says what happened and what to do about it.
    """
