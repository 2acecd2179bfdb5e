"""Odometers with fixed ticks, of a Rényi divergence at one order and of a Gaussian-DP parameter.

Feldman and Zrnic, Alg. 5; Koskela et al., App. C.5. The service calls
`accounting.odometers.advance_units`, the same rule, for all its measures. Neighbouring datasets
differ by adding or removing one user.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    exact_number,
    renyi_orders,
    unit_array,
    user_count,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.products import product_up
from accounting.exact.rounding import UP, floats_toward
from accounting.exact.units import MAX_BUDGET_UNITS, UNIT_BITS, cost_units, from_units
from accounting.odometers import MAX_TICKS, advance_units


class _Odometer:
    """An odometer with ticks of step**power, rounded up to `tick_units` units.

    The state is an int64 array of shape (n, 2) that the caller owns: (used, ticks) of each user.
    """

    def __init__(self, step: float, power: int) -> None:
        number = exact_number("step", step)
        self.tick_units = math.ceil(number**power * 2**UNIT_BITS)
        if number <= 0 or self.tick_units > MAX_BUDGET_UNITS:
            largest = (MAX_BUDGET_UNITS >> UNIT_BITS) ** (1 / power)
            raise InvalidInput("step", step, f"greater than 0, and at most {largest:.6g}")

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing: on an empty first tick."""
        return np.repeat(np.array([[0, 1]], dtype=np.int64), user_count("n", n), axis=0)

    def advance(self, state: IntArray, cost: npt.ArrayLike) -> tuple[IntArray, FloatArray]:
        """Return (new_state, bound) after a step; see `advance_units`.

        Args:
            state: int64, shape (n, 2).
            cost: float64, shape (n,), >= 0, in the unit of the bound, rounded up.

        Returns:
            The new state, and the bound: float64, shape (n,), rounded up; infinite after a cost
            above every budget.
        """
        columns = unit_array("state", state, MAX_TICKS)
        if columns.ndim != 2 or columns.shape[1] != 2:
            allowed = "of shape (n, 2), as returned by initial_state"
            raise InvalidInput("state", columns.shape, allowed)
        used, ticks = (np.ascontiguousarray(column) for column in columns.T)
        charge = cost_units(cost)
        if charge.shape != used.shape:
            raise InvalidInput("cost", charge.shape, f"one number for each of {used.size} users")
        used, ticks = advance_units(used, ticks, charge, self.tick_units)
        bound = product_up(float(from_units(self.tick_units)), floats_toward(ticks, UP))
        bound[ticks >= MAX_TICKS] = math.inf
        return np.stack([used, ticks], axis=1), bound


class RenyiTracker(_Odometer):
    """A bound on the Rényi divergence at one order (Feldman and Zrnic, Alg. 5).

    Costs and bounds are in nats at that order.

    Args:
        order: > 1, at most 2**40.
        step: the tick size D, in nats, > 0, rounded up to units.
    """

    def __init__(self, order: float, step: float) -> None:
        self.order = float(renyi_orders("order", [order])[0])
        super().__init__(step, power=1)


class GdpOdometer(_Odometer):
    """A bound on mu squared (Koskela et al., App. C.5); the root of the bound is mu.

    Costs and bounds are in mu squared, in which Gaussian steps add up, and so do ticks:
    B_{m+1}^2 = B_m^2 + D^2. Gaussian steps only.

    Args:
        step: the tick size D in mu, > 0; its square is rounded up to units.
    """

    def __init__(self, step: float) -> None:
        super().__init__(step, power=2)
