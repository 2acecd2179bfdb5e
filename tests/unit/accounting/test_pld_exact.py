"""Bounds from loss distributions hold, and are tight, beside other ways to compute them."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import PoissonGaussian
from accounting.reports.pld.pld_report import PldReport
from tests.examples import examples
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
