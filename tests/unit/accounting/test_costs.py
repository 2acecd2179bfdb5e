from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MAX_COST_UNITS,
    MEASURES,
    Gaussian,
    Laplace,
    MeasureName,
    PureDP,
    gdp_cost,
    renyi_cost,
    zcdp_cost,
)
from accounting.costs.costs import Mechanism
from tests.unit.accounting import rational_model as exact
from tests.unit.accounting.refusals import refused

ORDERS = [1.1, 1.5, 2.0, 8.0, 64.0]
norm_lists = st.lists(exact.usual_norm, max_size=12)


@given(norm_lists, exact.usual_scale)
def test_gaussian_costs_are_the_smallest_floats_above_the_formula(
    norms: list[float], s: float
) -> None:
    mechanism = Gaussian(s)
    rho, mu2 = zcdp_cost(mechanism, norms), gdp_cost(mechanism, norms)
    renyi = renyi_cost(mechanism, norms, ORDERS)
    assert renyi.shape == (len(norms), len(ORDERS))
    for i, c in enumerate(norms):
        assert exact.is_smallest_float_at_least(float(rho[i]), exact.rho(c, s))
        assert exact.is_smallest_float_at_least(float(mu2[i]), 2 * exact.rho(c, s))
        for j, a in enumerate(ORDERS):
            product = Fraction(a) * Fraction(float(rho[i]))
            assert exact.is_smallest_float_at_least(float(renyi[i, j]), product)


@given(norm_lists, exact.usual_scale)
def test_pure_dp_costs_half_of_epsilon_squared_and_laplace_is_pure_dp(
    norms: list[float], scale: float
) -> None:
    pure, laplace = zcdp_cost(PureDP(), norms), zcdp_cost(Laplace(scale), norms)
    for i, c in enumerate(norms):
        assert exact.is_smallest_float_at_least(float(pure[i]), Fraction(c) ** 2 / 2)
        assert exact.is_smallest_float_at_least(float(laplace[i]), exact.rho(c, scale))


@given(st.lists(exact.any_norm, max_size=8), exact.any_scale)
def test_costs_of_any_norm_round_up_and_are_positive_unless_the_norm_is_zero(
    norms: list[float], s: float
) -> None:
    for c, cost in zip(norms, zcdp_cost(Gaussian(s), norms).tolist(), strict=True):
        assert exact.is_smallest_float_at_least(cost, exact.rho(c, s))


@pytest.mark.parametrize(
    ("norm", "s"),
    [
        (0.375, 2.1545979836457646e-155),  # the square overflows, its half does not
        (1.7e308, 1e154),
        (5e-324, 5e-324),
        (1e-162, 1.0),  # half of the smallest float64
        (1.7e308, 5e-324),
    ],
)
def test_costs_at_the_ends_of_the_float_range(norm: float, s: float) -> None:
    cost = float(zcdp_cost(Gaussian(s), [norm])[0])
    assert exact.is_smallest_float_at_least(cost, exact.rho(norm, s))


@given(st.lists(st.one_of(exact.usual_norm, exact.any_norm), max_size=10), exact.usual_scale)
def test_charges_are_what_an_auditor_computes_in_fractions(norms: list[float], s: float) -> None:
    mechanism = Gaussian(s)
    zcdp = [exact.zcdp_units(c, s) for c in norms]
    assert MEASURES["zcdp"].charge_units(mechanism, norms).tolist() == zcdp
    assert MEASURES["zcdp"].charge_units(Laplace(s), norms).tolist() == zcdp
    assert MEASURES["gdp"].charge_units(mechanism, norms).tolist() == [
        exact.gdp_units(c, s) for c in norms
    ]
    expected = [[exact.renyi_units(c, s, a) for a in ORDERS] for c in norms]
    assert MEASURES["renyi"].charge_units(mechanism, norms, ORDERS).tolist() == expected
    expected = [[exact.pure_renyi_units(c, s, a) for a in ORDERS] for c in norms]
    assert MEASURES["renyi"].charge_units(Laplace(s), norms, ORDERS).tolist() == expected
    expected = [[exact.pure_renyi_units(c, 1.0, a) for a in ORDERS] for c in norms]
    assert MEASURES["renyi"].charge_units(PureDP(), norms, ORDERS).tolist() == expected


@given(exact.usual_norm, exact.usual_norm, exact.usual_scale)
def test_charges_are_monotone_in_the_norm(a: float, b: float, s: float) -> None:
    low, high = sorted((a, b))
    for measure, row in MEASURES.items():
        orders = ORDERS if measure == "renyi" else None
        for step in filter(row.covers, (Gaussian(s), Laplace(s))):
            charges = MEASURES[measure].charge_units(step, [low, high], orders)
            assert (charges[0] <= charges[1]).all()


@pytest.mark.parametrize("measure", MEASURES)
def test_zero_norm_is_free_and_a_huge_one_saturates(measure: MeasureName) -> None:
    orders = [2.0, 1e6] if measure == "renyi" else None
    step = Laplace(1.0) if measure == "pure-dp" else Gaussian(1.0)
    charges = MEASURES[measure].charge_units(step, [0.0, 1e300], orders)
    assert not charges[0].any()
    assert (charges[1] == MAX_COST_UNITS).all()


@pytest.mark.parametrize("mechanism", [PureDP(), Laplace(1.0)])
def test_gdp_of_a_mechanism_that_is_not_gaussian_is_refused(mechanism: Mechanism) -> None:
    with refused("mechanism"):
        gdp_cost(mechanism, [1.0])
    with refused("mechanism"):
        MEASURES["gdp"].charge_units(mechanism, [1.0])
