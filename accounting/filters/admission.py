"""The budget rule: a charge that fits is spent in full, and one that does not fit is not charged.

The state is an int64 array of spent units, one row per user, which the caller owns; functions
return a new one. There is one budget for state of shape (n,), or one per Rényi order for state of
shape (n, k). A charge must fit at *every* order: Feldman and Zrnic, Remark 4.4; that some order
still holds is not proven to be enough when costs are chosen adaptively.

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

from accounting.exact.errors import InvalidInput
from accounting.exact.units import MAX_COST_UNITS
from accounting.exact.validation import BoolArray, IntArray, unit_array

_BLOCK: Final = 32768  # users at a time, so that the second read hits the cache


def admit_within(
    budgets: tuple[int, ...], state: IntArray, cost: IntArray
) -> tuple[IntArray, BoolArray]:
    """Return (new_state, admitted): spent + cost where it fits, otherwise spent.

    A row that is denied at one order is charged at none.

    Args:
        budgets: units, one or k.
        state: int64 units, shape (n,) or (n, k).
        cost: int64 units, of the shape of the state.

    Returns:
        The new state, and bool of shape (n,).

    Raises:
        InvalidInput: for state above the budget, negative units, or shapes that differ.
    """
    spent = checked_state(budgets, state)
    charge = unit_array("cost", cost, MAX_COST_UNITS)
    if charge.shape != spent.shape:
        raise InvalidInput("cost", charge.shape, f"of the shape of the state, {spent.shape}")
    # spent <= 2**61 and charge <= 2**62, so the sum is exact.
    if spent.ndim == 1:
        return _admit_one_budget(budgets[0], spent, charge)
    total = spent + charge
    fits = np.asarray((total <= np.array(budgets)).all(axis=1))
    np.copyto(total, spent, where=~fits[:, np.newaxis])
    return total, fits


def _admit_one_budget(budget: int, spent: IntArray, charge: IntArray) -> tuple[IntArray, BoolArray]:
    """Return `admit_within` for checked arrays of shape (n,)."""
    total = np.empty(spent.shape, dtype=np.int64)
    admitted = np.empty(spent.shape, dtype=np.bool_)
    for start in range(0, spent.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        sums, fits = total[block], admitted[block]
        np.add(spent[block], charge[block], out=sums)
        np.less_equal(sums, budget, out=fits)
        if not fits.all():
            # A product with 0 or 1 takes the same time for any pattern of denied users.
            np.multiply(charge[block], fits, out=sums)
            sums += spent[block]
    return total, admitted


def checked_state(budgets: tuple[int, ...], state: IntArray) -> IntArray:
    """Return `state` if every entry is between 0 and its budget, or raise `InvalidInput`."""
    spent = unit_array("state", state, max(budgets))
    if spent.ndim == 1 and len(budgets) == 1:
        return spent
    if spent.ndim != 2 or spent.shape[1] != len(budgets):
        shape = "(n,)" if len(budgets) == 1 else f"(n, {len(budgets)})"
        raise InvalidInput("state", spent.shape, f"of shape {shape}, as returned by initial_state")
    if bool((spent > np.array(budgets)).any()):
        raise InvalidInput("state", spent.max(axis=0).tolist(), f"at most the budgets {budgets}")
    return spent
