"""Times in output for people and programs."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(seconds: float) -> str | None:
    """Return a producer's time in ISO 8601; None if it is unreadable."""
    try:
        time = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # a producer can write any number
        return None
    return time.isoformat(timespec="milliseconds") if seconds >= 0 else None
