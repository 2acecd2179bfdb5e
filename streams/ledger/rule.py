"""What a step comes to under one policy: rows of numbers in, rows of numbers out.

The rule itself is in ``accounting``. This module puts its parts together: what a charge costs, whom
the budgets admit, or with what norm; the odometer rises with what was charged. Nothing here is
written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput, Mechanism, PerUserOrderFilter, advance_units, best_order
from accounting.filters.accounts import AccountTerms, Orders
from streams.ledger.columns import Numbers
from streams.ledger.validation import filter_of, has_per_user_order, measure_of
from streams.records import Policy

_BLOCK_NUMBERS = 2**18
"""Users times orders that are charged at a time: the temporaries do not grow with the record."""

NO_ROWS = np.empty(0, dtype=np.int64)
NOTHING = np.empty(0)

OrderIndex = NDArray[np.uint8]


class Before(NamedTuple):
    """The rows of some users, but for their ticks."""

    spent: Numbers
    base: Numbers
    order: OrderIndex | None  # index of the order that each is bound to, if to one alone
    bound: NDArray[np.bool_] | None


class Bill(NamedTuple):
    """What a step asks of some users."""

    cost: Numbers
    order: OrderIndex | None  # with those who are bound by this step
    admitted: NDArray[np.bool_] | None = None  # None: those who can pay
    clipped: Numbers = NO_ROWS  # positions, with the norms that were granted
    granted: NDArray[np.float64] = NOTHING
    bound: NDArray[np.bool_] | None = None  # who is bound to an order by then, admitted or not


class Settled(NamedTuple):
    """What a step comes to for some users; positions are those among them."""

    spent: Numbers
    exhausted: NDArray[np.bool_]
    charged: NDArray[np.bool_]  # who spent something
    raised: Numbers  # positions of those whose odometer rose or restarted, with what it is now
    base: Numbers
    ticks: Numbers
    ticks_before: Numbers


class Rule:
    """How the users of one dataset are charged.

    Attributes:
        terms: budgets and odometer, for charges in units.
        orders: how many numbers a user has of what is spent; None: one, in rows without an axis
            for it.
        binds: whether each user is bound to an order of its own.
        block_users: how many users are best charged at a time.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._measure = measure_of(policy)
        self._orders = np.array(policy.orders) if self._measure.per_order else None
        self.binds = has_per_user_order(policy)
        kind: Orders = "per-user" if self.binds else "all" if self._measure.per_order else "none"
        self.terms = AccountTerms(tuple(policy.budget), tuple(policy.odometer_step), kind)
        self.orders = len(policy.orders) if kind == "all" else None
        self._filter = filter_of(policy)
        self._budget = self._numbers(policy.budget)
        self._odometer_step = self._numbers(policy.odometer_step)
        # The filter alone already promises that no user goes beyond the budget.
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
    ) -> Bill:
        """What a step of these norms asks, or what is granted of it.

        Args:
            rows: of the users.
            mechanism: of the step.
            norms: that are asked for.
            granted: what all budgets together grant of them; None: what this one would alone.
            clips: whether less than asked for may be granted; else it is that or 0.
        """
        order = bound = None
        if self.binds or not clips:
            cost = self._measure.charge_units(mechanism, norms, self._orders)
        if self.binds:
            order, bound = self.bind(rows, cost)
            cost = _own(cost, order)
        if clips:
            if granted is None:
                granted, cost = self._grants(rows.spent, order, mechanism, norms)
            else:
                cost = self._charges(rows.spent, order, mechanism, norms, granted)
            return self._granted(cost, order, norms, granted)._replace(bound=bound)
        if granted is None:
            return Bill(cost, order, bound=bound)
        admitted = granted == norms
        # A product takes the same time however the halted lie among the others.
        np.multiply(cost.T, admitted, out=cost.T)
        return Bill(cost, order, admitted, bound=bound)

    def bind(self, rows: Before, costs: Numbers) -> tuple[OrderIndex, NDArray[np.bool_]]:
        """The order of each user: of those who are not bound, the one that suits these costs.

        And who is bound by then: everybody of whom something is asked, at whichever order.
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

    def fits(self, rows: Before, bill: Bill) -> NDArray[np.bool_]:
        """Who can pay, (n,)."""
        total = rows.spent + bill.cost
        return _all_orders(total <= self._each(self._budget, bill.order))

    def exhausted(self, spent: Numbers, order: OrderIndex | None) -> NDArray[np.bool_]:
        """Who has nothing left, (n,)."""
        return _any_order(spent >= self._each(self._budget, order))

    def settle(self, rows: Before, bill: Bill, ticks_of: Callable[[Numbers], Numbers]) -> Settled:
        """What is left behind by a bill that every one of these users can pay.

        To most nothing happens but that more is spent. Those are looked at whom the bill takes to
        the end of the budget, or of the tick: the others are below both.

        Args:
            rows: of all of them.
            bill: that is paid.
            ticks_of: what the odometers of these positions have climbed.
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
        """What odometers say in the policy's own measure, (n,) or (n, orders).

        At the budget the bound remains where it is, however many ticks are climbed.

        Args:
            ticks: of each user.
            order: that each user is bound to, if users are.
        """
        step, budget, most = (
            self._each(numbers, order)
            for numbers in (self._odometer_step, self._budget, self._most_ticks)
        )
        rows = ticks if self.orders is None else ticks[:, np.newaxis]
        return self._measure.stated(np.minimum(np.minimum(rows, most) * step, budget))

    def cost_table(self, packed: bytes, levels: int) -> Numbers:
        """A cost table of the wire: units of every level up to this one, and at every order.

        Raises:
            InvalidInput: it is none.
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
        """What this budget grants alone, and what it charges for that."""
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
        """What this budget charges for what all of them grant."""
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
        """Of numbers of the policy: each user's own, or as they are."""
        return numbers if order is None else numbers.take(order)

    def _numbers(self, units: list[int]) -> Numbers:
        numbers = np.array(units, dtype=np.int64)
        return numbers if self._measure.per_order else numbers[0]


def positions(where: NDArray[np.bool_]) -> Numbers:
    """Where it is true: most often nowhere, which is found out faster than by numpy alone."""
    return np.flatnonzero(where) if where.any() else NO_ROWS


def _own(costs: Numbers, order: OrderIndex) -> Numbers:
    """Return the cost of each user at the per-user order, (n,)."""
    return costs[np.arange(len(order)), order]


def _all_orders(where: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(where.all(axis=1) if where.ndim == 2 else where)


def _any_order(where: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(where.any(axis=1) if where.ndim == 2 else where)
