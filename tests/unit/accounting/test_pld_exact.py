"""Bounds from loss distributions hold, and are tight, beside other ways to compute them."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import Gaussian, PoissonGaussian, gdp_to_delta, gdp_to_epsilon
from accounting.reports.pld.pld_report import PldReport
from tests.examples import examples, grid
from tests.unit.accounting.exact_deltas import larger_sampled_delta

mpmath.mp.dps = 30


def report(q: float, ratios: list[float]) -> PldReport:
    return PldReport(PoissonGaussian(1.0, q), np.array(ratios))


@pytest.mark.slow
@pytest.mark.parametrize("q", [1e-4, 0.01, 0.3, 0.95])
@pytest.mark.parametrize("m", [0.05, 0.7, 1.5, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 5.0])
def test_delta_of_one_step_lies_between_the_bounds(q: float, m: float, epsilon: float) -> None:
    lower, estimate, upper = report(q, [m]).delta(np.array([[1]]), epsilon)
    exact = larger_sampled_delta(m, q, epsilon)
    assert lower[0] <= estimate[0] <= upper[0]
    assert mpf(lower[0]) <= exact <= mpf(upper[0])
    if exact > 1e-20:
        assert upper[0] <= float(exact) * 1.05
        assert lower[0] >= float(exact) * 0.95


@pytest.mark.parametrize(("noise", "steps", "published"), [(1.0, 1000, 1.828), (0.65, 2000, 7.751)])
def test_published_epsilon_of_dp_sgd_is_met(noise: float, steps: int, published: float) -> None:
    mechanism = PoissonGaussian(noise, 0.01)
    lower, estimate, upper = PldReport(mechanism, np.ones(1)).epsilon(np.array([[steps]]), 1e-5)
    assert abs(estimate[0] - published) < 1e-3
    assert lower[0] <= estimate[0] <= upper[0] <= lower[0] * 1.001


@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-10, 1e-60, 1e-250])
def test_unsampled_steps_agree_with_gaussian_dp_far_into_the_tail(delta: float) -> None:
    norms, counts = np.array([0.1, 0.25, 1.0]), np.array([[400, 30, 2], [0, 0, 1], [10**6, 0, 0]])
    bounds = PldReport(Gaussian(4.0), norms).epsilon(counts, delta)
    mu = np.sqrt(counts @ norms**2) / 4.0
    exact = gdp_to_epsilon(mu, delta)
    assert (bounds.lower <= exact).all()
    assert (exact <= bounds.upper * (1.0 + 1e-12)).all()
    np.testing.assert_allclose(bounds.upper, bounds.lower, rtol=5e-3, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 4.0, 20.0])
def test_delta_of_unsampled_steps_agrees_with_gaussian_dp(epsilon: float) -> None:
    bounds = PldReport(Gaussian(10.0), np.ones(1)).delta(np.array([[50], [1]]), epsilon)
    exact = gdp_to_delta(np.sqrt([50.0, 1.0]) / 10.0, epsilon)
    assert (bounds.lower <= exact).all()
    assert (exact <= bounds.upper * (1.0 + 1e-11) + 1e-322).all()


def total_variation_up(ratio: float, rate: float, steps: int) -> float:
    """Above delta at epsilon 0, by closed forms: the sum of the steps', and chi squared."""
    one = rate * math.erf(ratio / math.sqrt(8.0))
    log_chi = steps * math.log1p(rate * rate * math.expm1(min(ratio * ratio, 700.0)))
    return min(steps * one, 0.5 * math.sqrt(math.expm1(min(log_chi, 10.0))))


@pytest.mark.slow
@examples(2)
@given(
    st.floats(-17.0, -5.0).map(lambda x: 10.0**x),
    st.floats(-2.0, 2.0).map(lambda x: 10.0**x),
    st.floats(0.0, 13.0).map(lambda x: int(10.0**x)),
)
@example(1.2077818275488336e-08, 1.0 / 0.5640967641203588, 2176141669575)
@example(1.6849489561803855e-13, 1.0 / 0.04050237510066314, 4339)
def test_lower_bound_is_never_above_total_variation_at_the_smallest_rates(
    rate: float, ratio: float, steps: int
) -> None:
    bounds = report(rate, [ratio]).delta(np.array([[steps]]), 0.0)
    assert bounds.lower[0] <= total_variation_up(ratio, rate, steps) * (1.0 + 1e-12)


usual_rate = st.floats(1e-3, 1.0)
usual_counts = st.lists(st.integers(0, 300), min_size=3, max_size=3)


@examples(30)
@given(usual_rate, st.floats(0.6, 8.0), usual_counts, st.floats(-12.0, -1.0))
def test_delta_and_epsilon_are_inverse_to_each_other_within_their_bounds(
    q: float, noise: float, row: list[int], exponent: float
) -> None:
    delta, counts = 10.0**exponent, np.array([row])
    pld = PldReport(PoissonGaussian(noise, q), np.array([0.2, 0.5, 1.0]))
    epsilon = pld.epsilon(counts, delta)
    if epsilon.lower[0] > 0.0:
        assert pld.delta(counts, epsilon.lower[0] * (1.0 - 1e-9)).upper[0] >= delta
    if epsilon.upper[0] < 700.0:
        assert pld.delta(counts, epsilon.upper[0] * (1.0 + 1e-9)).lower[0] <= delta


def test_no_steps_and_a_rate_of_zero_lose_nothing() -> None:
    counts = np.array([[0, 0], [3, 1]])
    bounds = report(0.1, [0.5, 1.0]).epsilon(counts, 1e-5)
    assert [part[0] for part in bounds] == [0.0, 0.0, 0.0]
    assert bounds.upper[1] > 0.0
    never = report(0.0, [0.5, 1.0])
    assert not np.any(never.epsilon(counts, 1e-5))
    assert not np.any(never.delta(counts, 0.0))


@pytest.mark.slow
@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("ratio", "q"),
    grid([1e-200, 1e-9, 1e-3, 100.0, 1e3, 1e200], [1.0, 1.0 - 1e-9, 1e-300, 1e-6, 0.5]),
)
def test_extreme_norms_and_rates_give_an_interval_and_no_warning(ratio: float, q: float) -> None:
    pld = report(q, [ratio])
    for count in (1, 10**9):
        lower, estimate, upper = pld.epsilon(np.array([[count]]), 1e-5)
        assert 0.0 <= lower[0] <= estimate[0] <= upper[0]
        lower, estimate, upper = pld.delta(np.array([[count]]), 1.0)
        assert 0.0 <= lower[0] <= estimate[0] <= upper[0] <= 1.0
