"""The demos as tests run them: what they do is the same in fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from streams.demo import entry


@contextmanager
def few_steps() -> Iterator[None]:
    """Trainings of 36 steps instead of 90, sampled ones of 12 instead of 200.

    tests/unit/demo holds what comes of all of them.
    """
    sampled = [replace(settings, steps=12, filter_steps=3) for settings in entry.SAMPLED_DIGITS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry, "DIGITS", replace(entry.DIGITS, worst_case_steps=12, steps=36))
        patch.setattr(entry, "SAMPLED_DIGITS", sampled)
        yield
