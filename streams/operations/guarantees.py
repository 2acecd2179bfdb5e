"""Budgets and bounds as people read them: in the measure's unit, as an epsilon, as a share.

Spent amounts are rounded up, and remaining amounts are rounded down.

An epsilon is always shown with its delta. The budget's epsilon and the epsilon of what a user has
spent are two statements. Each holds by itself at that delta, and neither replaces the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput, from_units_down
from streams.records import Policy

ABOVE_BUDGET = (
    "An any-time epsilon can be above that of the whole budget, because it allows the outputs to "
    "decide when the runs end. It does not mean that more than the budget was spent."
)

Units = NDArray[np.integer]
Numbers = NDArray[np.float64]


def budget_of(policy: Policy) -> str:
    """Return the budget in the unit of its measure, rounded down."""
    row = policy.row
    if row.per_order:
        own = ", each user its own" if policy.per_user_order is True else ""
        return f"{len(policy.budget)} orders{own}"
    if row.shape is not None:
        return f"{policy.steps} {row.unit}"
    return f"{row.unit} {float(from_units_down(policy.budget[0])) ** (1 / row.power):.6g}"


def budget_epsilon(policy: Policy, order: float | None, delta: float) -> float:
    """Return the epsilon that the budget guarantees to one user.

    Args:
        order: the user's own Rényi order, if the user has one.
        delta: the delta of the guarantee, strictly between 0 and 1.
    """
    if order is None or order not in policy.orders:
        return policy.epsilon(delta)
    at, row = policy.orders.index(order), policy.row
    return float(row.epsilon(row.stated(policy.budget[at : at + 1]), delta, [order]))


def spent_epsilon(
    policy: Policy, bound: Sequence[float], order: float | None, delta: float
) -> float | None:
    """Return the any-time epsilon of an odometer's bound.

    None if norm levels may follow sampling coins, because only the budget has an epsilon then, or
    if the bound is of another policy.

    Args:
        bound: the bound of an odometer record.
        order: the user's own Rényi order, if the user has one.
        delta: the delta of the guarantee, strictly between 0 and 1.
    """
    if policy.has_sampled_levels or spent_share(policy, bound, order) is None:
        return None
    return policy.spent_epsilon(bound, order, delta)


def spent_share(policy: Policy, bound: Sequence[float], order: float | None) -> float | None:
    """Return `Policy.spent_share`; None if the bound is of another policy."""
    try:
        return policy.spent_share(bound, order)
    except InvalidInput:
        return None


class Amounts:
    """Converts rows of units under one policy: one number, or one for each order that counts."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._measure = policy.row
        self._budget = np.array(policy.budget, dtype=np.int64)
        self._orders = np.array(policy.orders)

    def at(self, numbers: Units, order: int | None) -> Units:
        """Return the numbers that count for a user.

        Args:
            numbers: one per order, or only one.
            order: the index of the user's own order; None if all orders count.
        """
        rows = np.atleast_1d(numbers)
        return rows if order is None or len(rows) == 1 else rows[order : order + 1]

    def orders(self, order: int | None) -> list[float]:
        """Return the Rényi orders that count for a user; none if there are no orders."""
        found: list[float] = self._orders.tolist()
        return found if order is None else found[order : order + 1]

    def stated(self, units: Units) -> list[float]:
        """Return spent or requested units in the measure's unit, rounded up."""
        found: list[float] = self._measure.stated(np.atleast_1d(units)).tolist()
        return found

    def left(self, spent: Units, order: int | None) -> list[float]:
        """Return what is left of the budget, rounded down."""
        found: list[float] = self._left(self.at(self._budget, order), np.atleast_1d(spent)).tolist()
        return found

    def tightest(self, spent: Units, order: int | None) -> int:
        """Return the index at which the largest share of the budget is spent."""
        share = np.atleast_1d(spent) / self.at(self._budget, order)
        return int(np.argmax(share))

    def tightest_of_all(
        self, spent: Units, order: Units | None
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Return spent, left and order of many users, where the largest share is spent.

        Args:
            spent: units, shape (n,), or (n, orders) if all of them count.
            order: the index of each user's own order, shape (n,); None if all orders count.

        Returns:
            Each of shape (n,); the order is NaN if the measure has none.
        """
        units = spent if spent.ndim == 2 else spent[:, np.newaxis]
        if order is None:
            at = (units / self._budget).argmax(axis=1)
            units = np.take_along_axis(units, at[:, np.newaxis], axis=1)
        else:
            at = order.astype(np.intp)
        tightest = units[:, 0]
        orders = self._orders[at] if len(self._orders) else np.full(len(spent), np.nan)
        return self._measure.stated(tightest), self._left(self._budget[at], tightest), orders

    def _left(self, budget: Units, spent: Units) -> Numbers:
        left = from_units_down(np.maximum(budget - spent, 0))
        if self._measure.power == 2:
            return np.where(left > 0.0, np.nextafter(np.sqrt(left), 0.0), 0.0)
        return left

    def epsilon(self, spent: Units, order: Units | None, delta: float) -> Numbers:
        """Return the any-time epsilon of what users have spent, shape (n,); never less.

        The arguments are those of `tightest_of_all`.
        """
        if order is None:
            rows = self._measure.stated(spent if spent.ndim == 2 else spent[:, np.newaxis])
            return self._any_time_epsilon(rows, self.orders(None), delta)
        epsilons = np.zeros(len(spent))
        for at in np.unique(order).tolist():
            alike = np.flatnonzero(order == at)
            rows = self._measure.stated(spent[alike, np.newaxis])
            epsilons[alike] = self._any_time_epsilon(rows, [self.policy.orders[at]], delta)
        return epsilons

    def _any_time_epsilon(self, spent: Numbers, orders: list[float], delta: float) -> Numbers:
        budget = self.policy.budget[0]  # the only one, in the measures that ask for it
        return self._measure.epsilon(spent, delta, orders or None, when="any time", budget=budget)
