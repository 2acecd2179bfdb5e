"""The demos as tests run them: what they do with samples is the same in fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from streams.demo import entry


@contextmanager
def few_samples() -> Iterator[None]:
    """Sampled trainings of 12 steps instead of 200; tests/unit/demo holds what 200 are set to."""
    short = [replace(settings, steps=12, filter_steps=3) for settings in entry.SAMPLED_DIGITS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry, "SAMPLED_DIGITS", short)
        yield
