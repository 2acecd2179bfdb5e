"""The exception of the local launcher, and the command that installs an extra."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from streams.failures import Failure

Part = TypeVar("Part")

_CHECKOUT = Path(__file__).parents[2]


class LocalFailure(StrEnum):
    """The reasons for a ``LocalStackError``."""

    NOT_INSTALLED = "not-installed"  # a program or package is missing, or too old
    DOWNLOAD = "download"  # a file cannot be downloaded
    CHECKSUM = "checksum"  # a downloaded file has other bytes than expected
    NOT_STORED = "not-stored"  # the cache of downloads cannot be written
    NOT_STARTED = "not-started"  # the command cannot be executed
    EXITED = "exited"  # a program ended by itself
    NOT_READY = "not-ready"  # a program runs and does not serve
    PORT_IN_USE = "port-in-use"  # by another process
    DIRECTORY_IN_USE = "directory-in-use"  # by another stack
    UNUSABLE_DIRECTORY = "unusable-directory"  # its name, rights or data do not permit a start
    INVALID_CALL = "invalid-call"  # an argument, or a call at the wrong time


class LocalStackError(Failure):
    """A local program could not be found, downloaded, started or kept running.

    The message says what happened and what to do.
    """

    def __init__(self, reason: LocalFailure, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def started(part: Part | None, name: str) -> Part:
    """Return a part of the stack.

    Raises:
        LocalStackError: it was not started.
    """
    if part is None:
        raise LocalStackError(LocalFailure.INVALID_CALL, f"{name} is not running: start it first.")
    return part


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra; no package index has this package."""
    if (_CHECKOUT / "pyproject.toml").is_file():
        return f"`pip install -e '{_CHECKOUT}[{extra}]'`"
    return f"`pip install 'FILE.whl[{extra}]'`, with the wheel of dp-turnstile,"
