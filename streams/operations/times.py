"""Times as people and programs read them."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(seconds: float) -> str | None:
    """A time that a producer wrote; None if it gave none that can be read."""
    try:
        time = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # a producer writes what it likes
        return None
    return time.isoformat(timespec="milliseconds") if seconds >= 0 else None
