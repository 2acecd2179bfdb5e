"""A policy as numbers: what its users are charged, how much they may spend, and their odometers.

Whether a user can pay, and what a payment changes, is decided in ``accounting.filters.payment``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accounting import BudgetFilter, Mechanism, best_order, checked_cost_table
from accounting.filters.account_terms import AccountCostTable, AccountTerms, Orders
from accounting.filters.due_steps import NO_ROWS
from accounting.filters.payment import Payment, any_order
from streams.ledger.columns import Numbers
from streams.ledger.validation import filter_of
from streams.records import Policy

_BLOCK_NUMBERS = 2**18
"""Users times orders charged at a time, so that temporaries do not grow with the record."""

OrderIndex = NDArray[np.uint8]


class UserRows(Protocol):
    """The numbers of users, by slot; the last two only if users are bound to a Rényi order."""

    spent: Numbers  # units; see ``Payment``
    base: Numbers
    order: OrderIndex  # its index
    bound: OrderIndex  # 1 if the user is bound to it


class NormPayment(Payment):
    """A payment for a step with a norm for each user; `Rule.payment` has the arguments."""

    def __init__(
        self,
        rule: Rule,
        spent: Numbers,
        base: Numbers,
        cost: Numbers,
        order: OrderIndex | None,
        mechanism: Mechanism,
        norms: NDArray[np.float64],
        reserve: float = 0.0,
    ) -> None:
        self._rule, self._order, self._mechanism, self._norms = rule, order, mechanism, norms
        kept = rule.terms.share_of(reserve, order)
        super().__init__(spent, base, cost, *rule.terms.units_of(order), kept)

    def highest(self, users: Numbers) -> NDArray[np.float64]:
        """Return the largest norm that this budget alone grants these users (positions)."""
        granted, budgets = np.zeros(len(users)), self._of(self._budgets, users)
        # Users with nothing left are granted nothing, at once: often most of those who are short.
        some = np.flatnonzero(~any_order(self._spent(users) >= budgets))
        for rule, group in self._groups(users[some]):
            at = some[group]
            state, asked = self._state(users[at]), self._norms[users[at]]
            granted[at] = rule.largest_norms(state, self._mechanism, asked)
        return granted

    def charge_for(self, users: Numbers, amounts: NDArray[np.float64]) -> None:
        """Charge these users (positions) for these norms, none of which is higher."""
        self.cost[users] = 0
        some = np.flatnonzero(amounts)
        for rule, group in self._groups(users[some]):
            at = users[some[group]]
            state, asked, granted = self._state(at), self._norms[at], amounts[some[group]]
            charge = rule.charge_granted(state, self._mechanism, asked, granted)
            self.cost[at] = charge if self._order is None else charge[:, 0]

    def _groups(self, users: Numbers) -> Iterator[tuple[BudgetFilter, Numbers]]:
        """Yield the filter of some users, and which of them it is: one for each order in use."""
        if self._order is None:
            groups = [(None, np.arange(len(users)))]
        else:
            order = self._order[users]
            groups = [(at, np.flatnonzero(order == at)) for at in np.unique(order).tolist()]
        yield from ((self._rule.filter_at(at), group) for at, group in groups if len(group))

    def _spent(self, users: Numbers) -> Numbers:
        """Return the spends of these users, as if what has to remain had been spent."""
        kept, usable = self._of(self._kept, users), self._of(self._usable, users)
        return np.asarray(np.minimum(self.spent[users], usable) + kept)

    def _state(self, users: Numbers) -> Numbers:
        """Return the same as a state of the filter, which has an axis of orders, if only of one."""
        spent = self._spent(users)
        return spent if self._order is None else spent[:, np.newaxis]


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
        self.block_users = max(1, _BLOCK_NUMBERS // len(policy.budget))

    def filter_at(self, order: int | None) -> BudgetFilter:
        """Return the filter of users who are bound to this order; None: who are not bound."""
        if order is None:
            return self._filter
        return self._measure.filter_of([self._policy.budget[order]], [self._policy.orders[order]])

    def payment(
        self,
        rows: UserRows,
        slots: Numbers,
        mechanism: Mechanism,
        norms: NDArray[np.float64],
        reserve: float = 0.0,
    ) -> tuple[NormPayment, Numbers]:
        """Return the payment that these norms ask of users, and whom it binds to an order.

        Users are bound whether they are admitted or not; they are given by their slots.

        Args:
            rows: the rows of all users.
            slots: the slots of the users who pay, (n,).
            mechanism: the step's mechanism.
            norms: the norms that the step asks for, (n,).
            reserve: the share of the budget that has to remain.
        """
        cost = self._measure.charge_units(mechanism, norms, self._orders)
        order, bound = None, NO_ROWS
        if self.binds:
            charges = np.arange(len(slots))
            bound, _ = self.bind(rows, slots, cost, charges)
            order = rows.order.take(slots)
            cost = cost[charges, order]
        spent, base = rows.spent.take(slots, axis=0), rows.base.take(slots, axis=0)
        return NormPayment(self, spent, base, cost, order, mechanism, norms, reserve), bound

    def bind(
        self, rows: UserRows, slots: Numbers, costs: Numbers, charges: NDArray[np.integer]
    ) -> tuple[Numbers, bool]:
        """Bind users to a Rényi order if they are not bound yet and are charged something.

        It is the order that admits most steps of the user's charge.

        Args:
            rows: the rows of all users.
            slots: the slots of the users who pay, (n,).
            costs: costs of some charges at every order, (m, orders), such as a cost table.
            charges: which of these charges each user pays, (n,).

        Returns:
            The slots of the users bound now, and whether some are still not bound.
        """
        if not self.binds:
            return NO_ROWS, False
        free = np.flatnonzero(rows.bound[slots] == 0)
        if not len(free):
            return NO_ROWS, False
        charged = free[np.asarray(costs.any(axis=1))[charges[free]]]
        if not len(charged):
            return NO_ROWS, True
        bound, asked = slots[charged], charges[charged]
        if len(asked) < len(costs):
            best = best_order(costs[asked], self._policy.budget)
        else:
            best = best_order(costs, self._policy.budget)[asked]
        rows.order[bound], rows.bound[bound] = best, 1
        return bound, len(charged) < len(free)

    def exhausted(self, spent: Numbers, order: OrderIndex | None) -> NDArray[np.bool_]:
        """Return which users have nothing left, (n,)."""
        return any_order(spent >= self.terms.units_of(order)[0])

    def bounds(self, ticks: Numbers, order: OrderIndex | None = None) -> NDArray[np.float64]:
        """Return the odometer bounds in the policy's measure, (n,) or (n, orders).

        A bound never exceeds the budget, regardless of the ticks.

        Args:
            ticks: each user's ticks.
            order: the order of each user, if users are bound.
        """
        budgets, tick_sizes = self.terms.units_of(order)
        rows = ticks if self.orders is None else ticks[:, np.newaxis]
        # The filter ensures that no user goes beyond the budget, so no bound exceeds it.
        most = -(-budgets // tick_sizes)
        return self._measure.stated(np.minimum(np.minimum(rows, most) * tick_sizes, budgets))

    def shares(
        self, bounds: NDArray[np.float64], order: OrderIndex | None = None
    ) -> NDArray[np.float64]:
        """Return the share of the budget that each bound is at the order where it is largest, (n,).

        ``order`` is that of each user, if users are bound.
        """
        budgets = self._measure.stated(self.terms.units_of(order)[0])
        shares = bounds / budgets
        if shares.ndim == 2:
            shares = shares.max(axis=1)
        # Not **, which is not rounded alike on every machine.
        return np.asarray(shares * shares if self._measure.power == 2 else shares)

    def cost_table(self, packed: bytes) -> AccountCostTable:
        """Unpack a cost table, units by level and order, or raise ``InvalidInput``."""
        units: Numbers = np.frombuffer(packed, dtype="<i8").astype(np.int64, copy=False)
        if self._measure.per_order:
            units = units.reshape(-1, len(self._policy.budget))
        return AccountCostTable(self.terms, checked_cost_table(units))


def positions(where: NDArray[np.bool_]) -> Numbers:
    """Return the true positions; fast if there are none, the usual case."""
    return np.flatnonzero(where) if where.any() else NO_ROWS
