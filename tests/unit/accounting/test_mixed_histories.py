"""Histories of several mechanisms, by loss distributions, beside exact deltas in many digits."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import Gaussian, PoissonGaussian
from accounting.costs.mechanisms import Laplace, PureDP
from accounting.reports.bounds import Bounds
from accounting.reports.pld.pld_report import PldReport
from accounting.reports.renyi_report import RenyiReport
from tests.examples import examples
from tests.unit.accounting.exact_deltas import gaussian_delta

mpmath.mp.dps = 40


def responses(size: float, count: int, epsilon: mpf) -> mpf:
    """Delta of `count` randomised responses, at any real epsilon."""
    e, total = mpf(size), mpf(0)
    for ahead in range(count + 1):
        loss = (2 * ahead - count) * e
        mass = mpmath.binomial(count, ahead) * mpmath.exp(ahead * e) / (1 + mpmath.exp(e)) ** count
        total += mass * max(1 - mpmath.exp(epsilon - loss), mpf(0))
    return total


def assert_between(bounds: Bounds, exact: mpf, width: float) -> None:
    assert mpf(float(bounds.lower[0])) <= exact <= mpf(float(bounds.upper[0]))
    assert bounds.upper[0] <= bounds.lower[0] * (1.0 + width) + 1e-12


def assert_around(
    bounds: Bounds, exact: Callable[[mpf], mpf], epsilon: float, largest: float
) -> None:
    """The bounds hold, and are those of an epsilon that is off by some thousandths of the loss."""
    e, shift = mpf(epsilon), mpf(0.006) * mpf(largest)
    lower, upper = mpf(float(bounds.lower[0])), mpf(float(bounds.upper[0]))
    assert lower <= exact(e) <= upper
    assert exact(e + shift) * mpf(0.98) - mpf(1e-12) <= lower
    assert upper <= exact(e - shift) * mpf(1.02) + mpf(1e-12)


@examples(30)
@given(st.floats(-2.0, 1.0).map(lambda x: 10.0**x), st.floats(0.0, 1.1))
def test_one_laplace_step_is_the_exact_one(size: float, part: float) -> None:
    def exact(epsilon: mpf) -> mpf:
        return max(-mpmath.expm1((epsilon - mpf(size)) / 2), mpf(0))

    bounds = PldReport(Laplace(1.0), np.array([size])).delta(np.array([[1]]), size * part)
    assert_around(bounds, exact, size * part, size)


@examples(30)
@example(1.0049436676389785, 35, 0.875)
@given(st.floats(0.01, 2.0), st.integers(1, 40), st.floats(0.0, 1.0))
def test_randomised_responses_are_the_exact_ones(size: float, count: int, part: float) -> None:
    epsilon = size * count * part * part
    bounds = PldReport(PureDP(), np.array([size])).delta(np.array([[count]]), epsilon)
    assert_around(bounds, lambda e: responses(size, count, e), epsilon, size * count)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5, 4.0])
def test_gaussian_steps_and_a_response_are_a_mixture_of_both(epsilon: float) -> None:
    report = PldReport([Gaussian(2.0), PureDP()], np.array([1.0, 0.7]))
    ahead = 1 / (1 + mpmath.exp(-mpf(0.7)))
    mu, e = mpmath.sqrt(3) / 2, mpf(epsilon)
    shifted = [gaussian_delta(mu, e - mpf(0.7)), gaussian_delta(mu, e + mpf(0.7))]
    exact = ahead * shifted[0] + (1 - ahead) * shifted[1]
    assert_between(report.delta(np.array([[3, 1]]), epsilon), exact, 0.02)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_gaussian_and_laplace_steps_are_an_integral_over_the_loss_of_one(epsilon: float) -> None:
    report = PldReport([Laplace(2.0), Gaussian(1.0)], np.array([1.0, 0.8]))
    m, e = mpf(0.5), mpf(epsilon)
    between = mpmath.quad(
        lambda loss: mpmath.exp((loss - m) / 2) / 4 * gaussian_delta(mpf(0.8), e - loss), [-m, 0, m]
    )
    exact = (
        gaussian_delta(mpf(0.8), e - m) / 2
        + mpmath.exp(-m) * gaussian_delta(mpf(0.8), e + m) / 2
        + between
    )
    assert_between(report.delta(np.array([[1, 1]]), epsilon), exact, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "epsilon", [0.3, *(pytest.param(e, marks=pytest.mark.thorough) for e in (0.0, 2.0))]
)
def test_sampled_and_gaussian_steps_lose_the_larger_direction(epsilon: float) -> None:
    report = PldReport([PoissonGaussian(1.0, 0.1), Gaussian(1.0)], np.array([1.0, 0.5]))

    def loss(x: mpf) -> mpf:
        return mpmath.log1p(mpf(0.1) * mpmath.expm1(x - mpf(1) / 2))

    def removed(x: mpf) -> mpf:
        density = (1 - mpf(0.1)) * mpmath.npdf(x) + mpf(0.1) * mpmath.npdf(x, 1)
        return density * gaussian_delta(mpf(0.5), mpf(epsilon) - loss(x))

    def added(x: mpf) -> mpf:
        return mpmath.npdf(x) * gaussian_delta(mpf(0.5), mpf(epsilon) + loss(x))

    points = [mpf(x) for x in np.linspace(-12.0, 13.0, 26)]
    exact = max(mpmath.quad(removed, points), mpmath.quad(added, points))
    assert_between(report.delta(np.array([[1, 1]]), epsilon), exact, 0.02)


def test_rates_and_noises_that_are_the_same_count_together() -> None:
    one, other = PoissonGaussian(1.0, 0.01), PoissonGaussian(2.0, 0.01)
    # A norm of 2 with twice the noise is a norm of 1.
    mixed = PldReport([one, other], np.array([1.0, 2.0])).epsilon(np.array([[300, 200]]), 1e-5)
    alike = PldReport(one, np.ones(1)).epsilon(np.array([[500]]), 1e-5)
    for first, second in zip(mixed, alike, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-9)


@pytest.mark.slow
def test_bounded_losses_end_epsilon_at_their_sum() -> None:
    bounds = PldReport([PureDP(), Laplace(2.0)], np.array([0.3, 1.0])).epsilon(
        np.array([[2, 3]]), 1e-250
    )
    assert 2 * 0.3 + 3 * 0.5 <= bounds.upper[0] <= (2 * 0.3 + 3 * 0.5) * (1.0 + 1e-12)


def test_divergences_of_mixed_histories_are_the_sums_of_those_of_each() -> None:
    norms, counts = np.array([1.0, 0.5, 0.2]), np.array([[5, 7, 3]])
    mechanisms = [Laplace(4.0), PoissonGaussian(1.0, 0.1), Laplace(4.0)]
    total = RenyiReport(mechanisms, norms).divergences(counts)
    parts = [
        RenyiReport(mechanism, norms[[level]]).divergences(counts[:, [level]])
        for level, mechanism in enumerate(mechanisms)
    ]
    np.testing.assert_allclose(total, sum(parts), rtol=1e-12)
