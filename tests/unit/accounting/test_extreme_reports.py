"""A user who is never drawn loses nothing, and odd arguments of reports raise no warning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from accounting import (
    Gaussian,
    NormGrid,
    PoissonGaussian,
    ReportAccountant,
    epsilon_of,
    gdp_to_delta,
    gdp_to_epsilon,
    noise_for_epsilon,
)
from accounting.reports.accountant import METHODS

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
METHOD = pytest.mark.parametrize("method", METHODS)
# Loss distributions of large norms have long grids.
LARGE_NORMS = pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, marks=pytest.mark.slow) if method in ("pld", "tightest") else method
        for method in METHODS
    ],
)


def chance(rate: float, steps: int) -> float:
    return -math.expm1(steps * math.log1p(-rate))


@LARGE_NORMS
def test_norms_far_above_the_noise_lose_the_probability_of_being_drawn(method: Any) -> None:
    accountant = ReportAccountant(PoissonGaussian(1.0, 0.0476), NormGrid(134.0, 1))
    drawn = chance(0.0476, 8)
    for epsilon in (1.0, 5000.0):
        found = accountant.delta([8], epsilon, method)
        assert drawn * 0.999 <= float(found) <= drawn * (1 + 1e-9)
        assert found.bounds.lower <= found.bounds.estimate <= found
    assert float(accountant.epsilon([8], 0.33, method)) == 0.0
    assert float(accountant.epsilon([8], 0.32, method)) > 100.0


@LARGE_NORMS
def test_other_steps_are_added_to_the_probability_of_being_drawn(method: Any) -> None:
    """Draws that tell everything, beside Gaussian steps: the exact value is known."""
    mechanisms = [PoissonGaussian(1.0, 1e-4), Gaussian(1.0)]
    accountant = ReportAccountant(mechanisms, [NormGrid(200.0, 1), NormGrid(1.0, 1)])
    counts, drawn = np.array([[3, 2], [0, 2], [3, 0]]), chance(1e-4, 3)
    by_gaussian = gdp_to_delta(math.sqrt(2.0), 2.0)
    exact = np.array([drawn + (1 - drawn) * by_gaussian, by_gaussian, drawn])
    found = accountant.delta(counts, 2.0, method)
    assert (found >= exact * (1 - 1e-9)).all()
    looser = {"pld": 1.01, "tightest": 1.01}.get(method, 2.5)
    assert (found <= exact * looser).all()
    epsilons = accountant.epsilon(counts, 0.01, method)
    least = gdp_to_epsilon(math.sqrt(2.0), (0.01 - drawn) / (1 - drawn))
    assert epsilons[2] == 0.0
    assert least * (1 - 1e-6) <= epsilons[0] <= least * 1.2


@LARGE_NORMS
def test_an_estimate_lies_below_the_probability_of_being_drawn(method: Any) -> None:
    accountant = ReportAccountant(PoissonGaussian(1.0, 1.7e-13), NormGrid(24.7, 1))
    found = accountant.delta([4339], 1.0, method).bounds
    assert found.estimate <= found.upper <= chance(1.7e-13, 4339) * (1 + 1e-9)


def test_few_draws_of_large_norms_have_epsilon_0() -> None:
    assert [epsilon_of(noise, 0.01, 10, 0.1) for noise in (0.0077, 0.0079)] == [0.0, 0.0]
    assert epsilon_of(0.0077, 0.01, 10, 0.09) > 0.0


@LARGE_NORMS
def test_delta_falls_and_epsilon_falls_around_the_probability_of_being_drawn(method: Any) -> None:
    accountant = ReportAccountant(
        [PoissonGaussian(1.0, 0.02), PoissonGaussian(1.0, 0.01)],
        [NormGrid(3.0, 1), NormGrid(150.0, 1)],
    )
    deltas = [float(accountant.delta([4, 3], e, method)) for e in (0.0, 0.5, 2.0, 8.0, 50.0)]
    assert deltas == sorted(deltas, reverse=True)
    levels = (0.02, 0.0297, 0.03, 0.05, 0.1, 0.2)
    epsilons = [float(accountant.epsilon([4, 3], delta, method)) for delta in levels]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[-1] == 0.0


# --- arguments at the ends of float64 ---


@pytest.mark.parametrize("rate", [5e-324, 1e-310, 1e-290])
@pytest.mark.parametrize("delta", [1e-5, 1e-300])
def test_rates_at_the_end_of_float64_are_reported(rate: float, delta: float) -> None:
    mechanism = PoissonGaussian(1.0, rate)
    assert mechanism.sampling_rate == max(rate, 1e-290)
    assert 0.0 <= epsilon_of(1.0, rate, 2**46, delta) < math.inf


@pytest.mark.parametrize("rate", [5e-324, 1e-320])
def test_noise_is_found_for_rates_at_the_end_of_float64(rate: float) -> None:
    assert 0.0 < noise_for_epsilon(2.0, 1e-5, 5, rate) <= 0.01


@METHOD
def test_delta_at_the_largest_epsilons_is_next_to_nothing(method: Any) -> None:
    accountant = ReportAccountant(PoissonGaussian(1.0, 0.01), NormGrid(1.0, 2))
    for epsilon in (1e200, 1e308):
        found = accountant.delta([3, 4], epsilon, method).bounds
        assert found.lower == 0.0
        assert found.upper < 1e-300


@LARGE_NORMS
def test_an_epsilon_is_found_where_loss_distributions_know_none(method: Any) -> None:
    accountant = ReportAccountant([PoissonGaussian(1, 0.0476)], [NormGrid(134.0, 1)])
    for delta in (0.1, 0.3, 0.9):
        found = accountant.epsilon([8], delta, method).bounds
        assert found.lower <= found.estimate <= found.upper
