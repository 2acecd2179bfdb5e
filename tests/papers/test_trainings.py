"""The ways to train that docs/results.md compares all learn."""

from __future__ import annotations

import pytest

from streams.demo.images import load_digits
from streams.demo.sampled import SAMPLED_DIGITS
from streams.demo.training import DIGITS
from tests.papers.trainings import WAYS, full_batches, samples


@pytest.mark.slow
def test_every_way_learns() -> None:
    digits = load_digits()
    for accuracies in (full_batches(digits, DIGITS, 1), samples(digits, SAMPLED_DIGITS[0], 1)):
        assert len(accuracies) == len(WAYS)
        assert min(accuracies) > 0.8
