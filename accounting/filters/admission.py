"""The budget rule: a charge that fits is spent in full, and one that does not fit is not charged.

The state is an int64 array of spent units, one row per user, which the caller owns; functions
return a new one. There is one budget for state of shape (n,), or one per Rényi order for state of
shape (n, k). A charge must fit at *every* order: Feldman and Zrnic, Remark 4.4; that some order
still holds is not proven to be enough when costs are chosen adaptively.

A budget is B units and a rest of less than one unit, 0 <= r < 1. A cost is c units, charged as
ceil(c) whole units. The spend s is in whole units.

    in whole units    s + ceil(c) <= B, or c = 0   if only the charge in units is known
    exactly           s + c <= B + r, or c = 0     if the cost itself is known

Both keep the sum of the costs of all admitted steps at B + r or less, in any mixture and order:

- s never falls below that sum, because an admitted step is charged ceil(c) >= c.
- In whole units, the sum is at most s + ceil(c) <= B afterwards. Exactly, it is at most
  s + c <= B + r.
- s itself may end above B + r, but by less than one unit: at B + 1, and only if r > 0. Then
  only c = 0 is admitted.

The two rules differ only on the last whole unit. If s + ceil(c) <= B both admit. If s + ceil(c) is
B + 2 or more, then s + c > B + 1 > B + r, and both deny. In between, where s + ceil(c) = B + 1,
the exact rule admits if the part of c beyond whole units, c - ceil(c) + 1 > 0, is at most r. So a
single cost of exactly the budget is admitted, and all that `remaining` returns can be spent.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from accounting.exact.errors import InvalidInput
from accounting.exact.rounding import DOWN, moved
from accounting.exact.units import MAX_COST_UNITS, UNIT_BITS, from_units_down
from accounting.exact.validation import BoolArray, FloatArray, IntArray, real_number, unit_array

Positions: TypeAlias = tuple[npt.NDArray[np.intp], ...]  # as np.nonzero gives them
# Returns, for the entries at some positions, whether the rest of the budget pays for the part of
# the cost beyond whole units.
PaysFromRest: TypeAlias = Callable[[Positions], BoolArray]

_BLOCK: Final = 32768  # users at a time, so that the second read hits the cache


def admit_within(
    budgets: tuple[int, ...],
    state: IntArray,
    cost: IntArray,
    rests: tuple[Fraction, ...] = (),
    pays: PaysFromRest | None = None,
) -> tuple[IntArray, BoolArray]:
    """Return (new_state, admitted): spent + cost where it fits, otherwise spent.

    A row that is denied at one order is charged at none.

    Args:
        budgets: whole units, one or k.
        state: int64 units, shape (n,) or (n, k).
        cost: int64 units, of the shape of the state.
        rests: of the budgets, in units; empty if the budgets are whole.
        pays: decides on the last unit; if not given, the rule in whole units decides.

    Returns:
        The new state, and bool of shape (n,).

    Raises:
        InvalidInput: for state above the budget, negative units, or shapes that differ.
    """
    spent = checked_state(budgets, state, rests)
    charge = unit_array("cost", cost, MAX_COST_UNITS)
    if charge.shape != spent.shape:
        raise InvalidInput("cost", charge.shape, f"of the shape of the state, {spent.shape}")
    # spent <= 2**61 and charge <= 2**62, so the sum is exact.
    if spent.ndim == 1 and not rests:
        return _admit_one_budget(budgets[0], spent, charge)
    total = spent + charge
    fits = fitting(budgets, total, charge, rests, pays)
    if fits.ndim == 1:
        np.copyto(total, spent, where=~fits)
        return total, fits
    every_order = np.asarray(fits.all(axis=1))
    np.copyto(total, spent, where=~every_order[:, np.newaxis])
    return total, every_order


def fitting(
    budgets: tuple[int, ...],
    total: IntArray,
    charge: IntArray,
    rests: tuple[Fraction, ...] = (),
    pays: PaysFromRest | None = None,
) -> BoolArray:
    """Return whether each charge fits, where `total` is the spend with it; of the same shape."""
    whole = np.array(budgets)
    fits: BoolArray = np.asarray(total <= whole)
    if rests and not fits.all():
        denied = np.nonzero(~fits)
        free = charge[denied] == 0
        fits[_part(denied, free)] = True
        if pays is not None:
            last_unit = total[denied] == np.broadcast_to(whole, total.shape)[denied] + 1
            edge = _part(denied, last_unit & ~free)
            fits[edge] = pays(edge)
    return fits


def rests_pay(rests: tuple[Fraction, ...], costs: FloatArray) -> PaysFromRest:
    """Return the decision for known `costs`: float64, in the unit of the measure."""

    def pays(edge: Positions) -> BoolArray:
        scaled = costs[edge] * 2.0**UNIT_BITS  # exact, as is the difference below
        beyond = scaled - np.floor(scaled)
        beyond[beyond == 0.0] = 1.0  # the last unit is a whole one
        return np.asarray(beyond <= np.broadcast_to(_rest_floats(rests), costs.shape)[edge])

    return pays


def _admit_one_budget(budget: int, spent: IntArray, charge: IntArray) -> tuple[IntArray, BoolArray]:
    """Return `admit_within` for checked arrays of shape (n,) and a budget in whole units."""
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


def remaining_within(
    budgets: tuple[int, ...], state: IntArray, rests: tuple[Fraction, ...] = ()
) -> FloatArray:
    """Return the remaining budget rounded down to float64, in the unit of the measure.

    It is the largest cost that the exact rule admits; of the shape of `state`.
    """
    spent = checked_state(budgets, state, rests)
    whole = np.array(budgets) - spent
    if not rests:
        return from_units_down(whole)
    within = whole >= 0
    rest = np.where(within, _rest_floats(rests), 0.0)
    np.maximum(whole, 0, out=whole)
    nearest = whole.astype(np.float64)
    total = nearest + rest
    # The sum minus the whole units is exact below 2**53, and may exceed the rest.
    total = moved(total, total - nearest > rest, DOWN) * 2.0**-UNIT_BITS
    return np.where(whole < 2**53, total, from_units_down(whole))


def exhausted_within(
    budgets: tuple[int, ...], state: IntArray, rests: tuple[Fraction, ...] = ()
) -> BoolArray:
    """Return whether a user has nothing left at one order or more; shape (n,)."""
    spent = checked_state(budgets, state, rests)
    full = np.asarray(spent == limits(budgets, rests))
    return full if spent.ndim == 1 else np.asarray(full.any(axis=1))


def limits(budgets: tuple[int, ...], rests: tuple[Fraction, ...] = ()) -> IntArray:
    """Return the spend at which nothing is left of each budget; a rest counts as a whole unit."""
    ends: IntArray = np.array(budgets, dtype=np.int64)
    if rests:
        ends += np.array([rest > 0 for rest in rests])
    return ends


def checked_state(
    budgets: tuple[int, ...], state: IntArray, rests: tuple[Fraction, ...] = ()
) -> IntArray:
    """Return `state` if every entry is between 0 and its limit, or raise `InvalidInput`."""
    spent = unit_array("state", state, max(budgets) + bool(rests))
    if spent.ndim == 1 and len(budgets) == 1:
        return spent
    if spent.ndim != 2 or spent.shape[1] != len(budgets):
        shape = "(n,)" if len(budgets) == 1 else f"(n, {len(budgets)})"
        raise InvalidInput("state", spent.shape, f"of shape {shape}, as returned by initial_state")
    if bool((spent > limits(budgets, rests)).any()):
        raise InvalidInput("state", spent.max(axis=0).tolist(), f"at most the budgets {budgets}")
    return spent


def _part(positions: Positions, chosen: BoolArray) -> Positions:
    return tuple(axis[chosen] for axis in positions)


def _rest_floats(rests: tuple[Fraction, ...]) -> FloatArray:
    """Return the largest numbers of units at most `rests` that are also float64 in nats."""
    nats = [real_number("budget", rest / 2**UNIT_BITS, DOWN) for rest in rests]
    return np.array(nats) * 2.0**UNIT_BITS
