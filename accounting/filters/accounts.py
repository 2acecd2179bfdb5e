"""One dataset's account of its users: budgets, balances, and one step of a block of users.

    orders      a user has                           a charge fits
    "none"      one number; budget and tick size     within the budget
    "per-user"  one number, and the index of the     within the budget of the user's order
                order that the user is bound to
    "all"       a number for every order             within all budgets

A charge fits by the rule in whole units (`accounting.filters.admission`). The odometer is
`accounting.odometers.advance_units`. In arrays of m users, one number per user has shape (m,), and
one number per user and order has shape (m, k).

`AccountBlock` carries out the filter and the odometer for a block of users at one step. From the
result follows for how many more steps of the same charge nothing else can happen to them. Something
happens to few users: those whose charge brings them within a unit of the budget, beyond it, or
beyond the odometer's tick. For all others, one subtraction proves that the filter admits, that the
odometer stays and that something is left. Only the few are examined one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from accounting.costs.norm_levels import LevelArray, checked_cost_table
from accounting.exact.errors import InvalidInput
from accounting.exact.units import MAX_BUDGET_UNITS
from accounting.exact.validation import BoolArray, FloatArray, IntArray, whole_numbers
from accounting.filters.due_steps import NO_ROWS
from accounting.filters.per_user_order import MAX_ORDERS, OrderArray
from accounting.filters.roster import Rows
from accounting.odometers import advance_units

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
        budgets: whole units: one, or one per order.
        tick_sizes: of the odometer, 1 unit or more, one per budget.
        orders: see the table of this module.
    """

    budgets: tuple[int, ...]
    tick_sizes: tuple[int, ...]
    orders: Orders = "none"

    def __post_init__(self) -> None:
        if self.orders not in get_args(Orders):
            raise InvalidInput("orders", self.orders, f"one of {', '.join(get_args(Orders))}")
        _set_units(self, "budgets", self.budgets, 0)
        _set_units(self, "tick_sizes", self.tick_sizes, 1)
        count = len(self.budgets)
        if len(self.tick_sizes) != count:
            raise InvalidInput("tick_sizes", self.tick_sizes, f"{count}, one per budget")
        most = {"none": 1, "per-user": MAX_ORDERS, "all": count}[self.orders]
        if not 1 <= count <= most:
            allowed = f"one, or one per order, at most {MAX_ORDERS} if each user has one order"
            raise InvalidInput("budgets", self.budgets, allowed)

    def checked_cost_table(self, units: npt.ArrayLike, levels: int) -> IntArray:
        """Return a copy of a cost table of this many levels for these orders.

        Raises:
            InvalidInput: for any other table.
        """
        table = checked_cost_table(units)
        shape = (levels + 1,) if self.orders == "none" else (levels + 1, len(self.budgets))
        if table.shape != shape:
            raise InvalidInput("cost_table", table.shape, f"of shape {shape}")
        return np.array(table, order="C")


class AccountCostTable:
    """The cost table of one account, arranged for look-up by cell.

    A cell is a level or, with per-user orders, a level and an order. All users of a cell differ in
    nothing but what they have spent.

    Args:
        terms: of the account.
        units: the charge at each level, checked for these terms.
    """

    def __init__(self, terms: AccountTerms, units: IntArray) -> None:
        self.terms, self.units = terms, units
        self.limits = np.array(terms.budgets, dtype=np.int64)
        self.tick_sizes = np.array(terms.tick_sizes, dtype=np.int64)
        # One row per order: few orders are in use, and their cells then lie together.
        self._charges = units.T.reshape(-1) if terms.orders == "per-user" else units
        # Below 1 / charge by more than float64 rounds: see `AccountBlock.quiet_steps`.
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


class AccountBlock:
    """A block of m users in one account during one step: what they are charged, and what is left.

    Args:
        table: the cost table of the account and step.
        balances: of the account.
        rows: the users' rows in the balances.
        order: the users' orders, if each is bound to one.
        levels: the level that each user asks for, uint8, shape (m,).
        accrued: steps to charge first.

    Attributes:
        close: indices of users whom this charge leaves with nothing, or takes beyond the budget or
            the odometer's tick.
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
        self._charge = table.charges(self._cells)
        self._spent = balances.spent[rows]  # for a slice, a view of the balances
        if accrued is not None:
            self._spent += accrued.units(order)
        # How much more could be spent before anything happens: the nearer limit decides.
        self._room = balances.base[rows] + self._each(table.tick_sizes)
        np.minimum(self._room, self._each(table.limits), out=self._room)
        self._room -= self._spent
        self._room -= self._charge
        self.close = NO_ROWS
        if self._room.min(initial=1) <= 0:
            self.close = np.flatnonzero(_any_order(self._room <= 0))

    def short(self) -> IntArray:
        """Return the indices of users who cannot pay."""
        close = self.close
        over = self._spent[close] + self._charge[close] > self._each(self._table.limits, close)
        return close[_any_order(over)]

    def highest_level(self, users: IntArray) -> LevelArray:
        """Return the highest level that each of these users (indices) can pay for."""
        units, orders = self._table.units, self._table.terms.orders
        left = self._each(self._table.limits, users) - self._spent[users]
        if orders == "none":
            return _highest(units, left)
        levels = np.full(users.size, len(units) - 1, dtype=np.uint8)
        for index in range(self._table.limits.size):
            if self._order is None:
                np.minimum(levels, _highest(units[:, index], left[:, index]), out=levels)
            else:
                members = self._order[users] == index
                levels[members] = _highest(units[:, index], left[members])
        return levels

    def ask_for(self, users: IntArray, levels: LevelArray) -> None:
        """Charge these users (indices) at other levels, none of which is higher."""
        order = None if self._order is None else self._order[users]
        self._cells[users] = self._table.cells(levels, order)
        self._room[users] += self._charge[users]
        self._charge[users] = self._table.charges(self._cells[users])
        self._room[users] -= self._charge[users]

    def pay(self) -> tuple[IntArray, IntArray]:
        """Add the charges, all of which fit, to the balances.

        Returns:
            The indices of users whose odometer rose or restarted, and their ticks before.
        """
        balances, rows, close = self._balances, self._rows, self.close
        self._spent += self._charge
        if not isinstance(rows, slice):
            balances.spent[rows] = self._spent
        if not close.size:
            return close, close
        slots = rows.start + close if isinstance(rows, slice) else rows[close]
        charge, total, base = self._charge[close], self._spent[close], balances.base[slots]
        tick_size, limit = (
            self._each(units, close) for units in (self._table.tick_sizes, self._table.limits)
        )
        tick_end = base + tick_size
        over = np.flatnonzero(_any_order(total > tick_end))
        before = balances.ticks[slots[over]]
        each = tick_size if self._order is None else tick_size[over, np.newaxis]
        used, risen = advance_units(
            total[over] - charge[over] - base[over], before, charge[over], each
        )
        later = total[over] - used
        # At the largest number of ticks the odometer restarts and does not rise.
        restarted = (risen != before) | _any_order(later != base[over])
        base[over] = later
        tick_end = base + tick_size
        balances.base[slots[over]], balances.ticks[slots[over]] = later, risen
        self._room[close] = np.minimum(tick_end, limit) - total
        return close[over[restarted]], before[restarted]

    def skip_payment(self) -> None:
        """Count what is left as after `pay`, for a step whose charge is in the balances."""
        self._room += self._charge

    def exhausted(self, users: IntArray) -> BoolArray:
        """Return whether these users (indices) have nothing left at some order, after paying."""
        return _any_order(self._spent[users] >= self._each(self._table.limits, users))

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

    def can_repeat(self, times: IntArray) -> BoolArray:
        """Return whether nothing happens if the charge is repeated this often, before paying."""
        room = self._room + self._charge
        count = times if room.ndim == 1 else times[:, np.newaxis]
        return _all_orders((self._charge == 0) | (count <= room // np.maximum(self._charge, 1)))

    def _each(self, units: IntArray, users: IntArray | None = None) -> IntArray:
        """Return one number, one per order, or that of each user's order (of some users)."""
        if self._order is None:
            return units if self._table.terms.orders == "all" else np.asarray(units[0])
        return units.take(self._order if users is None else self._order[users])


def grant(
    blocks: Sequence[AccountBlock], asked: LevelArray, *, clip: bool
) -> tuple[LevelArray, npt.NDArray[np.uint8]]:
    """Decide at which level each user is charged: the level asked for, if all accounts can pay it.

    Otherwise the level is 0 or, with `clip`, the highest that every account can pay. That is the
    least of the accounts' highest levels, because a cost table never falls.

    Args:
        blocks: the same users in each of their accounts.
        asked: uint8, shape (m,).
        clip: whether a lower level may be granted.

    Returns:
        The granted levels and, shape (m,), the first account that cannot pay the level asked for.
        With `clip`, it is the first account with the lowest payable level: if nothing is granted,
        the first that can pay for no level.
    """
    refused_by = np.zeros(asked.size, dtype=np.uint8)
    refusals = [block.short() for block in blocks]
    short = refusals[0] if len(blocks) == 1 else np.unique(np.concatenate(refusals))
    if not short.size:
        return asked, refused_by
    granted, levels = asked.copy(), np.zeros(short.size, dtype=np.uint8)
    if clip:
        highest = np.stack([block.highest_level(short) for block in blocks])
        levels, refused_by[short] = highest.min(axis=0), highest.argmin(axis=0)
    else:
        for index, refused in reversed(list(enumerate(refusals))):
            refused_by[refused] = index
    granted[short] = levels
    for block in blocks:
        block.ask_for(short, levels)
    return granted, refused_by


def quiet_steps(blocks: Sequence[AccountBlock]) -> FloatArray:
    """Return for how many steps nothing happens to each user in any account, shape (m,)."""
    return reduce(np.fmin, [block.quiet_steps() for block in blocks])


def _all_orders(holds: npt.NDArray[np.bool_]) -> BoolArray:
    return holds if holds.ndim == 1 else np.asarray(holds.all(axis=1))


def _any_order(holds: npt.NDArray[np.bool_]) -> BoolArray:
    return holds if holds.ndim == 1 else np.asarray(holds.any(axis=1))


def _highest(units: IntArray, left: IntArray) -> LevelArray:
    return np.asarray(units.searchsorted(left, side="right") - 1).astype(np.uint8)


def _set_units(terms: AccountTerms, name: str, values: Sequence[int], least: int) -> None:
    units = whole_numbers(name, values, least, MAX_BUDGET_UNITS)
    object.__setattr__(terms, name, tuple(units))
