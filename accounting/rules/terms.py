"""On what terms the users of one dataset are charged by tariffs: arrays of units, for many at once.

    orders    a user has                           a charge fits
    "none"    one number; budget and increment     within the budget
    "own"     one number, and the index of the     within the budget of the user's order
              order that it is bound to
    "all"     a number for every order             within all budgets

Fitting is the rule in whole units (`accounting.rules.admission`), and the odometer is that of
`accounting.rules.odometers.advance_units`. In arrays of m users, what is one number has shape (m,),
what is a number per order (m, k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from accounting.costs.tariffs import LevelArray, checked_tariff
from accounting.exact.errors import InvalidInput
from accounting.exact.units import MAX_BUDGET_UNITS
from accounting.exact.validation import BoolArray, IntArray, whole_number
from accounting.rules.odometers import advance_units
from accounting.rules.own_order import MAX_ORDERS, OrderArray
from accounting.rules.slot_map import Rows

Orders: TypeAlias = Literal["none", "own", "all"]
_UNBOUNDED: Final = np.int64(2**62)


class Balances(Protocol):
    """The columns of a dataset, a row for every user; the caller owns them.

    They may be longer than there are users, and be replaced by longer ones between calls.

    Attributes:
        spent: units, int64, shape (n,), or (n, k) if orders are "all".
        base: units that were spent when the odometer last restarted, of the shape of `spent`.
        rungs: of the odometer, int64, shape (n,), at the start 1.
        order: uint8, shape (n,), read if orders are "own" and not otherwise.
    """

    spent: IntArray
    base: IntArray
    rungs: IntArray
    order: OrderArray


class Advanced(NamedTuple):
    """What a charge makes of the numbers of m users; `raised`: whose odometer rose, as indices."""

    spent: IntArray
    base: IntArray
    raised: IntArray
    rungs: IntArray  # of all m


@dataclass(frozen=True)
class Terms:
    """Budgets and odometer of one dataset.

    Attributes:
        budgets: whole units, one, or one per order.
        increments: of the odometer, units of 1 or more, as many.
        orders: see above.
    """

    budgets: tuple[int, ...]
    increments: tuple[int, ...]
    orders: Orders = "none"

    def __post_init__(self) -> None:
        if self.orders not in get_args(Orders):
            raise InvalidInput("orders", self.orders, f"one of {', '.join(get_args(Orders))}")
        _set_units(self, "budgets", self.budgets, 0)
        _set_units(self, "increments", self.increments, 1)
        count = len(self.budgets)
        if len(self.increments) != count:
            raise InvalidInput("increments", self.increments, f"{count}, as there are budgets")
        if not 1 <= count <= MAX_ORDERS or (self.orders == "none" and count != 1):
            allowed = f"one, or one per order, at most {MAX_ORDERS}"
            raise InvalidInput("budgets", self.budgets, allowed)

    def checked_tariff(self, tariff: npt.ArrayLike, levels: int) -> IntArray:
        """Return a tariff of as many levels for these orders, or raise `InvalidInput`."""
        units = checked_tariff(tariff)
        shape = (levels + 1,) if self.orders == "none" else (levels + 1, len(self.budgets))
        if units.shape != shape:
            raise InvalidInput("tariff", units.shape, f"of shape {shape}")
        return np.ascontiguousarray(units)

    def charges(self, tariff: IntArray, levels: LevelArray, order: OrderArray | None) -> IntArray:
        """Return what users at these levels are charged."""
        if order is None:
            return tariff.take(levels, axis=0)
        cells = levels.astype(np.intp)
        cells *= len(self.budgets)
        cells += order
        return tariff.reshape(-1).take(cells)

    def fits(self, spent: IntArray, charge: IntArray, order: OrderArray | None) -> BoolArray:
        """Return who can pay, (m,)."""
        within = np.asarray(spent + charge <= self._limits(order))
        return within if within.ndim == 1 else np.asarray(within.all(axis=1))

    def exhausted(self, spent: IntArray, order: OrderArray | None) -> BoolArray:
        """Return who has nothing left, at some order at least, (m,)."""
        full = np.asarray(spent >= self._limits(order))
        return full if full.ndim == 1 else np.asarray(full.any(axis=1))

    def highest_level(
        self, tariff: IntArray, spent: IntArray, order: OrderArray | None
    ) -> LevelArray:
        """Return the highest level that each user can pay for, (m,); 0 can always be paid for."""
        left = self._limits(order) - spent
        if self.orders == "none":
            return _highest(tariff, left)
        levels = np.full(len(left), len(tariff) - 1, dtype=np.uint8)
        for index in range(len(self.budgets)):
            if order is None:
                np.minimum(levels, _highest(tariff[:, index], left[:, index]), out=levels)
            else:
                members = order == index
                levels[members] = _highest(tariff[:, index], left[members])
        return levels

    def advance(
        self,
        spent: IntArray,
        base: IntArray,
        rungs: IntArray,
        charge: IntArray,
        order: OrderArray | None,
    ) -> Advanced:
        """Charge what fits, and let the odometers rise as `advance_units` does."""
        total = spent + charge
        over = np.asarray(total - base > self._increments(order))
        rows = np.flatnonzero(over if over.ndim == 1 else over.any(axis=1))
        if not rows.size:
            return Advanced(total, base, rows, rungs)
        increment = self._increments(None if order is None else order[rows])
        used, risen = advance_units(
            spent[rows] - base[rows],
            rungs[rows],
            charge[rows],
            increment if order is None else increment[:, np.newaxis],
        )
        # What does not fit on a rung makes it rise, but for a number of rungs that is saturated.
        base, rungs = base.copy(), rungs.copy()
        base[rows], climbed = total[rows] - used, risen != rungs[rows]
        rungs[rows] = risen
        return Advanced(total, base, rows[climbed], rungs)

    def quiet_steps(
        self, spent: IntArray, base: IntArray, charge: IntArray, order: OrderArray | None
    ) -> tuple[IntArray, BoolArray]:
        """Return how often the charge can be repeated before something happens to a user, (m,).

        That is (steps, filled): after so many steps of the same charge the next one would not be
        admitted, or raise the odometer; `filled` says whether one of the budgets is spent to the
        last unit by them. A charge of nothing can be repeated 2**62 times.
        """
        limits = self._limits(order)
        # Both ends are distances from the same spend: the nearer one decides.
        room = np.minimum(limits, base + self._increments(order)) - spent
        steps = np.floor_divide(room, np.maximum(charge, 1))
        free = charge == 0
        if free.any():
            steps[free] = _UNBOUNDED
        if steps.ndim == 2:
            steps = steps.min(axis=1)
            repeated = np.where(free.all(axis=1), 0, steps)[:, np.newaxis] * charge
            full = ((spent + repeated == limits) & ~free).any(axis=1)
        else:
            full = (np.where(free, 0, steps) * charge == limits - spent) & ~free
        return steps, np.asarray(full)

    def _limits(self, order: OrderArray | None) -> IntArray:
        return _each(self.budgets, self.orders, order)

    def _increments(self, order: OrderArray | None) -> IntArray:
        return _each(self.increments, self.orders, order)


class Seat:
    """A block of users in one account, during one step: their numbers, and what they are charged.

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
        self._order = balances.order[rows] if terms.orders == "own" else None
        self._spent, self._base = balances.spent[rows], balances.base[rows]
        self._charge = terms.charges(tariff, levels, self._order)

    def fits(self) -> BoolArray:
        """Return who can pay, (m,)."""
        return self._terms.fits(self._spent, self._charge, self._order)

    def highest_level(self, users: IntArray) -> LevelArray:
        """Return the highest level that each of these users, as indices, can pay for."""
        order = None if self._order is None else self._order[users]
        return self._terms.highest_level(self._tariff, self._spent[users], order)

    def lower(self, users: IntArray, levels: LevelArray) -> None:
        """Charge these users at other levels."""
        order = None if self._order is None else self._order[users]
        self._charge[users] = self._terms.charges(self._tariff, levels, order)

    def pay(self) -> tuple[IntArray, IntArray]:
        """Write what the charge makes of the balances, all of which fit.

        Returns:
            Whose odometer rose, as indices, and the rungs of these before.
        """
        balances, rows = self._balances, self._rows
        rungs = balances.rungs[rows]
        paid = self._terms.advance(self._spent, self._base, rungs, self._charge, self._order)
        before = rungs[paid.raised]
        if paid.base is not self._base:
            balances.base[rows], balances.rungs[rows] = paid.base, paid.rungs
        balances.spent[rows] = self._spent = paid.spent
        self._base = paid.base
        return paid.raised, before

    def exhausted(self) -> BoolArray:
        """Return who has nothing left, (m,)."""
        return self._terms.exhausted(self._spent, self._order)

    def quiet_steps(self) -> tuple[IntArray, BoolArray]:
        """Return how often the charge can be repeated; see `Terms.quiet_steps`."""
        return self._terms.quiet_steps(self._spent, self._base, self._charge, self._order)


def _each(units: tuple[int, ...], orders: Orders, order: OrderArray | None) -> IntArray:
    """Return one number, one per order, or each user's own."""
    numbers = np.array(units, dtype=np.int64)
    if orders == "none":
        return np.asarray(numbers[0])
    return numbers if order is None else np.asarray(numbers.take(order))


def _highest(tariff: IntArray, left: IntArray) -> LevelArray:
    return np.asarray(tariff.searchsorted(left, side="right") - 1).astype(np.uint8)


def _set_units(terms: Terms, name: str, values: Sequence[int], least: int) -> None:
    units = tuple(whole_number(name, value, least, MAX_BUDGET_UNITS) for value in values)
    object.__setattr__(terms, name, units)
