"""Extreme arguments of reports raise no warning."""

from __future__ import annotations

import math
from typing import Any

import pytest

from accounting import (
    NormGrid,
    PoissonGaussian,
    ReportAccountant,
    noise_for_epsilon,
)
from accounting.reports.accountant import METHODS

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
METHOD = pytest.mark.parametrize("method", METHODS)
# Loss distributions of large norms have long grids; the saddle point has no bound.
LARGE_NORMS = pytest.mark.parametrize(
    "method",
    ["renyi", *(pytest.param(method, marks=pytest.mark.slow) for method in ("pld", "tightest"))],
)


@pytest.mark.parametrize("rate", [5e-324, 1e-310, 1e-290])
@pytest.mark.parametrize("delta", [1e-5, 1e-300])
def test_rates_at_the_end_of_float64_are_reported(rate: float, delta: float) -> None:
    mechanism = PoissonGaussian(1.0, rate)
    assert mechanism.sampling_rate == max(rate, 1e-290)
    report = ReportAccountant(mechanism, NormGrid(1.0, 1))
    assert 0.0 <= report.epsilon([2**46], delta) < math.inf


@pytest.mark.parametrize("rate", [5e-324, 1e-320])
def test_noise_is_found_for_rates_at_the_end_of_float64(rate: float) -> None:
    assert 0.0 < noise_for_epsilon(2.0, 1e-5, 5, rate) <= 0.01


@METHOD
def test_delta_at_the_largest_epsilons_is_next_to_nothing(method: Any) -> None:
    accountant = ReportAccountant(PoissonGaussian(1.0, 0.01), NormGrid(1.0, 2))
    for epsilon in (1e200, 1e308):
        found = accountant.delta([3, 4], epsilon, method).bounds
        assert found.lower == 0.0
        assert found.upper < 1e-80


@LARGE_NORMS
def test_an_epsilon_is_found_where_loss_distributions_know_none(method: Any) -> None:
    accountant = ReportAccountant([PoissonGaussian(1, 0.0476)], [NormGrid(134.0, 1)])
    for delta in (0.1, 0.3, 0.9):
        found = accountant.epsilon([8], delta, method).bounds
        assert found.lower <= found.estimate <= found.upper
