"""The exit codes of the command ``turnstile``, and the base of the errors that have one."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class Exit(IntEnum):
    """Exit codes that scripts can rely on."""

    OK = 0
    """Done."""
    REFUSED = 1
    """The request was rejected, or a check found something."""
    USAGE = 2
    """Arguments or input are unusable."""
    UNAVAILABLE = 69
    """Kafka, Redis or the workers do not answer, or ``status`` found a problem."""
    SOFTWARE = 70
    """A bug, or decisions that contradict each other."""
    INTERRUPTED = 130
    """Ctrl-C."""


class Failure(Exception):
    """An error that a command prints as its message, without a traceback.

    Attributes:
        exit_code: the exit code of the command.
    """

    exit_code: ClassVar[Exit] = Exit.UNAVAILABLE
