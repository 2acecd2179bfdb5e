"""Individual odometers: a bound on what each user has spent, which rises by ticks.

An odometer climbs rungs of a fixed increment D: each rung is a privacy filter with budget D, and
the bound is the number of rungs times D (Feldman and Zrnic, Alg. 5, Prop. 4.10). For a rung that is
fixed beforehand, the bound can be converted with the whole delta. At a time that outputs decide,
only its any-time epsilon holds (`accounting.Measure.any_time_epsilon`). At a single Rényi order
that needs no rungs: there the exact running sum holds.

Per user the bound depends on that user's data; it may be shown to that user alone (sec. 4.4).
Neighbouring datasets differ by adding or removing one user. For a bound in (epsilon, delta) see
`accounting.filters.lecuyer`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

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

MAX_RUNGS: Final = 2**61


def advance_units(
    used: IntArray, rungs: IntArray, cost: IntArray, increment: int | Sequence[int] | IntArray
) -> tuple[IntArray, IntArray]:
    """Return (used, rungs) after a step that was charged `cost`.

    - A cost that fits on the current rung is added to `used`; zero always fits.
    - Else the filter restarts with this cost counted (Alg. 5): with K the largest over the orders
      of ceil(cost / D), `rungs` grows by K, or by K - 1 if the current rung is empty (nothing used
      at any order), and `used` is what is on the last rung, max(cost - (K - 1) D, 0). All orders
      share one schedule: all must fit, else all restart.

    For costs of at most D this is Alg. 5 (K = 1). Larger costs are sound for the same reason: at
    every time the sum of costs is at most (rungs - 1) D + used <= rungs D, so to stop before the
    bound exceeds m D is a filter with budget m D (Thm 3.1, 4.3), for each fixed m.

    Args:
        used: units spent on the current rung, shape (n,) or (n, k), at the start 0.
        rungs: int64, shape (n,), at the start 1.
        cost: units, of the shape of `used`.
        increment: units of D, 1 to `MAX_BUDGET_UNITS`: one number, or one per order for `used` of
            shape (n, k), or one per user, of shape (n, 1), for `used` of shape (n,).

    Returns:
        Arrays of the shapes given. The bound at an order is rungs times its increment. `rungs`
        saturates at `MAX_RUNGS`, and does so at once for a saturated cost: then nothing is known.

    Raises:
        InvalidInput: for units out of range or shapes that differ.
    """
    increments = _checked_increments(increment)
    spent = unit_array("used", used, MAX_BUDGET_UNITS)
    charge = unit_array("cost", cost, MAX_COST_UNITS)
    height = unit_array("rungs", rungs, MAX_RUNGS)
    _check_shapes(spent, charge, height, increments)
    # used <= 2**61 and cost <= 2**62, so the sum is exact.
    total = spent + charge
    over = total > (increments[:, 0] if increments.ndim == 2 else increments)
    rows = np.flatnonzero(over if over.ndim == 1 else over.any(axis=1))
    climbed = height.copy()
    if rows.size:
        # The same rule for one order and for several: rows of shape (rows, k).
        if increments.ndim == 2:
            increments = increments[rows]
        row_charge = charge[rows].reshape(rows.size, -1)
        row_empty = ~spent[rows].reshape(rows.size, -1).any(axis=1)
        needed = -(-row_charge // increments)
        most = needed.max(axis=1)
        # Only an order that needs all the rungs has anything on the last one.
        last = np.where(needed == most[:, np.newaxis], row_charge - (needed - 1) * increments, 0)
        total[rows] = last.reshape(total[rows].shape)
        # At most 2**61 + 2**61.
        grown = climbed[rows] + np.minimum(most, MAX_RUNGS) - row_empty
        grown[(row_charge == MAX_COST_UNITS).any(axis=1)] = MAX_RUNGS
        climbed[rows] = np.minimum(grown, MAX_RUNGS)
    return total, climbed


@dataclass(frozen=True, init=False)
class _Odometer:
    """An odometer with one increment. `increment_units`: D in units, rounded up.

    The state is an int64 array of shape (n, 2) that the caller owns: (used, rungs) of each user.
    """

    increment_units: int

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing: on an empty first rung."""
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
            that no budget could pay.
        """
        columns = unit_array("state", state, MAX_RUNGS)
        if columns.ndim != 2 or columns.shape[1] != 2:
            raise InvalidInput("state", columns.shape, "of shape (n, 2), as initial_state gives it")
        used, rungs = self._climb(
            np.ascontiguousarray(columns[:, 0]),
            np.ascontiguousarray(columns[:, 1]),
            cost_units(cost),
        )
        return np.stack([used, rungs], axis=1), self._bound(rungs)

    def _climb(self, used: IntArray, rungs: IntArray, cost: IntArray) -> tuple[IntArray, IntArray]:
        return advance_units(used, rungs, cost, self.increment_units)

    def _bound(self, rungs: IntArray) -> FloatArray:
        # A number of rungs above 2**53 is rounded up first, to the next float64 or the one after:
        # what release 0.1.0 said of a history is what is said of it now, to the last bit.
        count = rungs.astype(np.float64)
        count[count.astype(np.int64) < rungs] *= 1.0 + 2.0**-52
        increment = float_toward(Fraction(self.increment_units, 2**UNIT_BITS), UP)
        bound = product_up(increment, count)
        bound[rungs >= MAX_RUNGS] = math.inf
        return bound

    def _set_increment(self, step: float, power: int) -> int:
        number = exact_number("step", step)
        units: int = math.ceil(number**power * 2**UNIT_BITS)
        if number <= 0 or units > MAX_BUDGET_UNITS:
            squared = " when squared" if power == 2 else ""
            allowed = f"greater than 0, and at most {MAX_BUDGET_UNITS >> UNIT_BITS}{squared}"
            raise InvalidInput("step", step, allowed)
        object.__setattr__(self, "increment_units", units)
        return units


@dataclass(frozen=True, init=False)
class RenyiTracker(_Odometer):
    """A bound on the Rényi divergence at one order (Feldman and Zrnic, Alg. 5).

    Costs and bounds are in nats at that order.

    Args:
        order: > 1, at most 2**40.
        step: the increment D, in nats, > 0, rounded up to units.
    """

    order: float

    def __init__(self, order: float, step: float) -> None:
        object.__setattr__(self, "order", float(renyi_orders("order", [order])[0]))
        self._set_increment(step, power=1)


@dataclass(frozen=True, init=False)
class GdpOdometer(_Odometer):
    """A bound on mu squared (Koskela et al., App. C.5); the root of the bound is mu.

    Costs and bounds are in mu squared, in which Gaussian steps add up, and so do rungs:
    B_{m+1}^2 = B_m^2 + D_m^2. Gaussian steps only.

    Args:
        step: the increment, in mu, > 0, or several: the first rung spans the first one squared,
            and so on; the last one repeats, and is what `increment_units` says. Small increments
            first bound those who spend little more tightly.

    Attributes:
        first_units: the increments before the last one, in units, each rounded up; at most 2**61
            in all.
    """

    first_units: tuple[int, ...]

    def __init__(self, step: float | Sequence[float]) -> None:
        increments = np.asarray(step, dtype=object).reshape(-1).tolist()
        if not increments:
            raise InvalidInput("step", step, "one increment or more")
        units = [self._set_increment(one, power=2) for one in increments]
        if sum(units) > MAX_BUDGET_UNITS:
            allowed = f"squares of at most {MAX_BUDGET_UNITS >> UNIT_BITS} in all"
            raise InvalidInput("step", increments, allowed)
        object.__setattr__(self, "first_units", tuple(units[:-1]))

    def _climb(self, used: IntArray, rungs: IntArray, cost: IntArray) -> tuple[IntArray, IntArray]:
        new_used, new_rungs = advance_units(used, rungs, cost, self.increment_units)
        early = np.flatnonzero(rungs <= len(self.first_units))
        spent, height, left = used[early], rungs[early], cost[early]
        for number, increment in enumerate(self.first_units, start=1):
            here = height == number
            fits = here & (spent + left <= increment)
            spent[fits] += left[fits]
            over = here & ~fits
            # An empty rung takes as much as it spans; on one that is not the cost would not fit.
            left[over] -= np.where(spent[over] > 0, 0, increment)
            spent[over] = 0
            height[over] += 1
        above = np.flatnonzero(height > len(self.first_units))
        zero, one = np.zeros(above.size, dtype=np.int64), np.ones(above.size, dtype=np.int64)
        spent[above], further = advance_units(zero, one, left[above], self.increment_units)
        height[above] = np.minimum(len(self.first_units) + further, MAX_RUNGS)
        height[cost[early] == MAX_COST_UNITS] = MAX_RUNGS
        new_used[early], new_rungs[early] = spent, height
        return new_used, new_rungs

    def _bound(self, rungs: IntArray) -> FloatArray:
        if not self.first_units:
            return super()._bound(rungs)
        ends = np.cumsum([0, *self.first_units])
        further = rungs - len(self.first_units)
        countable = further <= (MAX_COST_UNITS - int(ends[-1])) // self.increment_units
        units = ends[np.minimum(rungs, len(self.first_units))]
        units += np.where(countable, np.maximum(further, 0), 0) * self.increment_units
        bound = from_units(units)
        high = super()._bound(further[~countable]) + bound[~countable]
        bound[~countable] = np.nextafter(high, math.inf)
        bound[rungs >= MAX_RUNGS] = math.inf
        return bound


def _checked_increments(increment: int | Sequence[int] | IntArray) -> IntArray:
    increments = np.atleast_1d(unit_array("increment", increment, MAX_BUDGET_UNITS))
    per_user = increments.ndim == 2 and increments.shape[1] == 1  # of whom there may be none
    shaped = per_user or (increments.ndim == 1 and increments.size > 0)
    if not shaped or increments.min(initial=1) < 1:
        allowed = "1 unit or more, one number, one per order, or one per user of shape (n, 1)"
        raise InvalidInput("increment", increment, allowed)
    return increments


def _check_shapes(used: IntArray, cost: IntArray, rungs: IntArray, increments: IntArray) -> None:
    if increments.ndim == 2:
        shapes = used.shape == increments.shape[:1]
    elif used.ndim == 1:
        shapes = increments.size == 1
    else:
        shapes = used.ndim == 2 and used.shape[1] == increments.size
    if not shapes:
        allowed = f"one row or column for each of {increments.size} increments"
        raise InvalidInput("used", used.shape, allowed)
    if cost.shape != used.shape:
        raise InvalidInput("cost", cost.shape, f"of the shape of used, {used.shape}")
    if rungs.shape != used.shape[:1]:
        raise InvalidInput("rungs", rungs.shape, f"one number for each of {len(used)} users")
