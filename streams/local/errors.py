"""The one exception of the local launcher, and how to install what it may miss."""

from __future__ import annotations

from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]


class LocalStackError(Exception):
    """Something local could not be found, fetched, started or kept running.

    The message says what happened and what to do about it.
    """


def how_to_install(extra: str) -> str:
    """The command that adds an extra to what is installed here, which no package index has."""
    if (_CHECKOUT / "pyproject.toml").is_file():
        return f"`pip install -e '{_CHECKOUT}[{extra}]'`"
    return f"`pip install 'FILE.whl[{extra}]'`, with the wheel of dp-turnstile,"
