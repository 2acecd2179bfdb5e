"""Levels of norms, and what a step charges at each of them, against rational numbers."""

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
    PoissonGaussian,
    PureDP,
    checked_cost_table,
    cost_units,
    grid_norms,
    levels_of,
    renyi_cost,
)
from tests.unit.accounting import rational_model as model
from tests.unit.accounting.refusals import refused

ORDERS = [1.5, 9.5, 64.0]
clip_norms = st.one_of(
    st.floats(min_value=2.0**-900, allow_infinity=False),
    st.sampled_from([1.0, 0.1, 1 / 3, 5e-324 * 2**12, 1.7e308]),
)
counts = st.integers(1, 255)


@given(clip_norms, counts)
def test_the_norm_of_a_level_is_the_smallest_float_at_or_above_its_share(
    clip: float, count: int
) -> None:
    norms = grid_norms(clip, count).tolist()
    for level, norm in enumerate(norms):
        assert model.is_smallest_float_at_least(norm, Fraction(clip) * level / count)
    assert norms[0] == 0.0
    assert norms[-1] == clip


@given(clip_norms, counts, st.lists(st.floats(0.0, 1.0), max_size=20), st.integers(0, 255))
def test_a_norm_has_the_lowest_level_that_is_not_below_it(
    clip: float, count: int, shares: list[float], level: int
) -> None:
    edge = float(grid_norms(clip, count)[min(level, count)])
    beyond = min(math.nextafter(edge, math.inf), clip)
    norms = [share * clip for share in shares] + [edge, beyond, math.nextafter(edge, 0.0), clip]
    levels = levels_of(norms, clip, count)
    assert levels.dtype == np.uint8
    grid = grid_norms(clip, count).tolist()
    for norm, found in zip(norms, levels.tolist(), strict=True):
        assert grid[found] >= norm
        assert found == 0 or grid[found - 1] < norm


def test_a_count_of_any_integer_type_is_the_same_grid() -> None:
    for count in (np.uint8(255), np.int64(255), 255):
        assert len(grid_norms(3.0, count)) == 256


def test_levels_keep_the_shape_of_many_norms() -> None:
    norms = np.random.default_rng(1).uniform(0.0, 1.0, (1000, 200))
    levels = levels_of(norms, 1.0, 100)
    assert levels.shape == norms.shape
    grid = grid_norms(1.0, 100)
    assert (levels == np.searchsorted(grid, norms)).all()


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
    assert MEASURES["renyi"].cost_table(mechanism, clip, count, ORDERS).tolist() == [
        [model.renyi_units(norm, scale, order) for order in ORDERS] for norm in norms
    ]


@pytest.mark.parametrize("row", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize(
    "mechanism",
    [Gaussian(0.7), PoissonGaussian(0.7, 0.01), Laplace(0.7), PureDP(), PoissonGaussian(1e9, 1e-9)],
    ids=repr,
)
def test_a_cost_table_covers_what_its_measure_charges_and_never_falls(
    row: object, mechanism: Mechanism
) -> None:
    measure: MeasureName = row.name
    orders = ORDERS if MEASURES[measure].per_order else None
    if not MEASURES[measure].covers_by_table(mechanism):
        with refused("mechanism"):
            MEASURES[measure].cost_table(mechanism, 2.0, 255, orders)
        return
    units = MEASURES[measure].cost_table(mechanism, 2.0, 255, orders)
    assert checked_cost_table(units) is units
    norms = grid_norms(2.0, 255)
    if measure == "renyi":
        assert (units >= cost_units(renyi_cost(mechanism, norms, ORDERS))).all()
    elif MEASURES[measure].covers(mechanism):
        assert (units >= MEASURES[measure].charge_units(mechanism, norms)).all()
