"""The one budget rule, on units: what fits is spent, what does not fit is not charged.

State is an int64 array of spent units, one row per user, which the caller owns; functions return a
new one. `budgets` holds one number, for state of shape (n,), or one per Renyi order, for state of
shape (n, k); a charge must fit at *every* order (Feldman and Zrnic, Remark 4.4: that some order
still holds is not proven to be enough when costs are chosen adaptively).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from accounting.errors import InvalidInput
from accounting.units import MAX_COST_UNITS
from accounting.validation import BoolArray, IntArray, unit_array

_BLOCK: Final = 32768  # users at a time, so that what is read twice is still in the cache


def admit_within(
    budgets: tuple[int, ...], state: IntArray, cost: IntArray
) -> tuple[IntArray, BoolArray]:
    """Return (new_state, admitted): spent + cost where this is at most the budget, else spent.

    `state`, `cost`: int64 units of one shape, (n,) or (n, k). `admitted`: bool, shape (n,). A row
    that is denied at one order is charged at none. Raises `InvalidInput` for state above the
    budget, negative units, or shapes that differ.
    """
    spent = checked_state(budgets, state)
    charge = unit_array("cost", cost, MAX_COST_UNITS)
    if charge.shape != spent.shape:
        raise InvalidInput("cost", charge.shape, f"of the shape of the state, {spent.shape}")
    # spent <= 2**61 and charge <= 2**62, so the sum is exact.
    if spent.ndim == 1:
        return _admit_one_budget(budgets[0], spent, charge)
    total = spent + charge
    every_order = np.asarray((total <= np.array(budgets)).all(axis=1))
    np.copyto(total, spent, where=~every_order[:, np.newaxis])
    return total, every_order


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
            # A product with 0 or 1 takes the same time however the denied lie among the admitted.
            np.multiply(charge[block], fits, out=sums)
            sums += spent[block]
    return total, admitted


def remaining_within(budgets: tuple[int, ...], state: IntArray) -> IntArray:
    """Return budget - spent, in units, of the shape of `state`."""
    spent = checked_state(budgets, state)
    return (budgets[0] if spent.ndim == 1 else np.array(budgets)) - spent


def exhausted_within(budgets: tuple[int, ...], state: IntArray) -> BoolArray:
    """Return whether nothing is left, at some order at least; shape (n,)."""
    spent = checked_state(budgets, state)
    full = np.asarray(spent == (np.array(budgets) if spent.ndim == 2 else budgets[0]))
    return full if spent.ndim == 1 else np.asarray(full.any(axis=1))


def checked_state(budgets: tuple[int, ...], state: IntArray) -> IntArray:
    """Return `state` if every entry lies between 0 and its budget, else raise `InvalidInput`."""
    spent = unit_array("state", state, max(budgets))
    if spent.ndim == 1 and len(budgets) == 1:
        return spent
    if spent.ndim != 2 or spent.shape[1] != len(budgets):
        shape = "(n,)" if len(budgets) == 1 else f"(n, {len(budgets)})"
        raise InvalidInput("state", spent.shape, f"of shape {shape}, as initial_state gives it")
    if bool((spent > np.array(budgets)).any()):
        raise InvalidInput("state", spent.max(axis=0).tolist(), f"at most the budgets {budgets}")
    return spent
