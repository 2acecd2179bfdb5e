"""The trainings that docs/results.md compares keep the guarantee, and learn."""

from __future__ import annotations

import pytest

from accounting import epsilon_of
from bench.papers.dpsgd import DIGITS, DIGITS_TUNED, MNIST, Sampled
from bench.papers.trainings import samples
from streams.demo.training import WAYS, load_digits


@pytest.mark.parametrize("settings", [DIGITS, DIGITS_TUNED, MNIST])
def test_the_worst_case_spends_the_guarantee_and_hardly_less(settings: Sampled) -> None:
    def epsilon(multiplier: float) -> float:
        return epsilon_of(multiplier, settings.sampling_rate, settings.steps, settings.delta)

    assert epsilon(settings.worst_case_multiplier) <= settings.epsilon
    assert epsilon(0.998 * settings.worst_case_multiplier) > settings.epsilon


@pytest.mark.slow
def test_every_way_learns_from_samples() -> None:
    (accuracies,) = samples(load_digits(), DIGITS, 1)  # with a fixed seed
    assert len(accuracies) == len(WAYS)
    assert min(accuracies) > 0.8
