"""What a caller can do wrong, said so that the caller can put it right."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 200  # characters of a value that a message shows


class InvalidInput(ValueError):
    """An argument lies outside what the theory or the number format allows.

    The message names the argument, shows the offending value and says what is allowed. Nothing
    has been changed when it is raised.
    """

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        self.argument = argument
        self.value = value
        self.allowed = allowed
        super().__init__(f"{argument} is {_shown(value)}, but must be {allowed}")

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[str, object, str]]:
        """Pickle by the three parts, so that the error survives a process boundary."""
        return (type(self), (self.argument, self.value, self.allowed))


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # of an integer of thousands of digits, for one
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
