"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

HANGS_AFTER = 120.0
"""Seconds after which nothing comes any more, however busy the machine is."""


def eventually(condition: Callable[[], Any], within: float = HANGS_AFTER) -> Any:
    """Wait for something that other processes do; what the condition returned at last."""
    deadline = time.monotonic() + within
    asked, worked = time.monotonic(), time.thread_time()
    while not (found := condition()):
        now = time.monotonic()
        assert now < deadline, f"did not happen within {within} seconds"
        # The others need the processor: who waits has a quarter of it.
        time.sleep(max(0.02, now - asked, 3.0 * (time.thread_time() - worked)))
        asked, worked = time.monotonic(), time.thread_time()
    return found
