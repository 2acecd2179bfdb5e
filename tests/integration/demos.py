"""The demos as tests run them: what they do is the same with fewer users, in fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from streams.demo import entry
from streams.demo.images import Images, load_digits
from streams.demo.purchases import simulated_purchases


@contextmanager
def small_demos() -> Iterator[None]:
    """Trainings of 36 steps instead of 90, sampled ones of 12 instead of 200, on every third image;
    30 days of queries instead of 546, of customers who count on two of them.

    tests/unit/demo holds what comes of all of them.
    """
    sampled = [replace(settings, steps=12, filter_steps=3) for settings in entry.SAMPLED_DIGITS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry, "load_digits", few_digits)
        patch.setattr(entry, "DIGITS", replace(entry.DIGITS, worst_case_steps=12, steps=36))
        patch.setattr(entry, "SAMPLED_DIGITS", sampled)
        patch.setattr(entry, "simulated_purchases", partial(simulated_purchases, 3000, 30))
        patch.setattr(entry, "CDNOW", replace(entry.CDNOW, norm_budget=2))
        yield


def few_digits() -> Images:
    """Of the images of digits a third of those that are trained on; all others are of no user."""
    digits = load_digits()
    return replace(digits, train=digits.train[::3], train_labels=digits.train_labels[::3])
