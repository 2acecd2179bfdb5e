"""The outcome of a step under one policy: rows of numbers in, rows of numbers out.

Costs, granted norms and the ticks of odometers come from ``accounting``. This module compares the
sums with the budget. Nothing is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput, Mechanism, PerUserOrderFilter, advance_units, best_order
from accounting.filters.accounts import AccountTerms, Orders
from streams.ledger.columns import Numbers
from streams.ledger.validation import filter_of
from streams.records import Policy

_BLOCK_NUMBERS = 2**18
"""Users times orders charged at a time, so that temporaries do not grow with the record."""

NO_ROWS = np.empty(0, dtype=np.int64)
NOTHING = np.empty(0)

OrderIndex = NDArray[np.uint8]


class Before(NamedTuple):
    """The rows of some users, without their ticks."""

    spent: Numbers
    base: Numbers
    order: OrderIndex | None  # index of each per-user order
    bound: NDArray[np.bool_] | None


class Bill(NamedTuple):
    """The charge of a step to some users."""

    cost: Numbers
    order: OrderIndex | None  # including users bound by this step
    admitted: NDArray[np.bool_] | None = None  # None: all users who can pay
    clipped: Numbers = NO_ROWS  # positions, with the norms that were granted
    granted: NDArray[np.float64] = NOTHING
    bound: NDArray[np.bool_] | None = None  # bound to an order after this step, admitted or not


class Settled(NamedTuple):
    """The outcome of a step for some users; positions index these users."""

    spent: Numbers
    exhausted: NDArray[np.bool_]
    charged: NDArray[np.bool_]  # spent something
    raised: Numbers  # positions whose odometer rose or restarted, and its new state
    base: Numbers
    ticks: Numbers
    ticks_before: Numbers


class Rule:
    """How the users of one dataset are charged.

    Attributes:
        terms: budgets and odometer, for charges in units.
        orders: the numbers per user in ``spent``; None for one, in rows without an axis.
        binds: whether each user is bound to a Rényi order.
        block_users: the number of users to charge at a time.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._measure = policy.row
        self._orders = np.array(policy.orders) if self._measure.per_order else None
        self.binds = policy.per_user_order is True
        kind: Orders = "per-user" if self.binds else "all" if self._measure.per_order else "none"
        self.terms = AccountTerms(tuple(policy.budget), tuple(policy.odometer_step), kind)
        self.orders = len(policy.orders) if kind == "all" else None
        self._filter = filter_of(policy)
        self._budget = self._numbers(policy.budget)
        self._odometer_step = self._numbers(policy.odometer_step)
        # The filter ensures that no user goes beyond the budget, so no bound exceeds it.
        self._most_ticks = -(-self._budget // self._odometer_step)
        self.block_users = max(1, _BLOCK_NUMBERS // self._budget.size)

    def bill(
        self,
        rows: Before,
        mechanism: Mechanism,
        norms: NDArray[np.float64],
        granted: NDArray[np.float64] | None = None,
        *,
        clips: bool,
        reserve: float = 0.0,
    ) -> Bill:
        """Return the charge of a step with these norms, or with the norms granted instead.

        Args:
            rows: of the users.
            mechanism: of the step.
            norms: the requested norms.
            granted: the norms that all budgets together grant; None if this budget decides alone.
            clips: whether less than the requested norm may be granted, or only 0.
            reserve: the share of the budget that has to remain.
        """
        order = bound = None
        if self.binds or not clips:
            cost = self._measure.charge_units(mechanism, norms, self._orders)
        if self.binds:
            order, bound = self.bind(rows, cost)
            cost = _own(cost, order)
        if clips:
            spent = self._with_reserve(rows.spent, order, reserve)
            if granted is None:
                granted, cost = self._grants(spent, order, mechanism, norms)
            else:
                cost = self._charges(spent, order, mechanism, norms, granted)
            return self._granted(cost, order, norms, granted)._replace(bound=bound)
        if granted is None:
            return Bill(cost, order, bound=bound)
        admitted = granted == norms
        # A product takes the same time for any pattern of halted users.
        np.multiply(cost.T, admitted, out=cost.T)
        return Bill(cost, order, admitted, bound=bound)

    def bind(self, rows: Before, costs: Numbers) -> tuple[OrderIndex, NDArray[np.bool_]]:
        """Return the order of each user, and which users are bound to it after this step.

        A user is bound by the first step that costs something at any order, to the best order for
        that step.
        """
        assert rows.order is not None
        assert rows.bound is not None
        bound = rows.bound | costs.any(axis=1)
        free = np.flatnonzero(bound & ~rows.bound)
        if not len(free):
            return rows.order, bound
        order = rows.order.copy()
        order[free] = best_order(costs[free], self._policy.budget)
        return order, bound

    def fits(self, rows: Before, bill: Bill, reserve: float = 0.0) -> NDArray[np.bool_]:
        """Return which users can pay and keep this share of the budget, (n,)."""
        total = self._with_reserve(rows.spent, bill.order, reserve) + bill.cost
        return _all_orders(total <= self._each(self._budget, bill.order))

    def _with_reserve(self, spent: Numbers, order: OrderIndex | None, reserve: float) -> Numbers:
        """Return the spends with a share of the budget added, rounded up, at most the budget."""
        if not reserve:
            return spent
        share = Fraction(reserve)
        kept = self._numbers([math.ceil(units * share) for units in self._policy.budget])
        room, kept = self._each(self._budget - kept, order), self._each(kept, order)
        return np.add(np.minimum(spent, room), kept, dtype=np.int64)  # at most the budget

    def exhausted(self, spent: Numbers, order: OrderIndex | None) -> NDArray[np.bool_]:
        """Return which users have nothing left, (n,)."""
        return _any_order(spent >= self._each(self._budget, order))

    def settle(self, rows: Before, bill: Bill, ticks_of: Callable[[Numbers], Numbers]) -> Settled:
        """Return the rows after a bill that all of these users can pay.

        For most users, only the spend grows. Only users whom the bill takes to the end of the
        budget or of the odometer tick are examined.

        Args:
            rows: of the users.
            bill: of the step.
            ticks_of: returns the odometer ticks at these positions.
        """
        spent = rows.spent + bill.cost
        step = self._each(self._odometer_step, bill.order)
        room = np.minimum(rows.base + step, self._each(self._budget, bill.order))
        room -= spent
        close = positions(_any_order(room <= 0))
        exhausted = np.zeros(len(spent), dtype=np.bool_)
        raised = before = ticks = close
        base = rows.base[close]
        if len(close):
            order = None if bill.order is None else bill.order[close]
            exhausted[close] = self.exhausted(spent[close], order)
            step = self._each(self._odometer_step, order)
            before = ticks_of(close)
            used, risen = advance_units(
                rows.spent[close] - base,
                before,
                bill.cost[close],
                step if order is None else step[:, np.newaxis],
            )
            later = spent[close] - used
            # At the largest number of ticks the odometer restarts and does not rise.
            restarted = positions((risen != before) | _any_order(later != base))
            raised, ticks, before = close[restarted], risen[restarted], before[restarted]
            base = later[restarted]
        return Settled(
            spent=spent,
            exhausted=exhausted,
            charged=_any_order(bill.cost != 0),
            raised=raised,
            base=base,
            ticks=ticks,
            ticks_before=before,
        )

    def bounds(self, ticks: Numbers, order: OrderIndex | None = None) -> NDArray[np.float64]:
        """Return the odometer bounds in the policy's measure, (n,) or (n, orders).

        A bound never exceeds the budget, regardless of the ticks.

        Args:
            ticks: of each user.
            order: the order of each user, if users are bound.
        """
        step, budget, most = (
            self._each(numbers, order)
            for numbers in (self._odometer_step, self._budget, self._most_ticks)
        )
        rows = ticks if self.orders is None else ticks[:, np.newaxis]
        return self._measure.stated(np.minimum(np.minimum(rows, most) * step, budget))

    def cost_table(self, packed: bytes, levels: int) -> Numbers:
        """Unpack a cost table: units of every level up to this one, at every order.

        Raises:
            InvalidInput: the bytes are no such table.
        """
        units: Numbers = np.frombuffer(packed, dtype="<i8").astype(np.int64, copy=False)
        numbers = (levels + 1) * self._budget.size
        if len(units) != numbers:
            raise InvalidInput("units", len(units), f"{numbers}, {levels + 1} levels of each order")
        if self._measure.per_order:
            units = units.reshape(levels + 1, -1)
        return self.terms.checked_cost_table(units, levels)

    def _grants(
        self,
        spent: Numbers,
        order: OrderIndex | None,
        mechanism: Mechanism,
        norms: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], Numbers]:
        """Return the norms that this budget grants alone, and their charges."""
        if order is None:
            return self._filter.grant_units(spent, mechanism, norms)[1:]
        return self._own_filter().grant_units(spent, order, mechanism, norms)[1:]

    def _charges(
        self,
        spent: Numbers,
        order: OrderIndex | None,
        mechanism: Mechanism,
        norms: NDArray[np.float64],
        granted: NDArray[np.float64],
    ) -> Numbers:
        """Return the charges of this budget for the norms that all budgets grant."""
        if order is None:
            return self._filter.charge_granted(spent, mechanism, norms, granted)
        return self._own_filter().charge_granted(spent, order, mechanism, norms, granted)

    def _own_filter(self) -> PerUserOrderFilter:
        return PerUserOrderFilter.from_units(self._policy.orders, self._policy.budget)

    def _granted(
        self,
        cost: Numbers,
        order: OrderIndex | None,
        norms: NDArray[np.float64],
        granted: NDArray[np.float64],
    ) -> Bill:
        admitted = (granted > 0) | (norms == 0)
        clipped = np.flatnonzero(admitted & (granted < norms))
        return Bill(cost, order, admitted, clipped, granted[clipped])

    def _each(self, numbers: Numbers, order: OrderIndex | None) -> Numbers:
        """Return each user's number of a policy field, or the field without user orders."""
        return numbers if order is None else numbers.take(order)

    def _numbers(self, units: list[int]) -> Numbers:
        numbers = np.array(units, dtype=np.int64)
        return numbers if self._measure.per_order else numbers[0]


def positions(where: NDArray[np.bool_]) -> Numbers:
    """Return the true positions; fast if there are none, the usual case."""
    return np.flatnonzero(where) if where.any() else NO_ROWS


def _own(costs: Numbers, order: OrderIndex) -> Numbers:
    """Return the cost of each user at the per-user order, (n,)."""
    return costs[np.arange(len(order)), order]


def _all_orders(where: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(where.all(axis=1) if where.ndim == 2 else where)


def _any_order(where: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(where.any(axis=1) if where.ndim == 2 else where)
