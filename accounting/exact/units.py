"""Budget and spend as whole numbers of one small unit, so that addition is exact.

A unit is 2**-44 of the measure in which a dataset is accounted: nats of rho (zCDP), mu squared
(GDP), or Rényi divergence in nats at an order. Costs are rounded up to units and budgets down, so
no sequence of admissions exceeds the budget in exact arithmetic, sums do not depend on the order
of the steps, and every IEEE machine computes the same state.

Range: a cost saturates at 2**62 units, a budget is at most 2**61 units (131072 nats). A spend is
never above its budget, so spend + cost stays below 2**63 and int64 never overflows. A saturated
cost exceeds every budget and is therefore never admitted.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    exact_number,
    nonnegative_array,
    unit_array,
    whole_number,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import DOWN, UP, floats_toward

UNIT_BITS: Final = 44
MAX_COST_UNITS: Final = 2**62
MAX_BUDGET_UNITS: Final = 2**61

_UNITS_PER_ONE: Final = float(2**UNIT_BITS)
_ONE_UNIT: Final = 1.0 / _UNITS_PER_ONE
_MAX_COST: Final = MAX_COST_UNITS / _UNITS_PER_ONE


def cost_units(cost: npt.ArrayLike) -> IntArray:
    """Return ceil(cost * 2**44), exactly, saturating at `MAX_COST_UNITS`.

    Args:
        cost: float64 of any shape, >= 0, in the unit of the measure; infinity saturates. A
            positive cost is never less than one unit.
    """
    costs = nonnegative_array("cost", cost)
    # Scaling by a power of two and ceil are exact in float64 below the saturation point.
    scaled = np.asarray(np.minimum(costs, _MAX_COST))
    np.multiply(scaled, _UNITS_PER_ONE, out=scaled)
    np.ceil(scaled, out=scaled)
    return scaled.astype(np.int64)


def budget_units(budget: float, power: int = 1, argument: str = "budget") -> int:
    """Return floor(budget**power * 2**44), exactly.

    Args:
        budget: a number in the unit of the measure.
        power: 2 for the mu of GDP.
        argument: its name in the error.

    Raises:
        InvalidInput: above `MAX_BUDGET_UNITS`, below 0, and for a positive budget of less than
            one unit.
    """
    number = exact_number(argument, budget)
    units: Fraction = number ** whole_number("power", power, 1, 2) * 2**UNIT_BITS
    if number < 0 or units > MAX_BUDGET_UNITS:
        squared = " when squared" if power == 2 else ""
        allowed = f"at least 0, and at most {MAX_BUDGET_UNITS >> UNIT_BITS}{squared}"
        raise InvalidInput(argument, budget, allowed)
    if 0 < units < 1:
        raise InvalidInput(argument, budget, f"0, or at least one unit, which is 2**-{UNIT_BITS}")
    return math.floor(units)


def from_units(units: npt.ArrayLike) -> FloatArray:
    """Return the smallest float64 >= units * 2**-44, in the unit of the measure; for spends.

    `units`: int64 of any shape, 0 to `MAX_COST_UNITS`.
    """
    whole = unit_array("units", units, MAX_COST_UNITS)
    return floats_toward(whole, UP) * _ONE_UNIT


def from_units_down(units: npt.ArrayLike) -> FloatArray:
    """Return the largest float64 <= units * 2**-44; for remaining budgets. See `from_units`."""
    whole = unit_array("units", units, MAX_COST_UNITS)
    return floats_toward(whole, DOWN) * _ONE_UNIT
