"""Costs of steps and cost tables of norm levels, against rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MEASURES,
    Gaussian,
    Laplace,
    MeasureName,
    Mechanism,
    NormGrid,
    PoissonGaussian,
    PureDP,
    checked_cost_table,
    cost_units,
    gdp_cost,
    grid_norms,
    levels_of,
    renyi_cost,
    zcdp_cost,
)
from tests.unit.accounting import rational_model as exact
from tests.unit.accounting import rational_model as model
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
def test_pure_dp_and_laplace_cost_half_of_epsilon_squared(norms: list[float], scale: float) -> None:
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
    pure = MEASURES["pure-dp"].charge_units(Laplace(s), norms).tolist()
    assert pure == [exact.units(Fraction(c) / Fraction(s)) for c in norms]
    pure = MEASURES["pure-dp"].charge_units(PureDP(), norms).tolist()
    assert pure == [exact.units(Fraction(c)) for c in norms]
    expected = [[exact.renyi_units(c, s, a) for a in ORDERS] for c in norms]
    assert MEASURES["renyi"].charge_units(mechanism, norms, ORDERS).tolist() == expected
    expected = [[exact.pure_renyi_units(c, s, a) for a in ORDERS] for c in norms]
    assert MEASURES["renyi"].charge_units(Laplace(s), norms, ORDERS).tolist() == expected
    expected = [[exact.pure_renyi_units(c, 1.0, a) for a in ORDERS] for c in norms]
    assert MEASURES["renyi"].charge_units(PureDP(), norms, ORDERS).tolist() == expected


GRID_ORDERS = [1.5, 9.5, 64.0]
clip_norms = st.one_of(
    st.floats(min_value=2.0**-900, allow_infinity=False),
    st.sampled_from([1.0, 0.1, 1 / 3, 5e-324 * 2**12, 1.7e308]),
)
counts = st.integers(1, 255)


@given(clip_norms, counts)
def test_norm_of_a_level_is_the_smallest_float_above_its_share(clip: float, count: int) -> None:
    norms = grid_norms(clip, count).tolist()
    for level, norm in enumerate(norms):
        assert model.is_smallest_float_at_least(norm, Fraction(clip) * level / count)
    assert norms[0] == 0.0
    assert norms[-1] == clip


@given(clip_norms, counts, st.lists(st.floats(0.0, 1.0), max_size=20), st.integers(0, 255))
def test_norms_are_rounded_up_to_the_next_level(
    clip: float, count: int, shares: list[float], level: int
) -> None:
    levels = grid_norms(clip, count).tolist()
    edge = levels[min(level, count)]
    beyond = min(math.nextafter(edge, math.inf), clip)
    norms = [share * clip for share in shares] + [edge, beyond, math.nextafter(edge, 0.0), clip]
    (found,) = levels_of([norms], clip, count)
    assert found.dtype == np.uint8
    for norm, at in zip(norms, found.tolist(), strict=True):
        assert levels[at] >= norm
        assert at == 0 or levels[at - 1] < norm
    grid = NormGrid(clip, count)
    assert grid.norms.tolist() == levels[1:]
    assert (grid.levels_of(norms) == found.astype(int) - 1).all()


def test_counts_are_a_histogram_of_rounded_norms_above_zero() -> None:
    norms = [[0.0, 0.5, 0.50001, 1.0], [0.0, 0.0, 0.0, 0.0], [0.1, 0.1, 0.75, 0.0]]
    expected = [[0, 1, 1, 1], [0, 0, 0, 0], [2, 0, 1, 0]]
    counts = NormGrid(1.0, 4).counts(norms)
    assert counts.dtype == np.int64
    assert counts.tolist() == expected


@given(clip_norms, st.integers(1, 24), model.usual_scale)
def test_a_cost_table_is_what_an_auditor_computes_in_fractions(
    clip: float, count: int, scale: float
) -> None:
    norms = grid_norms(clip, count).tolist()
    mechanism = Gaussian(scale)
    assert MEASURES["zcdp"].cost_table(mechanism, clip, count).tolist() == [
        model.zcdp_units(norm, scale) for norm in norms
    ]
    assert MEASURES["gdp"].cost_table(mechanism, clip, count).tolist() == [
        model.gdp_units(norm, scale) for norm in norms
    ]
    assert MEASURES["renyi"].cost_table(mechanism, clip, count, GRID_ORDERS).tolist() == [
        [model.renyi_units(norm, scale, order) for order in GRID_ORDERS] for norm in norms
    ]


@pytest.mark.parametrize("row", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize(
    "mechanism",
    [Gaussian(0.7), PoissonGaussian(0.7, 0.01), Laplace(0.7), PureDP(), PoissonGaussian(1e9, 1e-9)],
    ids=repr,
)
def test_cost_table_covers_the_charges_and_never_falls(row: object, mechanism: Mechanism) -> None:
    measure: MeasureName = row.name
    orders = GRID_ORDERS if MEASURES[measure].per_order else None
    if not MEASURES[measure].covers_by_table(mechanism):
        with refused("mechanism"):
            MEASURES[measure].cost_table(mechanism, 2.0, 255, orders)
        return
    units = MEASURES[measure].cost_table(mechanism, 2.0, 255, orders)
    assert checked_cost_table(units) is units
    assert mechanism.__class__ is PoissonGaussian or (np.diff(units, axis=0) > 0).all()
    norms = grid_norms(2.0, 255)
    if measure == "renyi":
        assert (units >= cost_units(renyi_cost(mechanism, norms, GRID_ORDERS))).all()
    elif MEASURES[measure].covers(mechanism):
        assert (units >= MEASURES[measure].charge_units(mechanism, norms)).all()
