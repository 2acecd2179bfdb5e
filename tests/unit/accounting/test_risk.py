"""The risk of a membership attack, against exact tests and against riskcal.

Figures of riskcal are of version 1.5.1 (https://pypi.org/project/riskcal/): `get_advantage_for_mu`,
`get_beta_for_mu`, `get_beta_for_epsilon_delta`, and `get_advantage_from_pld`, `get_beta_from_pld`
on the loss distributions of dp_accounting 0.6.0 with intervals of 1e-4.
"""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MEASURES,
    Gaussian,
    StepShape,
    candidate_orders,
    curve_risk,
    gdp_risk,
    gdp_to_epsilon,
    steps_measure,
)
from accounting.conversions.risk import curve_deltas
from accounting.reports import NormGrid, ReportAccountant
from tests.examples import examples

RATES = (0.001, 0.01, 0.1)


def exact_gaussian(mu: float, alpha: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The true-positive rate at alpha, and the advantage, of the likelihood ratio test."""
    with mpmath.workdps(60):
        quantile = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(alpha) - 1)
        return mpmath.ncdf(quantile + mu), 2 * mpmath.ncdf(mpmath.mpf(mu) / 2) - 1


@examples(200)
@given(st.floats(1e-6, 30.0), st.floats(1e-12, 0.999))
def test_risk_of_gdp_is_that_of_the_likelihood_ratio_test(mu: float, alpha: float) -> None:
    rate, advantage = exact_gaussian(mu, alpha)
    found = gdp_risk(mu, alpha)
    assert rate <= found.true_positive_rate <= min(rate * (1 + mpmath.mpf(2) ** -35), 1)
    assert advantage <= found.advantage <= advantage * (1 + mpmath.mpf(2) ** -35)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "advantage", "rates"),
    [
        (2.0, 0.1, 16, 0.08284576868948476, (0.00224794033, 0.01836794987, 0.14488862654)),
        (1.0, 0.01, 1000, 0.16101842080506576, (0.00401388992, 0.02909972110, 0.19417868516)),
    ],
)
def test_risk_of_counted_steps_is_just_above_that_of_riskcal(
    noise: float, rate: float, steps: int, advantage: float, rates: tuple[float, ...]
) -> None:
    measure = steps_measure(StepShape(rate, noise))
    for alpha, most in zip(RATES, rates, strict=True):
        found = measure.risk([float(steps)], alpha)
        assert most * (1 - 1e-3) <= found.true_positive_rate <= most * 1.02
        assert advantage * (1 - 1e-3) <= found.advantage <= advantage * 1.02


@pytest.mark.slow
@examples(50)
@given(st.floats(0.02, 8.0), st.floats(1e-6, 0.9))
def test_risk_of_a_gdp_curve_is_just_above_the_exact_risk(mu: float, alpha: float) -> None:
    deltas = curve_deltas(alpha)
    found = curve_risk([gdp_to_epsilon(mu, delta) for delta in deltas.tolist()], deltas, alpha)
    exact = gdp_risk(mu, alpha)
    assert exact.true_positive_rate <= found.true_positive_rate * (1 + 1e-9)
    assert found.true_positive_rate <= exact.true_positive_rate * 1.02
    assert exact.advantage <= found.advantage * (1 + 1e-9)
    assert found.advantage <= exact.advantage * 1.03


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alpha", [5e-324, 1e-310, 1e-14, 1.0 - 2**-53])
def test_a_risk_is_stated_at_the_ends_of_the_rates(alpha: float) -> None:
    rate, _ = ReportAccountant(Gaussian(1.0), NormGrid(1.0, 1)).risk([1], alpha)
    found = MEASURES["zcdp"].risk([0.5], alpha)
    exact = gdp_risk(1.0, alpha)
    assert exact.true_positive_rate <= found.true_positive_rate <= 1.0
    assert exact.true_positive_rate <= rate <= 1.0


@given(st.floats(0.01, 20.0), st.floats(0.001, 0.99))
def test_risk_of_pure_dp_is_that_of_randomised_response(epsilon: float, alpha: float) -> None:
    best = min(math.exp(epsilon) * alpha, 1.0 - math.exp(-epsilon) * (1.0 - alpha))
    found = MEASURES["pure-dp"].risk([epsilon], alpha)
    assert best * (1 - 1e-12) <= found.true_positive_rate <= best * (1 + 1e-8)
    assert found.advantage == pytest.approx(math.tanh(epsilon / 2.0), rel=1e-8)


@pytest.mark.parametrize("alpha", RATES)
def test_other_risks_are_not_below_that_of_gaussian_steps(alpha: float) -> None:
    exact, orders = gdp_risk(0.7, alpha), candidate_orders(3.0, 1e-5).orders
    row, spent = MEASURES["renyi"], orders * 0.7**2 / 2.0
    all_hold, one_holds = (row.risk(spent, alpha, orders, any_order=any_) for any_ in (False, True))
    for found in (MEASURES["zcdp"].risk([0.7**2 / 2.0], alpha), all_hold, one_holds):
        assert exact.true_positive_rate <= found.true_positive_rate
        assert exact.advantage <= found.advantage
    assert all_hold.true_positive_rate <= one_holds.true_positive_rate


def test_no_spend_is_no_risk_and_an_unbounded_one_is_any() -> None:
    assert gdp_risk(0.0, 0.05) == (0.05, 0.05, 0.0)
    assert gdp_risk(math.inf, 0.05) == (0.05, 1.0, 1.0)
    assert curve_risk([math.inf], [0.5], 0.05) == (0.05, 1.0, 1.0)
    nothing = curve_risk([0.0], [0.0], 0.05)
    assert nothing.true_positive_rate == pytest.approx(0.05, rel=1e-9)
    assert nothing.advantage == 0.0


@pytest.mark.slow
@examples(30)
@given(st.floats(0.3, 20.0), st.integers(1, 30), st.floats(0.01, 0.5))
def test_risk_of_gaussian_steps_is_above_the_exact_one_and_near(
    noise: float, steps: int, alpha: float
) -> None:
    report = ReportAccountant(Gaussian(noise), NormGrid(1.0, 2))
    rates, advantages = report.risk([[0, steps], [0, 0]], alpha)
    exact = gdp_risk(math.sqrt(steps) / noise, alpha)
    assert exact.true_positive_rate <= rates[0] * (1 + 1e-9)
    assert rates[0] <= exact.true_positive_rate * 1.25
    assert advantages[0] == pytest.approx(exact.advantage, rel=1e-9)
    assert (rates[1], advantages[1]) == (alpha, 0.0)
