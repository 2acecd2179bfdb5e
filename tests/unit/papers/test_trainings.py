"""The trainings that docs/results.md compares keep the guarantee, and learn."""

from __future__ import annotations

import math

import pytest

from accounting import NormGrid, PoissonGaussian, ReportAccountant, gdp_budget
from bench.papers import dpsgd, trainings
from bench.papers.dpsgd import Sampled
from bench.papers.images import CLIP_NORM, load_digits
from bench.papers.trainings import WAYS, FullBatches, Way, full_batches, samples


@pytest.mark.parametrize("settings", [dpsgd.DIGITS, dpsgd.DIGITS_TUNED, dpsgd.MNIST])
def test_the_worst_case_spends_the_guarantee_and_hardly_less(settings: Sampled) -> None:
    def epsilon(multiplier: float) -> float:
        step = PoissonGaussian(multiplier, settings.sampling_rate)
        report = ReportAccountant(step, NormGrid(1.0, 1))
        return float(report.epsilon([settings.steps], settings.delta))

    assert epsilon(settings.worst_case_multiplier) <= settings.epsilon
    assert epsilon(0.998 * settings.worst_case_multiplier) > settings.epsilon


@pytest.mark.parametrize("settings", [trainings.DIGITS, trainings.MNIST])
@pytest.mark.parametrize("way", WAYS)
def test_full_batches_have_one_guarantee_in_every_way(way: Way, settings: FullBatches) -> None:
    charged = settings.full_steps if way == "individual" else settings.steps
    mu = math.sqrt(charged) * settings.clip_norm(way) / settings.noise_stddev(way)
    assert mu == pytest.approx(gdp_budget(settings.epsilon, settings.delta))


def test_the_smaller_clip_norm_has_the_noise_of_individual_accounting() -> None:
    settings = trainings.DIGITS
    assert settings.noise_stddev("smaller clip norm") == settings.noise_stddev("individual")
    assert settings.clip_norm("smaller clip norm") < settings.clip_norm("individual") == CLIP_NORM


@pytest.mark.slow
def test_every_way_learns() -> None:
    digits = load_digits()
    found = [samples(digits, dpsgd.DIGITS, 1), full_batches(digits, trainings.DIGITS, 1)]
    for (accuracies,) in found:  # with a fixed seed
        assert len(accuracies) == len(WAYS)
        assert min(accuracies) > 0.8
