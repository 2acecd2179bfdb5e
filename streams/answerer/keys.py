"""Keys that are not known beforehand: the universe of a query's keys, numbered from 0.

Text keys are the strings of 1 to ``key_bytes`` bytes in UTF-8. The universe has all strings of
bytes of these lengths, shorter ones first; those that are not UTF-8 are never published. Integer
keys are the integers from 0 to ``keys_below`` - 1.
"""

from __future__ import annotations

from typing import Any

from streams.answerer.query_keys import Label, Query


class KeyUniverse:
    """The possible keys of a query.

    Args:
        query: has ``key_bytes`` or ``keys_below``.

    Attributes:
        size: the number of possible keys.
    """

    def __init__(self, query: Query) -> None:
        self._bytes = query.key_bytes
        self.size = _before(query.key_bytes + 1) if query.key_bytes else query.keys_below

    def number(self, value: Any) -> int | None:
        """Return the number of a key; None if the value of a column is no key."""
        if self._bytes:
            return self._number_of_text(value)
        return value if type(value) is int and 0 <= value < self.size else None

    def label(self, number: int) -> Label | None:
        """Return the key with a number; None if it is not text."""
        if not self._bytes:
            return number
        length = next(n for n in range(1, self._bytes + 1) if number < _before(n + 1))
        try:
            return (number - _before(length)).to_bytes(length, "big").decode()
        except UnicodeDecodeError:
            return None

    def _number_of_text(self, value: Any) -> int | None:
        if not isinstance(value, str) or not 1 <= len(value) <= self._bytes:
            return None
        try:
            key = value.encode()
        except UnicodeEncodeError:
            return None
        if len(key) > self._bytes:
            return None
        return _before(len(key)) + int.from_bytes(key, "big")


def _before(length: int) -> int:
    """Return the number of strings of at least one byte and fewer bytes than this."""
    return ((1 << 8 * length) - 256) // 255
