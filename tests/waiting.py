"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SETTLES_WITHIN = 60.0


def eventually(condition: Callable[[], Any], within: float = SETTLES_WITHIN) -> Any:
    """Wait for something that other processes do; what the condition returned at last."""
    deadline = time.monotonic() + within
    asked = time.monotonic()
    while not (found := condition()):
        now = time.monotonic()
        assert now < deadline, f"did not happen within {within} seconds"
        time.sleep(max(0.02, now - asked))  # the others need the processor, too
        asked = time.monotonic()
    return found
