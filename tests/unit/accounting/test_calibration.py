from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MEASURES,
    Gaussian,
    ZcdpFilter,
    noise_for_norm_budget,
)
from tests.unit.accounting import rational_model as exact
from tests.unit.accounting.refusals import refused


def unit_contributions_admitted(norm_budget: float, rho: float) -> int:
    """How many contributions of norm 1 the filter admits at the calibrated noise."""
    rule = ZcdpFilter(rho)
    charge = MEASURES["zcdp"].charge_units(Gaussian(noise_for_norm_budget(norm_budget, rho)), [1.0])
    admitted, state = 0, rule.initial_state(1)
    while True:
        state, fits = rule.admit_units(state, charge)
        if not fits[0]:
            return admitted
        admitted += 1


@pytest.mark.parametrize("rho", [0.001, 0.1, 0.3, 1 / 3, 1.0, 2.5, 100.0])
def test_exactly_the_norm_budget_of_unit_contributions_is_admitted(rho: float) -> None:
    rule = ZcdpFilter(rho)
    for budget in [*range(1, 401), 1000, 32768]:
        charge = MEASURES["zcdp"].charge_units(Gaussian(noise_for_norm_budget(budget, rho)), [1.0])
        assert rule.budget_units[0] // int(charge[0]) == budget
    assert unit_contributions_admitted(20, rho) == 20


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=50),
    st.floats(min_value=1e-6, max_value=1000.0),
)
def test_contributions_whose_squares_sum_to_the_budget_all_fit(
    thousandths: list[int], rho: float
) -> None:
    norms = [k / 1000 for k in thousandths]
    budget = float(sum(Fraction(norm) ** 2 for norm in norms))
    charges = MEASURES["zcdp"].charge_units(Gaussian(noise_for_norm_budget(budget, rho)), norms)
    assert int(charges.sum()) <= ZcdpFilter(rho).budget_units[0]


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1000.0))
def test_calibrated_noise_is_enough_and_hardly_more(norm_budget: float, rho: float) -> None:
    noise = noise_for_norm_budget(norm_budget, rho)
    assert Fraction(norm_budget) / (2 * Fraction(noise) ** 2) <= Fraction(rho)
    assert noise == pytest.approx(math.sqrt(norm_budget / (2 * rho)), rel=1e-5)
    assert exact.rho(1.0, noise) > 0


@pytest.mark.parametrize("norm_budget", [5e-324, 1e-320, 2.0**-1022, 1e-300, 1e300, 1.7e308])
@pytest.mark.parametrize("rho", [2.0**-44, 1e-9, 0.3, 131072.0])
def test_noise_is_enough_for_budgets_at_the_ends_of_the_float_range(
    norm_budget: float, rho: float
) -> None:
    noise = noise_for_norm_budget(norm_budget, rho)
    assert 0.0 < noise < math.inf
    assert Fraction(norm_budget) / (2 * Fraction(noise) ** 2) <= Fraction(rho)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_invalid_budgets_are_refused(bad: float) -> None:
    with refused("norm_budget"):
        noise_for_norm_budget(bad, 1.0)
    with refused("rho"):
        noise_for_norm_budget(1.0, bad)
    with refused("rho"):
        noise_for_norm_budget(1.0, 1e-14)
