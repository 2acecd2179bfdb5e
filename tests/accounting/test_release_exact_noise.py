"""The exact samplers against closed forms. Fixed seeds; each test fails for one seed in a million
or fewer if the sampler is right."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from accounting import InvalidInput
from accounting.release import exact_noise
from accounting.release.exact_noise import ExactNoise
from accounting.validation import IntArray

FALSE_POSITIVES = 1e-6


def chi_square_pvalue(draws: IntArray, edges: IntArray, probabilities: np.ndarray) -> float:
    """Of draws in the cells up to edges[0], up to edges[1], ..., and the rest."""
    cells = np.bincount(np.searchsorted(edges, draws), minlength=edges.size + 1)
    expected = probabilities * draws.size
    assert expected.min() > 5
    return float(stats.chisquare(cells, expected).pvalue)


def normal_pvalue(draws: IntArray, stddev: float) -> float:
    reach = int(2.5 * stddev + 0.5)
    edges = np.arange(-reach, reach)
    cumulative = stats.norm.cdf((edges + 0.5) / stddev)
    return chi_square_pvalue(draws, edges, np.diff([0.0, *cumulative, 1.0]))


@pytest.mark.parametrize("stddev", [Fraction(3, 10), Fraction(1), Fraction(22, 7)])
def test_rounded_normal_is_a_normal_deviate_rounded_to_integers(stddev: Fraction) -> None:
    noise = ExactNoise(np.random.default_rng(11))
    draws = np.array([noise.rounded_normal(stddev) for _ in range(20_000)])
    assert normal_pvalue(draws, float(stddev)) > FALSE_POSITIVES


def test_a_discrete_gaussian_would_be_told_from_a_rounded_normal() -> None:
    support = np.arange(-3, 4)
    weights = np.exp(-0.5 * (support / 0.5) ** 2)
    draws = np.random.default_rng(0).choice(support, 20_000, p=weights / weights.sum())
    assert normal_pvalue(draws, 0.5) < FALSE_POSITIVES


@pytest.mark.parametrize("stddev", [Fraction(2) ** 40 / 3, Fraction(10) ** 100])
def test_rounded_normal_of_many_digits_is_normal(stddev: Fraction) -> None:
    noise = ExactNoise(np.random.default_rng(12))
    draws = [noise.rounded_normal(stddev) for _ in range(10_000)]
    pvalue = stats.kstest([float(draw / stddev) for draw in draws], "norm").pvalue
    assert pvalue > FALSE_POSITIVES
    # The last digits of the integers are drawn too.
    parity = sum(draw % 2 for draw in draws)
    assert stats.binomtest(parity, len(draws)).pvalue > FALSE_POSITIVES


def test_comparisons_that_one_bit_leaves_open_are_decided_by_more_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact_noise, "_DIGIT_BITS", 1)
    noise = ExactNoise(np.random.default_rng(13))
    draws = np.array([noise.rounded_normal(Fraction(5, 2)) for _ in range(10_000)])
    assert normal_pvalue(draws, 2.5) > FALSE_POSITIVES


@pytest.mark.parametrize(
    "scale", [Fraction(1, 3), Fraction(0.7), Fraction(1), Fraction(10, 3), Fraction(40)]
)
def test_discrete_laplace_has_its_probabilities(scale: Fraction) -> None:
    noise = ExactNoise(np.random.default_rng(14))
    draws = np.array([noise.laplace(scale) for _ in range(20_000)])
    reach = max(int(3 * scale), 1)
    edges = np.arange(-reach, reach)
    decay = math.exp(-1 / scale)
    # P(x <= m) below 0; P(x > m) mirrors it.
    tails = [decay ** abs(m + (m >= 0)) / (1 + decay) for m in edges.tolist()]
    below = np.where(edges < 0, tails, 1.0 - np.array(tails))
    assert chi_square_pvalue(draws, edges, np.diff([0.0, *below, 1.0])) > FALSE_POSITIVES


def test_objects_on_one_generator_draw_different_noise() -> None:
    generator = np.random.default_rng(15)
    draws = [ExactNoise(generator).rounded_normal(Fraction(2) ** 60) for _ in range(200)]
    assert len(set(draws)) == 200


@pytest.mark.parametrize("bad", [None, 7, np.random.RandomState(0), np.random.PCG64(0)])
def test_what_is_no_generator_is_refused(bad: object) -> None:
    with pytest.raises(InvalidInput, match="generator"):
        ExactNoise(bad)
