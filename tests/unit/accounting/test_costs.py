from __future__ import annotations

import math
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
norm_lists = st.lists(exact.usual_norm | exact.any_norm, max_size=12)


@given(norm_lists, exact.usual_scale | exact.any_scale)
def test_gaussian_costs_are_the_smallest_floats_above_the_formula(
    norms: list[float], s: float
) -> None:
    mechanism = Gaussian(s)
    rho, mu2 = zcdp_cost(mechanism, norms), gdp_cost(mechanism, norms)
    renyi = renyi_cost(mechanism, norms, ORDERS)
    assert renyi.shape == (len(norms), len(ORDERS))
    for i, c in enumerate(norms):
        assert exact.is_cost(float(rho[i]), exact.rho(c, s))
        assert exact.is_cost(float(mu2[i]), 2 * exact.rho(c, s))
        for j, a in enumerate(ORDERS):
            base, found = float(rho[i]), float(renyi[i, j])
            if math.isinf(base):
                assert found == math.inf
            elif 0.0 < base <= 2.0**-797:
                assert Fraction(a) * Fraction(base) <= found <= 2.0**-700
            else:
                assert exact.is_cost(found, Fraction(a) * Fraction(base))


@given(norm_lists, exact.usual_scale)
def test_pure_dp_costs_half_of_epsilon_squared_and_laplace_is_pure_dp(
    norms: list[float], scale: float
) -> None:
    pure, laplace = zcdp_cost(PureDP(), norms), zcdp_cost(Laplace(scale), norms)
    for i, c in enumerate(norms):
        assert exact.is_cost(float(pure[i]), Fraction(c) ** 2 / 2)
        assert exact.is_cost(float(laplace[i]), exact.rho(c, scale))


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
