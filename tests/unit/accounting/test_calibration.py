"""Noise for a budget of norms, and for an epsilon and delta."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import (
    MEASURES,
    Gaussian,
    ZcdpFilter,
    noise_for_norm_budget,
)
from accounting.costs.mechanisms import PoissonGaussian
from accounting.reports import SaddlePointReport
from accounting.reports.calibration import noise_for_epsilon
from accounting.reports.pld.pld_report import PldReport
from tests.examples import examples
from tests.unit.accounting.exact_deltas import gaussian_delta
from tests.unit.accounting.refusals import refused


@pytest.mark.parametrize("rho", [0.001, 0.1, 0.3, 1 / 3, 1.0, 2.5, 100.0])
def test_exactly_the_norm_budget_of_contributions_is_admitted(rho: float) -> None:
    rule = ZcdpFilter(rho)
    for budget in [*range(1, 401), 1000, 32768]:
        charge = MEASURES["zcdp"].charge_units(Gaussian(noise_for_norm_budget(budget, rho)), [1.0])
        assert rule.budget_units[0] // int(charge[0]) == budget


USUAL = st.tuples(st.floats(1e-6, 1e6), st.floats(1e-3, 1000.0))


@given(USUAL | st.tuples(st.floats(5e-324, 1.7e308), st.floats(2.0**-44, 131072.0)))
@example((5e-324, 2.0**-44))
@example((5e-324, 131072.0))
@example((1.7e308, 2.0**-44))
@example((1.7e308, 131072.0))
def test_calibrated_noise_is_enough_and_hardly_more(target: tuple[float, float]) -> None:
    norm_budget, rho = target
    noise = noise_for_norm_budget(norm_budget, rho)
    assert 0.0 < noise < math.inf
    assert Fraction(norm_budget) / (2 * Fraction(noise) ** 2) <= Fraction(rho)
    if 1e-6 <= norm_budget <= 1e6 and 1e-3 <= rho <= 1e3:
        assert noise == pytest.approx(math.sqrt(norm_budget / (2 * rho)), rel=1e-5)


DELTA = 1e-5


@examples(40)
@given(
    st.floats(0.0, 30.0),
    st.floats(-40.0, -0.1).map(math.exp),
    st.integers(1, 10**6),
    st.floats(1e-3, 1e3),
)
@example(0.0, 1e-30, 1, 5e-324)
@example(1e-30, 5e-324, 1, 1e270)
@example(1e5, 1e-5, 1, 1e-300)
def test_noise_without_sampling_is_enough_and_hardly_more(
    epsilon: float, delta: float, steps: int, norm: float
) -> None:
    noise = noise_for_epsilon(epsilon, delta, steps, clip_norm=norm)
    with mpmath.workdps(120):
        mu = mpmath.sqrt(steps) * mpf(norm) / mpf(noise)
        assert gaussian_delta(mu, epsilon) <= delta
        if 1e-3 <= norm <= 1e3:
            assert gaussian_delta(mu * (1 + mpf(1e-6)), epsilon) > delta


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_targets_at_the_ends_of_float64_are_as_those_beside_them() -> None:
    least, small, large, most = (
        noise_for_epsilon(epsilon, 1e-5, 10, 0.5) for epsilon in (5e-324, 1e-200, 1e100, 1.7e308)
    )
    assert (least, large) == (small, most)


@pytest.mark.parametrize(
    ("epsilon", "delta", "norm", "argument"),
    [(0.0, 1e-300, 1.0, "epsilon"), (1.0, 1e-5, 1e308, "clip_norm")],
)
def test_target_that_no_finite_noise_reaches_is_refused(
    epsilon: float, delta: float, norm: float, argument: str
) -> None:
    with refused(argument):
        noise_for_epsilon(epsilon, delta, 1, clip_norm=norm)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "delta", "steps", "rate", "norm"),
    [
        (1.0, 1e-5, 1000, 0.01, 1.0),
        (0.3, 1e-9, 20, 0.2, 0.07),
        (5.0, 1e-6, 1, 0.5, 40.0),
        (2.0, 1e-5, 1000000, 0.001, 1.0),
        (0.0, 1e-3, 10, 0.1, 1.0),
    ],
)
def test_noise_with_sampling_is_enough_and_hardly_more(
    epsilon: float, delta: float, steps: int, rate: float, norm: float
) -> None:
    noise = noise_for_epsilon(epsilon, delta, steps, rate, norm)
    rows = np.array([[steps]], dtype=np.int64)
    report = PldReport([PoissonGaussian(noise, rate)], np.array([norm]))
    assert report.epsilon(rows, delta).lower[0] <= epsilon
    assert report.delta(rows, epsilon).upper[0] <= delta * (1.0 + 1e-3)
    less = PldReport([PoissonGaussian(noise * (1.0 - 2e-3), rate)], np.array([norm]))
    assert less.delta(rows, epsilon).lower[0] > delta


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "steps", "excess"),
    [(1.0, 10**6, 1e-3), (20.0, 10**7, 5e-4), (1.0, 10**9, 2e-2)],
)
def test_noise_of_very_many_steps_is_near_the_least(
    epsilon: float, steps: int, excess: float
) -> None:
    noise = noise_for_epsilon(epsilon, DELTA, steps, 0.5)
    rows, ones = np.array([[steps]], dtype=np.int64), np.ones(1)
    enough = SaddlePointReport([PoissonGaussian(noise, 0.5)], ones)
    assert enough.epsilon(rows, DELTA).lower[0] <= epsilon
    assert enough.delta(rows, epsilon).lower[0] <= DELTA
    less = SaddlePointReport([PoissonGaussian(noise * (1.0 - excess), 0.5)], ones)
    assert less.epsilon(rows, DELTA).lower[0] > epsilon
    # The central limit: mu = q sqrt(T (e^(1/s^2) - 1)), and a Gaussian trade-off.
    with mpmath.workdps(60):
        mu = mpf(0.5) * mpmath.sqrt(steps * mpmath.expm1(1 / mpf(noise) ** 2))
        assert gaussian_delta(mu, epsilon) <= DELTA * 1.001


# ------------------------------------------------------------------------- epsilon of a given noise
