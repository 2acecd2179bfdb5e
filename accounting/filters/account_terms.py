"""One dataset's account of its users: budgets, balances, and one step of a block of users.

    orders      a user has                           a charge fits
    "none"      one number; budget and tick size     within the budget
    "per-user"  one number, and the index of the     within the budget of the user's order
                order that the user is bound to
    "all"       a number for every order             within all budgets

A charge fits by the rule in whole units (`accounting.filters.admission`). In arrays of m users, one
number per user has shape (m,), and one number per user and order has shape (m, k).

`LevelPayment` charges a block of users by their norm levels (`accounting.filters.payment`). From
the result follows for how many more steps of the same charge nothing else can happen to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from accounting.costs.norm_levels import LevelArray
from accounting.exact.argument_checks import FloatArray, IntArray
from accounting.filters.payment import NOTHING, Payment, Restart
from accounting.filters.per_user_order import OrderArray
from accounting.filters.roster_columns import Rows, rows_at

Orders: TypeAlias = Literal["none", "per-user", "all"]

_SHAVE: Final = 1.0 - 2.0**-50


class BalanceColumns(Protocol):
    """The columns of a dataset, with one row per user; the caller owns them.

    They may be longer than there are users, and longer ones may replace them between calls.

    Attributes:
        spent: units, int64, shape (n,), or (n, k) if orders are "all".
        base: units spent when the odometer last restarted, of the shape of `spent`.
        ticks: odometer ticks, int64, shape (n,), initially 1.
        order: uint8, shape (n,); read only if orders are "per-user".
    """

    spent: IntArray
    base: IntArray
    ticks: IntArray
    order: OrderArray


@dataclass(frozen=True)
class AccountTerms:
    """The budgets and the odometer of one dataset.

    Attributes:
        budgets: whole units: one, or one per order; at most 256 if each user has one order.
        tick_sizes: units of an odometer's tick, 1 or more, one per budget.
        orders: see the table of this module.
    """

    budgets: tuple[int, ...]
    tick_sizes: tuple[int, ...]
    orders: Orders = "none"

    @cached_property
    def _units(self) -> IntArray:
        units = np.array([self.budgets, self.tick_sizes], dtype=np.int64)
        return units if self.orders != "none" else np.asarray(units[:, 0])

    def units_of(self, order: npt.NDArray[np.integer] | None) -> tuple[IntArray, IntArray]:
        """Return (budgets, tick sizes): one number, one per order, or those of each user's order.

        Args:
            order: the users' orders, shape (m,), if each user is bound to one.
        """
        budgets, tick_sizes = self._units
        return (budgets, tick_sizes) if order is None else (budgets[order], tick_sizes[order])

    def share_of(self, share: float, order: npt.NDArray[np.integer] | None) -> IntArray:
        """Return this share of the budgets, rounded up; see `units_of`."""
        if not share:
            return NOTHING
        exact = Fraction(share)
        kept = tuple(math.ceil(units * exact) for units in self.budgets)
        return replace(self, budgets=kept).units_of(order)[0]


class AccountCostTable:
    """The cost table of one account, arranged for look-up by cell.

    A cell is a level or, with per-user orders, a level and an order. All users of a cell differ in
    nothing but what they have spent.

    Args:
        terms: the account's terms.
        units: the charge at each level, `checked_cost_table`: shape (L + 1,), or (L + 1, k) for
            orders "per-user" and "all".
    """

    def __init__(self, terms: AccountTerms, units: IntArray) -> None:
        self.terms, self.units = terms, units
        # One row per order: few orders are in use, and their cells then lie together.
        self._charges = units.T.reshape(-1) if terms.orders == "per-user" else units
        # Below 1 / charge by more than float64 rounds: see `LevelPayment.quiet_steps`.
        with np.errstate(divide="ignore"):
            self._quotients = _SHAVE / self._charges.astype(np.float64)

    def cells(self, levels: LevelArray, order: IntArray | None) -> IntArray:
        """Return the cells of users at these levels and orders, as indices."""
        cells = levels.astype(np.intp)
        if order is not None:
            cells += order * len(self.units)
        return cells

    def charges(self, cells: IntArray) -> IntArray:
        """Return the charge of each user, shape (m,) or (m, k)."""
        return self._charges.take(cells, axis=0)

    def quotients(self, cells: IntArray) -> FloatArray:
        """Return a number just below 1 / charge; infinity for a charge of 0."""
        return self._quotients.take(cells, axis=0)


class AccruedSteps(NamedTuple):
    """Steps that a block of users has accrued in one account, and that are not in its balances.

    Attributes:
        table: the cost table of these steps.
        granted: the level in each of them, uint8, shape (m,).
        elapsed: the number of steps, int64, shape (m,).
    """

    table: AccountCostTable
    granted: LevelArray
    elapsed: IntArray

    def units(self, order: IntArray | None) -> IntArray:
        """Return the accrued charge of users of these orders, shape (m,) or (m, k)."""
        charge = self.table.charges(self.table.cells(self.granted, order))
        charge *= self.elapsed if charge.ndim == 1 else self.elapsed[:, np.newaxis]
        return charge


class LevelPayment(Payment):
    """A payment for a step with a norm level for each user.

    Args:
        table: the cost table of the account and step.
        balances: the account's balances.
        rows: the users' rows in the balances.
        order: the users' orders, if each is bound to one.
        levels: the level that each user asks for, uint8, shape (m,).
        accrued: steps to charge first.
    """

    def __init__(
        self,
        table: AccountCostTable,
        balances: BalanceColumns,
        rows: Rows,
        order: IntArray | None,
        levels: LevelArray,
        accrued: AccruedSteps | None = None,
    ) -> None:
        self._table, self._balances, self._rows, self._order = table, balances, rows, order
        self._cells = table.cells(levels, order)
        spent = balances.spent[rows]  # for a slice, a view of the balances
        if accrued is not None:
            spent += accrued.units(order)
        cost = table.charges(self._cells)
        super().__init__(spent, balances.base[rows], cost, *table.terms.units_of(order))

    def highest(self, users: IntArray) -> LevelArray:
        """Return the highest level that each of these users (indices) can pay for."""
        units = self._table.units
        left = self._of(self._budgets, users) - self.spent[users]
        if units.ndim == 1:
            return _highest(units, left)
        levels = np.full(users.size, len(units) - 1, dtype=np.uint8)
        for index in range(units.shape[1]):
            if self._order is None:
                np.minimum(levels, _highest(units[:, index], left[:, index]), out=levels)
            else:
                members = self._order[users] == index
                levels[members] = _highest(units[:, index], left[members])
        return levels

    def charge_for(self, users: IntArray, amounts: LevelArray) -> None:
        """Charge these users (indices) at other levels, none of which is higher."""
        order = None if self._order is None else self._order[users]
        self._cells[users] = cells = self._table.cells(amounts, order)
        cost = self._table.charges(cells)
        self._room[users] += self.cost.take(users, axis=0) - cost
        self.cost[users] = cost

    def pay(self) -> Restart:
        """Settle, and write the balances."""
        balances, rows = self._balances, self._rows
        restart = self.settle(lambda users: balances.ticks[rows_at(rows, users)])
        if not isinstance(rows, slice):
            balances.spent[rows] = self.spent
        slots = rows_at(rows, restart.users)
        balances.base[slots], balances.ticks[slots] = restart.base, restart.ticks
        close = self.close
        room = balances.base.take(rows_at(rows, close), axis=0)
        room += self._of(self._tick_sizes, close)
        np.minimum(room, self._of(self._budgets, close), out=room)
        room -= self.spent.take(close, axis=0)
        self._room[close] = room
        return restart

    def skip_payment(self) -> None:
        """Count what is left as after `pay`, for a step whose charge is in the balances."""
        self._room += self.cost

    def quiet_steps(self) -> FloatArray:
        """Return how often the charge can be repeated before something happens, after paying.

        One more step of the same charge would spend a budget to the last unit, or not be admitted,
        or raise the odometer. The number, whole or not, is never too large, and too small by at
        most one. Shape (m,); infinity or NaN for a charge of 0.
        """
        # Four roundings, each within a relative 2**-53. The result is below the exact quotient, so
        # that an exact whole number counts as the one before: that step spends the last unit.
        with np.errstate(invalid="ignore"):
            steps = self._room.astype(np.float64)
            steps *= self._table.quotients(self._cells)
        return steps if steps.ndim == 1 else np.asarray(np.fmin.reduce(steps, axis=1))


def _highest(units: IntArray, left: IntArray) -> LevelArray:
    return np.asarray(units.searchsorted(left, side="right") - 1).astype(np.uint8)
