from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import Gaussian, PoissonGaussian, gdp_risk, renyi_cost
from accounting.costs.mechanisms import PureDP
from accounting.reports import (
    NormGrid,
    ReportAccountant,
    membership_risk,
    renyi_curve,
    trade_off,
)
from tests.examples import examples
from tests.unit.accounting.refusals import refused

GRID = NormGrid(1.0, 2)
ALPHA = np.linspace(0.0, 1.0, 51)
SAMPLED = ReportAccountant(PoissonGaussian(1.0, 0.05), GRID)  # keeps what it has computed


@pytest.mark.slow
@examples(30)
@given(st.floats(0.3, 20.0), st.integers(1, 30), st.floats(0.0, 1.0))
def test_trade_off_of_gaussian_steps_is_below_the_exact_one_and_near(
    noise: float, steps: int, alpha: float
) -> None:
    found = trade_off(ReportAccountant(Gaussian(noise), GRID), [0, steps], [alpha]).beta[0]
    with mpmath.workdps(350):  # so that 1 - 2 alpha is not 1, however small alpha is
        mu, a = mpmath.sqrt(steps) / mpf(noise), mpf(alpha)
        root = mpmath.erfinv(1 - 2 * a) * mpmath.sqrt(2) if 0 < a < 1 else mpf(0)
        exact = mpmath.ncdf(root - mu) if 0 < a < 1 else 1 - a
    assert mpf(found) <= exact
    assert found >= float(exact) - 0.03


@pytest.mark.slow
@examples(30)
@given(st.floats(0.3, 20.0), st.integers(1, 30), st.floats(0.01, 0.5))
def test_risk_of_gaussian_steps_is_above_the_exact_one_and_near(
    noise: float, steps: int, alpha: float
) -> None:
    report = ReportAccountant(Gaussian(noise), GRID)
    found = membership_risk(report, [[0, steps], [0, 0]], alpha)
    exact = gdp_risk(math.sqrt(steps) / noise, alpha)
    assert exact.true_positive_rate <= found.true_positive_rate[0] * (1 + 1e-9)
    assert found.true_positive_rate[0] <= exact.true_positive_rate * 1.25
    assert found.advantage[0] == pytest.approx(exact.advantage, rel=1e-9)
    assert (found.true_positive_rate[1], found.advantage[1]) == (alpha, 0.0)


@pytest.mark.slow
def test_trade_off_of_a_pure_step_is_that_of_randomised_response() -> None:
    report = ReportAccountant(PureDP(), NormGrid(0.8, 1))
    exact = np.maximum(1.0 - math.exp(0.8) * ALPHA, math.exp(-0.8) * (1.0 - ALPHA))
    beta = trade_off(report, [1], ALPHA, deltas=[1e-12]).beta
    assert (beta <= exact).all()
    np.testing.assert_allclose(beta, exact, atol=1e-3)


@pytest.mark.slow
def test_trade_offs_fall_are_convex_up_to_rounding_and_users_come_in_rows() -> None:
    counts = np.array([[0, 0], [0, 100], [0, 5000]])
    alpha, beta = trade_off(SAMPLED, counts, ALPHA)
    assert beta.shape == (3, 51)
    np.testing.assert_allclose(beta[0], 1.0 - alpha, atol=1e-12)
    assert (beta[0] >= beta[1]).all()
    assert (beta[1] >= beta[2]).all()
    assert (np.diff(beta, axis=1) <= 0.0).all()
    assert (np.diff(beta, 2, axis=1) >= -1e-12).all()
    np.testing.assert_array_equal(trade_off(SAMPLED, counts[1], ALPHA).beta, beta[1])


def test_renyi_curve_is_counts_times_costs_at_the_orders_of_the_accountant() -> None:
    mechanism, orders = PoissonGaussian(1.0, 0.05), [1.5, 2.0, 8.0]
    report = ReportAccountant(mechanism, GRID, orders=orders)
    found = renyi_curve(report, [[3, 4]])
    costs = renyi_cost(mechanism, GRID.norms, orders)
    np.testing.assert_array_equal(found.orders, orders)
    np.testing.assert_allclose(found.divergences, [3 * costs[0] + 4 * costs[1]], rtol=1e-12)
    assert renyi_curve(report, [3, 4]).divergences.shape == (3,)


@pytest.mark.parametrize("alpha", [[-0.1], [1.5], [math.nan], 0.5, [[0.5]]])
def test_invalid_rates_are_refused(alpha: object) -> None:
    report = ReportAccountant(Gaussian(1.0), GRID)
    with refused("alpha"):
        trade_off(report, [0, 1], alpha)
    with refused("deltas"):
        trade_off(report, [0, 1], [0.5], deltas=[0.0])
