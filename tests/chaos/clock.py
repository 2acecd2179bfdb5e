"""A clock that jumps: the time of day of the processes under test.

The time of day is the only clock that jumps on a real machine; the monotonic clock does not.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

FILE = "CHAOS_CLOCK"
"""The environment variable that names the file with the clock's error in seconds."""

_EVERY = 0.2


def follow() -> None:
    """Shift this process's time of day by the number of seconds in the file, if there is one."""
    if path := os.environ.get(FILE):
        time.time = _Clock(Path(path)).time


class _Clock:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._real = time.time
        self._wrong_by = 0.0
        self._read_at = 0.0

    def time(self) -> float:
        now = time.monotonic()
        if now - self._read_at > _EVERY:
            self._read_at = now
            self._wrong_by = float(self._file.read_text() or 0)
        return self._real() + self._wrong_by
