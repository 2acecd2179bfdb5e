"""The scenarios of the demo at small sizes, for tests; tests/unit/demo checks their figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from streams.demo import entry
from streams.demo.purchases import simulated_purchases
from streams.demo.training import Images, load_digits


@contextmanager
def small_demo() -> Iterator[None]:
    """Answer 30 days of a small shop, and train 36 steps on a third of the images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry, "load_digits", few_digits)
        patch.setattr(entry, "DIGITS", replace(entry.DIGITS, full_steps=12, steps=36))
        patch.setattr(entry, "simulated_purchases", partial(simulated_purchases, 3000, 30))
        yield


def few_digits() -> Images:
    """Return the digits with a third of the training images."""
    digits = load_digits()
    return replace(digits, train=digits.train[::3], train_labels=digits.train_labels[::3])
