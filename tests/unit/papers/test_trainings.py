"""The trainings of the tables are charged as the tables say, on bounded and split data."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accounting import NormGrid, PoissonGaussian, ReportAccountant, gdp_budget
from accounting.release.clipping import norm_products, row_norms
from bench.papers import dpsgd, sampled, trainings
from bench.papers.dpsgd import Sampled
from bench.papers.images import CLASSES, CLIP_NORM, FEATURE_NORM, Images, load_digits
from bench.papers.trainings import WAYS, FullBatches, Way
from streams.trainers.loop import row_products, softmax


@pytest.fixture(scope="module")
def digits() -> Images:
    return load_digits()


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


def test_no_image_is_in_training_and_test(digits: Images) -> None:
    rows = np.vstack([digits.train, digits.test])
    assert len(np.unique(rows, axis=0)) == len(rows) == 1797
    assert digits.users.tolist() == list(range(len(digits.train)))


def test_no_gradient_is_longer_than_the_clip_norm(digits: Images) -> None:
    assert row_norms(digits.train).max() <= FEATURE_NORM * (1 + 1e-12)
    for seed in range(5):
        weights = np.random.default_rng(seed).normal(0, 3, (digits.train.shape[1], CLASSES))
        residuals = softmax(row_products(digits.train, weights))
        residuals -= np.eye(CLASSES)[digits.train_labels]
        lengths = norm_products(row_norms(residuals), row_norms(digits.train))
        assert lengths.max() <= CLIP_NORM * (1 + 1e-12)


def test_the_worst_case_makes_as_many_steps_as_its_noise_is_for() -> None:
    for epsilon, steps in ((0.3, 100), (1.0, 30)):
        noise = sampled.noise_of(epsilon, steps, 0.1, 0.8)
        assert sampled.worst_case_steps(epsilon, noise, 0.1, 0.8) == steps
        assert sampled.worst_case_steps(epsilon, noise, 0.1, 1.2) < steps
