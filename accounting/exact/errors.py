"""The exception for invalid arguments, with the data that the caller needs to correct them."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 200  # characters of a value that a message shows


class InvalidInput(ValueError):
    """Raised for an argument outside what the theory or the number format allows.

    The message contains the argument's name, its value and what is allowed. Functions that raise it
    have changed nothing.
    """

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        self.argument = argument
        self.value = value
        self.allowed = allowed
        super().__init__(f"{argument} is {_shown(value)}, but must be {allowed}")

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[str, object, str]]:
        """Pickle the three parts, so that the error can cross a process boundary."""
        return (type(self), (self.argument, self.value, self.allowed))


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # for example, an integer of thousands of digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
