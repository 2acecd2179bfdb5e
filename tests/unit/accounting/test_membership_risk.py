from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import Gaussian, PureDP, gdp_risk
from accounting.reports import NormGrid, ReportAccountant
from tests.examples import examples

GRID = NormGrid(1.0, 2)


@pytest.mark.slow
@examples(30)
@given(st.floats(0.3, 20.0), st.integers(1, 30), st.floats(0.01, 0.5))
def test_risk_of_gaussian_steps_is_above_the_exact_one_and_near(
    noise: float, steps: int, alpha: float
) -> None:
    report = ReportAccountant(Gaussian(noise), GRID)
    found = report.risk([[0, steps], [0, 0]], alpha)
    exact = gdp_risk(math.sqrt(steps) / noise, alpha)
    assert exact.true_positive_rate <= found.true_positive_rate[0] * (1 + 1e-9)
    assert found.true_positive_rate[0] <= exact.true_positive_rate * 1.25
    assert found.advantage[0] == pytest.approx(exact.advantage, rel=1e-9)
    assert (found.true_positive_rate[1], found.advantage[1]) == (alpha, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.05, 0.2, 0.6])
def test_risk_of_a_pure_step_is_not_below_that_of_randomised_response(rate: float) -> None:
    report = ReportAccountant(PureDP(), NormGrid(0.8, 1))
    exact = min(math.exp(0.8) * rate, 1.0 - math.exp(-0.8) * (1.0 - rate))
    found = float(report.risk([1], rate).true_positive_rate)
    assert exact <= found <= 1.25 * exact
