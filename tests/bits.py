"""Flipped bits."""

from __future__ import annotations

from random import Random


def flipped(content: bytes, rng: Random) -> bytes:
    """Return bytes with one other bit; none of them is empty."""
    changed = bytearray(content)
    changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flipped_text(text: str, rng: Random) -> str:
    """Return text with one other bit, as ``RedisStore`` reads it."""
    return flipped(text.encode(), rng).decode(errors="backslashreplace")
