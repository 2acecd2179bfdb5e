"""Individual odometers: a bound on what each user has spent, which rises by ticks.

An odometer climbs rungs of a fixed increment D: each rung is a privacy filter with budget D, and
the bound is the number of rungs times D (Feldman and Zrnic, Alg. 5, Prop. 4.10). For a rung that is
fixed beforehand, the bound can be converted with the whole delta. At a time that outputs decide,
only its any-time epsilon holds (`accounting.Measure.any_time_epsilon`). At a single Rényi order
that needs no rungs: there the exact running sum holds.

Per user the bound depends on that user's data; it may be shown to that user alone (sec. 4.4).
Neighbouring datasets differ by adding or removing one user. For a bound in (epsilon, delta) see
`accounting.research.lecuyer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from accounting.exact.errors import InvalidInput
from accounting.exact.units import (
    MAX_BUDGET_UNITS,
    MAX_COST_UNITS,
)
from accounting.exact.validation import (
    IntArray,
    unit_array,
)

MAX_TICKS: Final = 2**61


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
        saturates at `MAX_TICKS`, and does so at once for a saturated cost: then nothing is known.

    Raises:
        InvalidInput: for units out of range or shapes that differ.
    """
    increments = _checked_increments(increment)
    spent = unit_array("used", used, MAX_BUDGET_UNITS)
    charge = unit_array("cost", cost, MAX_COST_UNITS)
    height = unit_array("rungs", rungs, MAX_TICKS)
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
        grown = climbed[rows] + np.minimum(most, MAX_TICKS) - row_empty
        grown[(row_charge == MAX_COST_UNITS).any(axis=1)] = MAX_TICKS
        climbed[rows] = np.minimum(grown, MAX_TICKS)
    return total, climbed


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
