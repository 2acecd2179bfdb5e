"""Odometers with fixed ticks, of a Rényi divergence at one order and of a Gaussian-DP parameter.

The service does not use them; it calls `accounting.odometers.advance_units` for all its measures.
Feldman and Zrnic, Alg. 5; Koskela et al., App. C.5. Neighbouring datasets differ by adding or
removing one user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from accounting.exact.errors import InvalidInput
from accounting.exact.products import product_up
from accounting.exact.rounding import UP, float_toward
from accounting.exact.units import (
    MAX_BUDGET_UNITS,
    MAX_COST_UNITS,
    UNIT_BITS,
    cost_units,
    from_units,
)
from accounting.exact.validation import (
    FloatArray,
    IntArray,
    exact_number,
    renyi_orders,
    unit_array,
    user_count,
)
from accounting.odometers import MAX_TICKS, advance_units


@dataclass(frozen=True, init=False)
class _Odometer:
    """An odometer with one tick size. `tick_units`: D in units, rounded up.

    The state is an int64 array of shape (n, 2) that the caller owns: (used, ticks) of each user.
    """

    tick_units: int

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing: on an empty first tick."""
        state = np.zeros((user_count("n", n), 2), dtype=np.int64)
        state[:, 1] = 1
        return state

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
            raise InvalidInput(
                "state", columns.shape, "of shape (n, 2), as returned by initial_state"
            )
        used, ticks = self._climb(
            np.ascontiguousarray(columns[:, 0]),
            np.ascontiguousarray(columns[:, 1]),
            cost_units(cost),
        )
        return np.stack([used, ticks], axis=1), self._bound(ticks)

    def _climb(self, used: IntArray, ticks: IntArray, cost: IntArray) -> tuple[IntArray, IntArray]:
        return advance_units(used, ticks, cost, self.tick_units)

    def _bound(self, ticks: IntArray) -> FloatArray:
        # A number of ticks above 2**53 is rounded up to the next float64 or the one after.
        count = ticks.astype(np.float64)
        count[count.astype(np.int64) < ticks] *= 1.0 + 2.0**-52
        size = float_toward(Fraction(self.tick_units, 2**UNIT_BITS), UP)
        bound = product_up(size, count)
        bound[ticks >= MAX_TICKS] = math.inf
        return bound

    def _set_tick_size(self, step: float, power: int) -> int:
        number = exact_number("step", step)
        units: int = math.ceil(number**power * 2**UNIT_BITS)
        if number <= 0 or units > MAX_BUDGET_UNITS:
            squared = " when squared" if power == 2 else ""
            allowed = f"greater than 0, and at most {MAX_BUDGET_UNITS >> UNIT_BITS}{squared}"
            raise InvalidInput("step", step, allowed)
        object.__setattr__(self, "tick_units", units)
        return units


@dataclass(frozen=True, init=False)
class RenyiTracker(_Odometer):
    """A bound on the Rényi divergence at one order (Feldman and Zrnic, Alg. 5).

    Costs and bounds are in nats at that order.

    Args:
        order: > 1, at most 2**40.
        step: the tick size D, in nats, > 0, rounded up to units.
    """

    order: float

    def __init__(self, order: float, step: float) -> None:
        object.__setattr__(self, "order", float(renyi_orders("order", [order])[0]))
        self._set_tick_size(step, power=1)


@dataclass(frozen=True, init=False)
class GdpOdometer(_Odometer):
    """A bound on mu squared (Koskela et al., App. C.5); the root of the bound is mu.

    Costs and bounds are in mu squared, in which Gaussian steps add up, and so do ticks:
    B_{m+1}^2 = B_m^2 + D_m^2. Gaussian steps only.

    Args:
        step: the tick size in mu, > 0, or several: the first tick spans the first size squared, and
            so on; the last size repeats, and is `tick_units`. Starting with small ticks bounds
            users who spend little more tightly.

    Attributes:
        first_units: the tick sizes before the last one, in units, each rounded up; at most 2**61
            in all.
    """

    first_units: tuple[int, ...]

    def __init__(self, step: float | Sequence[float]) -> None:
        sizes = np.asarray(step, dtype=object).reshape(-1).tolist()
        if not sizes:
            raise InvalidInput("step", step, "one tick size or more")
        units = [self._set_tick_size(one, power=2) for one in sizes]
        if sum(units) > MAX_BUDGET_UNITS:
            allowed = f"squares of at most {MAX_BUDGET_UNITS >> UNIT_BITS} in all"
            raise InvalidInput("step", sizes, allowed)
        object.__setattr__(self, "first_units", tuple(units[:-1]))

    def _climb(self, used: IntArray, ticks: IntArray, cost: IntArray) -> tuple[IntArray, IntArray]:
        new_used, new_ticks = advance_units(used, ticks, cost, self.tick_units)
        early = np.flatnonzero(ticks <= len(self.first_units))
        spent, height, left = used[early], ticks[early], cost[early]
        for number, size in enumerate(self.first_units, start=1):
            here = height == number
            fits = here & (spent + left <= size)
            spent[fits] += left[fits]
            over = here & ~fits
            # An empty tick takes as much as it spans; a partly used one was too small for the cost.
            left[over] -= np.where(spent[over] > 0, 0, size)
            spent[over] = 0
            height[over] += 1
        above = np.flatnonzero(height > len(self.first_units))
        zero, one = np.zeros(above.size, dtype=np.int64), np.ones(above.size, dtype=np.int64)
        spent[above], further = advance_units(zero, one, left[above], self.tick_units)
        height[above] = np.minimum(len(self.first_units) + further, MAX_TICKS)
        height[cost[early] == MAX_COST_UNITS] = MAX_TICKS
        new_used[early], new_ticks[early] = spent, height
        return new_used, new_ticks

    def _bound(self, ticks: IntArray) -> FloatArray:
        if not self.first_units:
            return super()._bound(ticks)
        ends = np.cumsum([0, *self.first_units])
        further = ticks - len(self.first_units)
        countable = further <= (MAX_COST_UNITS - int(ends[-1])) // self.tick_units
        units = ends[np.minimum(ticks, len(self.first_units))]
        units += np.where(countable, np.maximum(further, 0), 0) * self.tick_units
        bound = from_units(units)
        high = super()._bound(further[~countable]) + bound[~countable]
        bound[~countable] = np.nextafter(high, math.inf)
        bound[ticks >= MAX_TICKS] = math.inf
        return bound
