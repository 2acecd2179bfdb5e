"""One step of a block of users, in one account and in several: who pays what, and until when.

A seat is a block of users in one account. What the filter and the odometer of that account do with
them at this step is carried out here, and from what it leaves behind follows how many more steps of
the same charge nothing else can happen to them.

Something happens to few: to whom the charge brings within a unit of the budget, or beyond it or
the end of the rung. For the others one subtraction says that the filter admits, that the odometer
stays and that something is left; only the few are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.costs.tariffs import LevelArray
from accounting.exact.validation import BoolArray, FloatArray, IntArray
from accounting.filters.slot_map import Rows
from accounting.filters.terms import AccountTerms, BalanceColumns
from accounting.odometers import advance_units

NOBODY: Final = np.empty(0, dtype=np.int64)
_SHAVE: Final = 1.0 - 2.0**-50


class AccountCostTable:
    """What a tariff charges in one account, and what users look up there, in cells.

    A cell is a level, or with orders "own" a level and an order: for the users at a level and an
    order everything but what they have spent is the same.

    Args:
        terms: of the account.
        tariff: checked, for these terms.
    """

    def __init__(self, terms: AccountTerms, tariff: IntArray) -> None:
        self.terms, self.tariff = terms, tariff
        self.limits = np.array(terms.budgets, dtype=np.int64)
        self.increments = np.array(terms.increments, dtype=np.int64)
        own = terms.orders == "own"
        # Of one order in a row: few orders are in use, whose cells then lie together.
        self._charges = tariff.T.reshape(-1) if own else tariff
        # Below 1 / charge by more than what float64 rounds: see `AccountBlock.quiet_steps`.
        with np.errstate(divide="ignore"):
            self._quotients = _SHAVE / self._charges.astype(np.float64)

    def cells(self, levels: LevelArray, order: IntArray | None) -> IntArray:
        """Return the cells of users at these levels and orders, as indices."""
        cells = levels.astype(np.intp)
        if order is not None:
            cells += order * len(self.tariff)
        return cells

    def charges(self, cells: IntArray) -> IntArray:
        """Return what users are charged, (m,) or (m, k)."""
        return self._charges.take(cells, axis=0)

    def quotients(self, cells: IntArray) -> FloatArray:
        """Return almost one divided by these; infinity for a charge of nothing."""
        return self._quotients.take(cells, axis=0)


class AccruedSteps(NamedTuple):
    """Steps for which a block of users is still to be charged, in one account.

    Attributes:
        tables: at which they were taken.
        granted: in each of them, uint8, shape (m,).
        elapsed: how many they are, int64, shape (m,).
    """

    tables: AccountCostTable
    granted: LevelArray
    elapsed: IntArray

    def units(self, order: IntArray | None) -> IntArray:
        """Return what users of these orders owe, (m,) or (m, k)."""
        charge = self.tables.charges(self.tables.cells(self.granted, order))
        charge *= self.elapsed if charge.ndim == 1 else self.elapsed[:, np.newaxis]
        return charge


class AccountBlock:
    """A block of m users in one account, during one step: their numbers, and what they pay.

    Args:
        tables: of the account and the tariff of the step.
        balances: of the account.
        rows: of the users in them; order: that they are bound to, if they are.
        levels: at which the users ask to be charged, uint8, shape (m,).
        arrears: what they are charged before.

    Attributes:
        close: whom paying would leave nothing, or take beyond the budget or the rung; indices.
    """

    def __init__(
        self,
        tables: AccountCostTable,
        balances: BalanceColumns,
        rows: Rows,
        order: IntArray | None,
        levels: LevelArray,
        arrears: AccruedSteps | None = None,
    ) -> None:
        self._tables, self._balances, self._rows, self._order = tables, balances, rows, order
        self._cells = tables.cells(levels, order)
        self._charge = tables.charges(self._cells)
        self._spent = balances.spent[rows]  # of a slice, the balances themselves
        if arrears is not None:
            self._spent += arrears.units(order)
        # How much more could be spent before anything happens: the nearer end decides.
        self._room = balances.base[rows] + self._each(tables.increments)
        np.minimum(self._room, self._each(tables.limits), out=self._room)
        self._room -= self._spent
        self._room -= self._charge
        self.close = NOBODY
        if self._room.min(initial=1) <= 0:
            self.close = np.flatnonzero(_any_order(self._room <= 0))

    def short(self) -> IntArray:
        """Return who cannot pay, as indices."""
        close = self.close
        over = self._spent[close] + self._charge[close] > self._each(self._tables.limits, close)
        return close[_any_order(over)]

    def highest_level(self, users: IntArray) -> LevelArray:
        """Return the highest level that each of these users, as indices, can pay for."""
        tariff, orders = self._tables.tariff, self._tables.terms.orders
        left = self._each(self._tables.limits, users) - self._spent[users]
        if orders == "none":
            return _highest(tariff, left)
        levels = np.full(users.size, len(tariff) - 1, dtype=np.uint8)
        for index in range(self._tables.limits.size):
            if self._order is None:
                np.minimum(levels, _highest(tariff[:, index], left[:, index]), out=levels)
            else:
                members = self._order[users] == index
                levels[members] = _highest(tariff[:, index], left[members])
        return levels

    def ask_for(self, users: IntArray, levels: LevelArray) -> None:
        """Charge these users, as indices, at other levels, none of them higher."""
        order = None if self._order is None else self._order[users]
        self._cells[users] = self._tables.cells(levels, order)
        self._room[users] += self._charge[users]
        self._charge[users] = self._tables.charges(self._cells[users])
        self._room[users] -= self._charge[users]

    def pay(self) -> tuple[IntArray, IntArray]:
        """Write what the charges, all of which fit, make of the balances.

        Returns:
            Whose odometer rose or restarted, as indices, and the rungs of these before.
        """
        balances, rows, close = self._balances, self._rows, self.close
        self._spent += self._charge
        if not isinstance(rows, slice):
            balances.spent[rows] = self._spent
        if not close.size:
            return close, close
        slots = rows.start + close if isinstance(rows, slice) else rows[close]
        charge, total, base = self._charge[close], self._spent[close], balances.base[slots]
        increment, limit = (
            self._each(units, close) for units in (self._tables.increments, self._tables.limits)
        )
        rung_end = base + increment
        over = np.flatnonzero(_any_order(total > rung_end))
        before = balances.rungs[slots[over]]
        each = increment if self._order is None else increment[over, np.newaxis]
        used, risen = advance_units(
            total[over] - charge[over] - base[over], before, charge[over], each
        )
        later = total[over] - used
        # At the largest number of rungs it restarts and does not rise.
        restarted = (risen != before) | _any_order(later != base[over])
        base[over] = later
        rung_end = base + increment
        balances.base[slots[over]], balances.rungs[slots[over]] = later, risen
        self._room[close] = np.minimum(rung_end, limit) - total
        return close[over[restarted]], before[restarted]

    def pay_nothing(self) -> None:
        """Look at what is left as after a step that was paid before."""
        self._room += self._charge

    def exhausted(self, users: IntArray) -> BoolArray:
        """Return who of these, as indices, has nothing left at some order; after paying."""
        return _any_order(self._spent[users] >= self._each(self._tables.limits, users))

    def quiet_steps(self) -> FloatArray:
        """Return how often the charge can be repeated before something happens; after paying.

        After so many steps of the same charge, whole or not, another one would spend a budget to
        the last unit, or not be admitted, or raise the odometer; never too many, and too few by one
        at most. Shape (m,); infinity or NaN for a charge of nothing.
        """
        # Four roundings, each within a relative 2**-53. Below the exact quotient, so that what is
        # exactly a whole number counts as the one before: that is the step that spends the last.
        with np.errstate(invalid="ignore"):
            steps = self._room.astype(np.float64)
            steps *= self._tables.quotients(self._cells)
        return steps if steps.ndim == 1 else np.asarray(np.fmin.reduce(steps, axis=1))

    def can_repeat(self, times: IntArray) -> BoolArray:
        """Return whether the charge can be repeated so often, and nothing happen; not paid yet."""
        room = self._room + self._charge
        count = times if room.ndim == 1 else times[:, np.newaxis]
        return _all_orders((self._charge == 0) | (count <= room // np.maximum(self._charge, 1)))

    def _each(self, units: IntArray, users: IntArray | None = None) -> IntArray:
        """Return one number, one per order, or the own one of each user, or of some."""
        if self._order is None:
            return units if self._tables.terms.orders == "all" else np.asarray(units[0])
        return units.take(self._order if users is None else self._order[users])


def grant(
    seats: Sequence[AccountBlock], asked: LevelArray, *, clip: bool
) -> tuple[LevelArray, npt.NDArray[np.uint8]]:
    """Settle what level each user is charged at: that asked for, if every account can pay it.

    With `clip` it is else the highest that every account can pay, which is the least of the highest
    that each can pay alone, since a tariff never falls.

    Returns:
        The levels granted, and, (m,), the first account that cannot pay what was asked for; with
        `clip`, the first of those that can pay for least, so that it is the first that can pay for
        nothing if nothing is granted.
    """
    refused_by = np.zeros(asked.size, dtype=np.uint8)
    refusals = [seat.short() for seat in seats]
    short = refusals[0] if len(seats) == 1 else np.unique(np.concatenate(refusals))
    if not short.size:
        return asked, refused_by
    granted, levels = asked.copy(), np.zeros(short.size, dtype=np.uint8)
    if clip:
        highest = np.stack([seat.highest_level(short) for seat in seats])
        levels, refused_by[short] = highest.min(axis=0), highest.argmin(axis=0)
    else:
        for index, refused in reversed(list(enumerate(refusals))):
            refused_by[refused] = index
    granted[short] = levels
    for seat in seats:
        seat.ask_for(short, levels)
    return granted, refused_by


def quiet_steps(seats: Sequence[AccountBlock]) -> FloatArray:
    """Return for how many steps nothing happens to each user in any account, (m,)."""
    return reduce(np.fmin, [seat.quiet_steps() for seat in seats])


def _all_orders(holds: npt.NDArray[np.bool_]) -> BoolArray:
    return holds if holds.ndim == 1 else np.asarray(holds.all(axis=1))


def _any_order(holds: npt.NDArray[np.bool_]) -> BoolArray:
    return holds if holds.ndim == 1 else np.asarray(holds.any(axis=1))


def _highest(tariff: IntArray, left: IntArray) -> LevelArray:
    return np.asarray(tariff.searchsorted(left, side="right") - 1).astype(np.uint8)
