"""The payments of a block of users in one account at one step: admission, then settlement.

    1. `Payment` is made of the charges that the step asks for.
    2. `grant` decides what each user is granted in all of the user's accounts together, and lowers
       the charges of those who are granted less.
    3. `Payment.settle` adds the charges to the spends, and moves the odometers.

Charges by levels (`accounts.LevelPayment`) and by norms (`streams.ledger.rule.NormPayment`) differ
in step 1, and in what a lower grant costs. Few users are examined one by one: those whom the charge
leaves with nothing, or takes beyond the budget or the odometer's tick. For all others, one
subtraction proves that the budget rule admits, that the odometer stays and that something is left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import BoolArray, IntArray
from accounting.filters.admission import fits
from accounting.filters.due_steps import NO_ROWS
from accounting.odometers import advance_units

NOTHING: Final = np.zeros((), dtype=np.int64)

Amount = TypeVar("Amount", bound=np.generic)
"""The amounts that a step asks for and is granted: norms, float64, or levels, uint8."""


class Restart(NamedTuple):
    """The users whose odometer rose or restarted.

    Attributes:
        users: their indices in the block.
        base: units spent at the restart, shape (r,) or (r, k).
        ticks, ticks_before: the odometer's ticks after and before, shape (r,).
    """

    users: IntArray
    base: IntArray
    ticks: IntArray
    ticks_before: IntArray


class Payment(ABC):
    """The charge of a block of m users in one account at one step.

    Methods take users by their indices in the block, which ascend.

    Args:
        spent: units, int64, shape (m,) or (m, k); `settle` adds the charge to this array.
        base: units spent when the odometer last restarted, of the shape of `spent`.
        cost: units, of the shape of `spent`; the payment owns this array.
        budgets: units: one number, one per order, or of the shape of `spent` (m,).
        tick_sizes: units of an odometer's tick, of the shape of `budgets`.
        kept: units of the budgets that have to remain: one number, or of the shape of `budgets`.

    Attributes:
        spent, cost: as given; see `settle` and `grant`.
        close: indices of users whom the charge leaves with no more than what has to remain, or
            takes beyond the budget or the odometer's tick.
    """

    def __init__(
        self,
        spent: IntArray,
        base: IntArray,
        cost: IntArray,
        budgets: IntArray,
        tick_sizes: IntArray,
        kept: IntArray = NOTHING,
    ) -> None:
        self.spent, self.cost, self._base = spent, cost, base
        self._budgets, self._tick_sizes = budgets, tick_sizes
        self._usable, self._kept = budgets - kept, kept
        # How much more could be spent before anything happens: the nearer limit decides.
        self._room = base + tick_sizes
        np.minimum(self._room, self._usable, out=self._room)
        self._room -= spent
        self._room -= cost
        self.close = NO_ROWS
        if self._room.min(initial=1) <= 0:
            self.close = np.flatnonzero(any_order(self._room <= 0))

    def refused(self) -> IntArray:
        """Return the indices of users who cannot pay."""
        close = self.close
        if not close.size:
            return close
        spent, limits = self.spent.take(close, axis=0), self._of(self._usable, close)
        if self._kept.any():
            # A user who has spent some of the rest may still take a step that costs nothing.
            limits = np.maximum(limits, spent)
        return close[~fits(spent, _rows(self.cost, close), limits, total=spent)]

    @abstractmethod
    def highest(self, users: IntArray) -> npt.NDArray[Any]:
        """Return the most that this account can grant these users (indices), at most what is asked.

        It may be more than what is asked if that is a level.
        """

    @abstractmethod
    def charge_for(self, users: IntArray, amounts: npt.NDArray[Any]) -> None:
        """Charge these users (indices) for what they are granted, at most what is asked."""

    def settle(self, ticks: Callable[[IntArray], IntArray]) -> Restart:
        """Add the charges, all of which fit, to the spends, and advance the odometers.

        Args:
            ticks: returns the ticks of these users (indices).
        """
        self.spent += self.cost
        over = self.close
        if over.size:
            used = self.spent.take(over, axis=0)
            used -= _rows(self._base, over)
            over = over[any_order(used > self._of(self._tick_sizes, over))]
        if not over.size:
            return Restart(over, self._base[:0], over, over)
        cost, total, base = (_rows(units, over) for units in (self.cost, self.spent, self._base))
        tick_sizes, before = self._of(self._tick_sizes, over), ticks(over)
        per_user = tick_sizes.shape == total.shape
        used, risen = advance_units(
            total - cost - base, before, cost, tick_sizes[:, np.newaxis] if per_user else tick_sizes
        )
        later = total - used
        # At the largest number of ticks the odometer restarts and does not rise.
        restarted = (risen != before) | any_order(later != base)
        return Restart(over[restarted], later[restarted], risen[restarted], before[restarted])

    def exhausted(self, users: IntArray) -> BoolArray:
        """Return whether these users (indices) have nothing left at some order, after paying."""
        return any_order(_rows(self.spent, users) >= self._of(self._budgets, users))

    def _of(self, units: IntArray, users: IntArray) -> IntArray:
        """Return the budgets or tick sizes of some users."""
        return _rows(units, users) if units.shape == self.spent.shape else units


def grant(
    payments: Sequence[Payment], asked: npt.NDArray[Amount], *, clip: bool
) -> tuple[npt.NDArray[Amount], npt.NDArray[np.uint8]]:
    """Decide what each user is granted: what is asked, if all of the user's accounts can pay it.

    Otherwise it is nothing or, with `clip`, the most that every account can pay. That is the least
    of what each account would grant alone, because a cost never falls as the norm grows.

    Args:
        payments: the payments of the same users in each of their accounts.
        asked: norms or levels, shape (m,).
        clip: whether less than asked may be granted.

    Returns:
        What is granted and, shape (m,), the first account that cannot pay what is asked. With
        `clip`, it is the first account that grants least: if nothing is granted, the first that can
        pay for nothing.
    """
    refused_by = np.zeros(asked.size, dtype=np.uint8)
    refusals = [payment.refused() for payment in payments]
    short = refusals[0] if len(payments) == 1 else np.unique(np.concatenate(refusals))
    if not short.size:
        return asked, refused_by
    granted, amounts = asked.copy(), np.zeros(short.size, dtype=asked.dtype)
    if clip:
        highest = np.stack([payment.highest(short) for payment in payments])
        amounts, refused_by[short] = highest.min(axis=0), highest.argmin(axis=0)
    else:
        for index, refused in reversed(list(enumerate(refusals))):
            refused_by[refused] = index
    granted[short] = amounts
    for payment in payments:
        payment.charge_for(short, amounts)
    return granted, refused_by


def _rows(units: IntArray, users: IntArray) -> IntArray:
    """Return the rows of these users, given by ascending indices; of all users without a copy."""
    return units if len(users) == len(units) else units.take(users, axis=0)


def any_order(holds: npt.NDArray[np.bool_]) -> BoolArray:
    """Return where something holds at one order or more, (m,)."""
    return holds if holds.ndim == 1 else np.asarray(holds.any(axis=1))
