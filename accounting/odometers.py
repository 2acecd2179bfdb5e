"""Individual odometers: a bound on what each user has spent, which rises by ticks.

An odometer counts ticks of a fixed size D. Each tick is a privacy filter with budget D, and the
bound is the number of ticks times D (Feldman and Zrnic, Alg. 5, Prop. 4.10). For a tick that is
fixed in advance, the bound may be converted with the whole delta. At a time that outputs decide,
only its any-time epsilon holds (`accounting.Measure.epsilon`). A single Rényi order needs
no ticks for that: the exact running sum holds there.

A user's bound depends on that user's data, and may be shown to that user alone (sec. 4.4).
Neighbouring datasets differ by adding or removing one user. `accounting.research` has odometers in
other units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from accounting.exact.argument_checks import IntArray
from accounting.exact.units import MAX_COST_UNITS

MAX_TICKS: Final = 2**61


def advance_units(
    used: IntArray, ticks: IntArray, cost: IntArray, tick_size: int | Sequence[int] | IntArray
) -> tuple[IntArray, IntArray]:
    """Return (used, ticks) after a step that was charged `cost`.

    - A cost that fits into the current tick is added to `used`; zero always fits.
    - Otherwise the filter restarts with this cost counted (Alg. 5). With K the largest
      ceil(cost / D) over the orders, `ticks` grows by K, or by K - 1 if the current tick is empty
      (nothing used at any order), and `used` is what falls on the last tick,
      max(cost - (K - 1) D, 0). All orders share one schedule: either all fit, or all restart.

    For costs of at most D this is Alg. 5 (K = 1). Larger costs are sound for the same reason: at
    every time the sum of costs is at most (ticks - 1) D + used <= ticks D. So stopping before the
    bound exceeds m D is a filter with budget m D (Thm 3.1, 4.3), for each fixed m.

    Args:
        used: int64 units spent on the current tick, shape (n,) or (n, k), initially 0.
        ticks: int64, shape (n,), initially 1.
        cost: int64 units, of the shape of `used`, up to `MAX_COST_UNITS`.
        tick_size: units of D, 1 to `MAX_BUDGET_UNITS`: one number, or one per order for `used` of
            shape (n, k), or one per user, of shape (n, 1), for `used` of shape (n,).

    Returns:
        Arrays of the shapes given. The bound at an order is ticks times its tick size. `ticks`
        saturates at `MAX_TICKS`, immediately if a cost is saturated: then nothing is known.
    """
    # used <= 2**61 and cost <= 2**62, so the sum is exact.
    total = used + cost
    sizes = np.atleast_1d(tick_size)
    over = total > (sizes[:, 0] if sizes.ndim == 2 else sizes)
    rows = np.flatnonzero(over if over.ndim == 1 else over.any(axis=1))
    climbed = ticks.copy()
    if rows.size:
        # The same rule for one order and for several: rows of shape (rows, k).
        if sizes.ndim == 2:
            sizes = sizes[rows]
        row_charge = cost[rows].reshape(rows.size, -1)
        row_empty = ~used[rows].reshape(rows.size, -1).any(axis=1)
        needed = -(-row_charge // sizes)
        most = needed.max(axis=1)
        # Only an order that needs all these ticks uses anything of the last one.
        last = np.where(needed == most[:, np.newaxis], row_charge - (needed - 1) * sizes, 0)
        total[rows] = last.reshape(total[rows].shape)
        # At most 2**61 + 2**61.
        grown = climbed[rows] + np.minimum(most, MAX_TICKS) - row_empty
        grown[(row_charge == MAX_COST_UNITS).any(axis=1)] = MAX_TICKS
        climbed[rows] = np.minimum(grown, MAX_TICKS)
    return total, climbed
