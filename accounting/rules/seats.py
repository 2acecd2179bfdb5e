"""One step of a block of users, in one account and in several: who pays what, and until when.

A seat is a block of users in one account. What the filter and the odometer of that account do with
them at this step is carried out here, and from what it leaves behind follows how many more steps of
the same charge nothing else can happen to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.costs.tariffs import LevelArray
from accounting.exact.validation import BoolArray, FloatArray, IntArray
from accounting.rules.odometers import advance_units
from accounting.rules.slot_map import Rows
from accounting.rules.terms import Balances, Orders, Terms

_SHAVE: Final = 1.0 - 2.0**-50


class Seat:
    """A block of m users in one account, during one step: their numbers, and what they pay.

    Args:
        terms: of the account.
        balances: of the account.
        rows: of the users in them.
        tariff: of the step.
        levels: at which the users ask to be charged, uint8, shape (m,).
    """

    def __init__(
        self, terms: Terms, balances: Balances, rows: Rows, tariff: IntArray, levels: LevelArray
    ) -> None:
        self._terms, self._balances, self._rows, self._tariff = terms, balances, rows, tariff
        # As places in an array, which numpy would make of it at every use.
        self._order = balances.order[rows].astype(np.intp) if terms.orders == "own" else None
        self._limit = _each(terms.budgets, terms.orders, self._order)
        self._spent = balances.spent[rows]
        self._charge = terms.charges(tariff, levels, self._order)
        self._total = self._spent + self._charge

    def fits(self) -> BoolArray:
        """Return who can pay, (m,)."""
        return _all_orders(self._total <= self._limit)

    def highest_level(self, users: IntArray) -> LevelArray:
        """Return the highest level that each of these users, as indices, can pay for."""
        tariff, orders = self._tariff, self._terms.orders
        left = _some(self._limit, users, orders) - self._spent[users]
        if orders == "none":
            return _highest(tariff, left)
        levels = np.full(users.size, len(tariff) - 1, dtype=np.uint8)
        for index in range(len(self._terms.budgets)):
            if self._order is None:
                np.minimum(levels, _highest(tariff[:, index], left[:, index]), out=levels)
            else:
                members = self._order[users] == index
                levels[members] = _highest(tariff[:, index], left[members])
        return levels

    def ask_for(self, users: IntArray, levels: LevelArray) -> None:
        """Charge these users, as indices, at other levels."""
        order = None if self._order is None else self._order[users]
        self._charge[users] = self._terms.charges(self._tariff, levels, order)
        self._total[users] = self._spent[users] + self._charge[users]

    def pay(self) -> tuple[IntArray, IntArray]:
        """Write what the charges, all of which fit, make of the balances.

        Returns:
            Whose odometer rose, as indices, and the rungs of these before.
        """
        balances, rows, terms = self._balances, self._rows, self._terms
        increments = _each(terms.increments, terms.orders, self._order)
        base = balances.base[rows]
        self._rung_end = base + increments
        over = np.flatnonzero(_any_order(self._total > self._rung_end))
        balances.spent[rows] = self._total
        if not over.size:
            return over, over
        increment = _some(increments, over, terms.orders)
        before = balances.rungs[rows][over]
        used, risen = advance_units(
            self._total[over] - self._charge[over] - base[over],
            before,
            self._charge[over],
            increment if self._order is None else increment[:, np.newaxis],
        )
        restarted = self._total[over] - used
        self._rung_end[over] = restarted + increment
        slots = rows.start + over if isinstance(rows, slice) else rows[over]
        balances.base[slots], balances.rungs[slots] = restarted, risen
        # At the largest number of rungs it does not rise any more.
        climbed = risen != before
        return over[climbed], before[climbed]

    def exhausted(self) -> BoolArray:
        """Return who has nothing left, at some order at least, (m,); after paying."""
        return _any_order(self._total >= self._limit)

    def quiet_steps(self) -> FloatArray:
        """Return how often the charge can be repeated before something happens; after paying.

        After so many steps of the same charge, whole or not, another one would spend a budget to
        the last unit, or not be admitted, or raise the odometer; never too many, and too few by one
        at most. Shape (m,); infinity or NaN for a charge of nothing.
        """
        # Both ends are distances from the same spend: the nearer one decides.
        room = np.minimum(self._limit, self._rung_end)
        room -= self._total
        # Three roundings, each within a relative 2**-53. Below the exact quotient, so that what is
        # exactly a whole number counts as the one before: that is the step that spends the last.
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = room.astype(np.float64) / self._charge.astype(np.float64)
        steps *= _SHAVE
        return steps if steps.ndim == 1 else np.asarray(np.fmin.reduce(steps, axis=1))

    def can_repeat(self, times: IntArray) -> BoolArray:
        """Return whether the charge can be repeated so often, and nothing happen; not paid yet."""
        increments = _each(self._terms.increments, self._terms.orders, self._order)
        rung_end = self._balances.base[self._rows] + increments
        room = np.minimum(self._limit, rung_end) - self._spent
        count = times if room.ndim == 1 else times[:, np.newaxis]
        return _all_orders((self._charge == 0) | (count <= room // np.maximum(self._charge, 1)))


def grant(
    seats: Sequence[Seat], asked: LevelArray, *, clip: bool
) -> tuple[LevelArray, npt.NDArray[np.uint8]]:
    """Settle what level each user is charged at: that asked for, if every account can pay it.

    Returns:
        The levels granted, and the first account that cannot pay what was asked for, (m,).
    """
    refused_by = np.zeros(asked.size, dtype=np.uint8)
    admitted = np.ones(asked.size, dtype=np.bool_)
    for index, seat in reversed(list(enumerate(seats))):
        fits = seat.fits()
        if not fits.all():
            refused_by[~fits] = index
            admitted &= fits
    short = np.flatnonzero(~admitted)
    if not short.size:
        return asked, refused_by
    granted, levels = asked.copy(), np.zeros(short.size, dtype=np.uint8)
    if clip:
        levels = reduce(np.minimum, [seat.highest_level(short) for seat in seats])
    granted[short] = levels
    for seat in seats:
        seat.ask_for(short, levels)
    return granted, refused_by


def quiet_steps(seats: Sequence[Seat]) -> FloatArray:
    """Return for how many steps nothing happens to each user in any account, (m,)."""
    return reduce(np.fmin, [seat.quiet_steps() for seat in seats])


def _each(units: tuple[int, ...], orders: Orders, order: IntArray | None) -> IntArray:
    """Return one number, one per order, or each user's own."""
    numbers = np.array(units, dtype=np.int64)
    if orders == "none":
        return np.asarray(numbers[0])
    return numbers if order is None else np.asarray(numbers.take(order))


def _some(numbers: IntArray, users: IntArray, orders: Orders) -> IntArray:
    """Return those of some users of what `_each` gave."""
    return numbers[users] if orders == "own" else numbers


def _all_orders(holds: npt.NDArray[np.bool_]) -> BoolArray:
    return holds if holds.ndim == 1 else np.asarray(holds.all(axis=1))


def _any_order(holds: npt.NDArray[np.bool_]) -> BoolArray:
    return holds if holds.ndim == 1 else np.asarray(holds.any(axis=1))


def _highest(tariff: IntArray, left: IntArray) -> LevelArray:
    return np.asarray(tariff.searchsorted(left, side="right") - 1).astype(np.uint8)
