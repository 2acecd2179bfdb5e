"""The exception for invalid arguments, with the data that the caller needs to correct them."""

from __future__ import annotations

from typing import Final

import numpy as np

_LONGEST: Final = 60  # characters of a value


class InvalidInput(ValueError):
    """Raised for an argument outside what the theory or the number format allows.

    The message contains the argument's name, its value and what is allowed. Functions that raise it
    have changed nothing.
    """

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        self.argument = argument
        self.value = value
        self.allowed = allowed
        super().__init__(f"{argument} is {quoted(value)}, but must be {allowed}")

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[str, object, str]]:
        """Pickle the three parts, so that the error can cross a process boundary."""
        return (type(self), (self.argument, self.value, self.allowed))


def quoted(value: object) -> str:
    """Return a value as messages quote it: its repr, of which a long one is cut."""
    try:
        return shortened(repr(value.item() if isinstance(value, np.generic) else value))
    except Exception:  # for example, an integer of thousands of digits
        return f"a value of type {type(value).__name__}"


def shortened(text: str) -> str:
    """Return a text, or the beginning of a long one."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
