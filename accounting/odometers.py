"""Individual odometers: a bound on what each user has spent, valid at data-dependent times.

The running sum of adaptively chosen costs is not by itself a guarantee at a time that depends on
the outputs. An odometer climbs rungs of a fixed step D instead: each rung is a privacy filter with
budget D, and the bound is the number of rungs times D (Feldman and Zrnic, Alg. 5 and Prop. 4.10).
Per user the bound depends on that user's data; it may be shown to that user alone (sec. 4.4).
Neighbouring data sets differ by adding or removing one user. For a bound in (epsilon, delta) see
`accounting.lecuyer`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.errors import InvalidInput
from accounting.rounding import product_up
from accounting.units import MAX_BUDGET_UNITS, MAX_COST_UNITS, UNIT_BITS, cost_units
from accounting.validation import (
    FloatArray,
    IntArray,
    positive_finite,
    renyi_orders,
    unit_array,
    user_count,
)

MAX_RUNGS: Final = 2**61


def advance_units(
    used: IntArray, rungs: IntArray, cost: IntArray, step: int | Sequence[int] | IntArray
) -> tuple[IntArray, IntArray]:
    """Return (used, rungs) after a step that was charged `cost`.

    `used`: units spent on the current rung, shape (n,) or (n, k), at the start 0; `rungs`: int64
    (n,), at the start 1; `cost`: units, of the shape of `used`; `step`: units of D, one number or
    one per order, 1 to `MAX_BUDGET_UNITS`. The bound at an order is rungs times its step.

    - A cost that fits on the current rung is added to `used`; zero always fits.
    - Else the filter restarts with this cost counted (Alg. 5): with K the largest over the orders
      of ceil(cost / D), `rungs` grows by K, or by K - 1 if the current rung is empty (nothing used
      at any order), and `used` is what stands on the last rung, max(cost - (K - 1) D, 0). All
      orders share one schedule: all must fit, else all restart.

    For costs of at most D this is Alg. 5 (K = 1). Larger costs are sound for the same reason: at
    every time the sum of costs is at most (rungs - 1) D + used <= rungs D, so to stop before the
    bound exceeds m D is a filter with budget m D (Thm 3.1, 4.3), for each fixed m.

    `rungs` saturates at `MAX_RUNGS`, and does so at once for a saturated cost; then nothing is
    known. Raises `InvalidInput` for units out of range or shapes that differ.
    """
    steps = _checked_steps(step)
    spent = unit_array("used", used, MAX_BUDGET_UNITS)
    charge = unit_array("cost", cost, MAX_COST_UNITS)
    height = unit_array("rungs", rungs, MAX_RUNGS)
    _check_shapes(spent, charge, height, steps)
    # used <= 2**61 and cost <= 2**62, so the sum is exact.
    total = spent + charge
    over = total > steps
    rows = np.flatnonzero(over if over.ndim == 1 else over.any(axis=1))
    climbed = height.copy()
    if rows.size:
        # The same rule for one order and for several: rows of shape (rows, k).
        row_charge = charge[rows].reshape(rows.size, -1)
        row_empty = ~spent[rows].reshape(rows.size, -1).any(axis=1)
        needed = -(-row_charge // steps)
        most = needed.max(axis=1)
        # Only an order that needs all the rungs has anything standing on the last one.
        last = np.where(needed == most[:, np.newaxis], row_charge - (needed - 1) * steps, 0)
        total[rows] = last.reshape(total[rows].shape)
        # At most 2**61 + 2**61.
        grown = climbed[rows] + np.minimum(most, MAX_RUNGS) - row_empty
        grown[(row_charge == MAX_COST_UNITS).any(axis=1)] = MAX_RUNGS
        climbed[rows] = np.minimum(grown, MAX_RUNGS)
    return total, climbed


@dataclass(frozen=True, init=False)
class _Odometer:
    """An odometer with one step. `step_units`: D in units, rounded up.

    The state is an int64 array of shape (n, 2) that the caller owns: (used, rungs) of each user.
    """

    step_units: int

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing: on an empty first rung."""
        state = np.zeros((user_count("n", n), 2), dtype=np.int64)
        state[:, 1] = 1
        return state

    def advance(self, state: IntArray, cost: npt.ArrayLike) -> tuple[IntArray, FloatArray]:
        """Return (new_state, bound) after a step; see `advance_units`.

        `cost`: float64 (n,), >= 0, in the unit of the bound, rounded up. `bound`: float64 (n,),
        rounded up; infinite after a cost that no budget could pay.
        """
        columns = np.asarray(state)
        if columns.ndim != 2 or columns.shape[1] != 2:
            raise InvalidInput("state", columns.shape, "of shape (n, 2), as initial_state gives it")
        used, rungs = advance_units(
            np.ascontiguousarray(columns[:, 0]),
            np.ascontiguousarray(columns[:, 1]),
            cost_units(cost),
            self.step_units,
        )
        return np.stack([used, rungs], axis=1), self._bound(rungs)

    def _bound(self, rungs: IntArray) -> FloatArray:
        # A number of rungs above 2**53 is rounded up to the next float64 first.
        nearest = rungs.astype(np.float64)
        nearest[nearest.astype(np.int64) < rungs] *= 1.0 + 2.0**-52
        step = Fraction(self.step_units, 2**UNIT_BITS)
        bound = product_up(_float_up(step), nearest)
        bound[rungs >= MAX_RUNGS] = math.inf
        return bound

    def _set_step(self, step: Fraction) -> None:
        units = math.ceil(step * 2**UNIT_BITS)
        if units > MAX_BUDGET_UNITS:
            raise InvalidInput("step", float(step), f"at most {MAX_BUDGET_UNITS >> UNIT_BITS}")
        object.__setattr__(self, "step_units", units)


@dataclass(frozen=True, init=False)
class RenyiTracker(_Odometer):
    """A bound on the Renyi divergence at one order (Feldman and Zrnic, Alg. 5).

    `order`: > 1, at most 2**40; `step`: D, in nats, > 0. Costs and bounds are in nats at
    that order.
    """

    order: float

    def __init__(self, order: float, step: float) -> None:
        object.__setattr__(self, "order", float(renyi_orders("order", [order])[0]))
        self._set_step(Fraction(positive_finite("step", step)))


class GdpOdometer(_Odometer):
    """A bound on mu squared (Koskela et al., App. C.5); the root of the bound is mu.

    `step`: in mu, > 0; a rung is step squared. Costs and bounds are in mu squared, in which
    Gaussian steps add up. Gaussian steps only.
    """

    def __init__(self, step: float) -> None:
        self._set_step(Fraction(positive_finite("step", step)) ** 2)


def _float_up(value: Fraction) -> float:
    nearest = float(value)
    return math.nextafter(nearest, math.inf) if Fraction(nearest) < value else nearest


def _checked_steps(step: int | Sequence[int] | IntArray) -> IntArray:
    steps = unit_array("step", np.atleast_1d(np.asarray(step)), MAX_BUDGET_UNITS)
    if steps.ndim != 1 or steps.size == 0 or steps.min() < 1:
        raise InvalidInput("step", step, "1 unit or more, one number or one per order")
    return steps


def _check_shapes(used: IntArray, cost: IntArray, rungs: IntArray, steps: IntArray) -> None:
    if used.ndim == 1 and steps.size == 1:
        pass
    elif used.ndim != 2 or used.shape[1] != steps.size:
        raise InvalidInput("used", used.shape, f"one column for each of {steps.size} steps")
    if cost.shape != used.shape:
        raise InvalidInput("cost", cost.shape, f"of the shape of used, {used.shape}")
    if rungs.shape != used.shape[:1]:
        raise InvalidInput("rungs", rungs.shape, f"one number for each of {len(used)} users")
