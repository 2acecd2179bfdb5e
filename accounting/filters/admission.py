"""The budget rule: a charge that fits is spent in full, and one that does not fit is not charged.

`fits` is the only place that decides whether a budget can pay: filters, and charges by norms and of
rosters (`accounting.filters.payment`), call it. A charge must fit at *every* order: Feldman and
Zrnic, Remark 4.4; that some order still holds is not proven to be enough when costs are chosen
adaptively.

A budget of b units, in real numbers, counts as B = floor(b), and a cost of c units is charged as
ceil(c). A user with the spend s is charged if s + ceil(c) <= B. So s is never below the sum of the
admitted costs, and this sum never exceeds b, in any mixture and order of steps.

Rounding is against the spender, by less than one unit of 2**-44 for the budget and for each charge.
So a cost of exactly the budget is admitted if the budget is a whole number of units, and otherwise
denied.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from accounting.exact.argument_checks import BoolArray, IntArray

_BLOCK: Final = 32768  # users at a time, so that the second read hits the cache


def fits(
    spent: IntArray, cost: IntArray, limits: IntArray, total: IntArray | None = None
) -> BoolArray:
    """Return which users can pay, (n,): spent + cost is within the limits at every order.

    Args:
        spent: int64 units, at most `MAX_BUDGET_UNITS`, shape (n,) or (n, k).
        cost: int64 units, at most `MAX_COST_UNITS`, of the shape of `spent`.
        limits: units that may be spent: one number, one per order, or of the shape of `spent`.
        total: an array of the shape of `spent` that receives spent + cost.
    """
    # spent <= 2**61 and cost <= 2**62, so the sum is exact.
    within = np.add(spent, cost, out=total) <= limits
    return within if within.ndim == 1 else np.asarray(within.all(axis=1))


def pay(spent: IntArray, cost: IntArray, limits: IntArray) -> tuple[IntArray, BoolArray]:
    """Return (new_spent, admitted): spent + cost where it fits, otherwise spent; see `fits`.

    A row that is denied at one order is charged at none.
    """
    total = np.empty(spent.shape, dtype=np.int64)
    admitted = np.empty(len(spent), dtype=np.bool_)
    for start in range(0, len(spent), _BLOCK):
        block = slice(start, start + _BLOCK)
        sums, units = total[block], limits[block] if limits.shape == spent.shape else limits
        some = admitted[block] = fits(spent[block], cost[block], units, sums)
        if not some.all():
            # A product with 0 or 1 takes the same time for any pattern of denied users.
            np.multiply(cost[block].T, some, out=sums.T)
            sums += spent[block]
    return total, admitted
