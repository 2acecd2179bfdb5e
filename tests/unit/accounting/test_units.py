from __future__ import annotations

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MAX_COST_UNITS,
    InvalidInput,
    budget_units,
    cost_units,
    from_units,
    from_units_down,
)
from tests.unit.accounting import rational_model as exact


@given(st.lists(st.floats(min_value=0.0, allow_nan=False), max_size=20))
def test_cost_units_are_the_exact_ceiling(costs: list[float]) -> None:
    expected = [CAP if c == math.inf else exact.units(Fraction(c)) for c in costs]
    assert cost_units(np.array(costs)).tolist() == expected


CAP = MAX_COST_UNITS


@pytest.mark.parametrize(
    ("cost", "units"),
    [
        (0.0, 0),
        (-0.0, 0),
        (5e-324, 1),
        (2.0**-44, 1),
        (math.nextafter(2.0**-44, 1.0), 2),
        (1.0, 2**44),
        (2.0**18, CAP),
        (math.nextafter(2.0**18, 0.0), 2**62 - 2**9),
        (1e308, CAP),
        (math.inf, CAP),
    ],
)
def test_cost_units_at_the_boundaries(cost: float, units: int) -> None:
    assert cost_units(np.array([cost])).tolist() == [units]


@given(st.floats(min_value=2.0**-44, max_value=2.0**17))
def test_budget_units_are_the_exact_floor(budget: float) -> None:
    assert budget_units(budget) == math.floor(Fraction(budget) * 2**44)


@given(st.lists(st.integers(0, MAX_COST_UNITS), min_size=1, max_size=20))
def test_from_units_brackets_the_exact_value(units: list[int]) -> None:
    up, down = from_units(np.array(units)), from_units_down(np.array(units))
    for number, high, low in zip(units, up.tolist(), down.tolist(), strict=True):
        value = number * exact.UNIT
        assert exact.is_smallest_float_at_least(high, value)
        assert Fraction(low) <= value < Fraction(math.nextafter(low, math.inf))


def test_error_names_argument_value_and_what_is_allowed_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(InvalidInput("rho", -1.0, "greater than 0")))
    assert (error.argument, error.value, error.allowed) == ("rho", -1.0, "greater than 0")
