"""The exception of the local launcher, and the command that installs an extra."""

from __future__ import annotations

from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]


class LocalStackError(Exception):
    """A local program could not be found, downloaded, started or kept running.

    The message says what happened and what to do.
    """


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra; no package index has this package."""
    if (_CHECKOUT / "pyproject.toml").is_file():
        return f"`pip install -e '{_CHECKOUT}[{extra}]'`"
    return f"`pip install 'FILE.whl[{extra}]'`, with the wheel of dp-turnstile,"
