"""Units of an account in the measure's own unit, and as an epsilon.

What was spent is rounded up, what is left is rounded down. The epsilon of what was spent holds at
every stopping time (``accounting.Measure.any_time_epsilon``), unless norm levels followed the
user's own sampling coins: then only the budget is a guarantee.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accounting import from_units_down
from streams.ledger.policies import has_per_user_order, measure_of
from streams.records import Policy

Units = NDArray[np.integer]
Numbers = NDArray[np.float64]


class Amounts:
    """Under one policy. Rows of units have one number, or one for each order that counts."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.per_user_order = has_per_user_order(policy)
        self._measure = measure_of(policy)
        self._budget = np.array(policy.budget, dtype=np.int64)
        self._orders = np.array(policy.orders)

    def at(self, numbers: Units, order: int | None) -> Units:
        """Of numbers at every order those that count for a user.

        Args:
            numbers: one per order, or one alone.
            order: the index of the one that the user is bound to, if to one alone.
        """
        rows = np.atleast_1d(numbers)
        return rows if order is None or len(rows) == 1 else rows[order : order + 1]

    def orders(self, order: int | None) -> list[float]:
        """The Rényi orders that count for a user; none if there are no orders."""
        found: list[float] = self._orders.tolist()
        return found if order is None else found[order : order + 1]

    def stated(self, units: Units) -> list[float]:
        """What was spent, or is asked for; never less."""
        found: list[float] = self._measure.stated(np.atleast_1d(units)).tolist()
        return found

    def left(self, spent: Units, order: int | None) -> list[float]:
        """What of the budget is left; never more."""
        found: list[float] = self._left(self.at(self._budget, order), np.atleast_1d(spent)).tolist()
        return found

    def tightest(self, spent: Units, order: int | None) -> int:
        """Of the numbers that count the place of the one of whose budget most is spent."""
        share = np.atleast_1d(spent) / self.at(self._budget, order)
        return int(np.argmax(share))

    def tightest_of_all(
        self, spent: Units, order: Units | None
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Of many users what was spent, what is left and at which order, where most is spent.

        Args:
            spent: units, shape (n,), or (n, orders) if all of them count.
            order: the index of the order that each is bound to, if to one alone, shape (n,).

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

    def epsilon(self, spent: Units, order: int | None, delta: float) -> float:
        """Return the any-time epsilon of what one user has spent; never less."""
        budget = self.at(self._budget, order).tolist()
        orders = self.orders(order) or None
        return float(self._measure.any_time_epsilon([self.stated(spent)], budget, delta, orders)[0])

    def epsilon_of_all(self, spent: Units, order: Units | None, delta: float) -> Numbers:
        """Return `epsilon` of many users, shape (n,); arguments as for `tightest_of_all`."""
        if order is None:
            rows = self._measure.stated(spent if spent.ndim == 2 else spent[:, np.newaxis])
            orders = self.orders(None) or None
            return self._measure.any_time_epsilon(rows, self._budget.tolist(), delta, orders)
        epsilons = np.zeros(len(spent))
        for at in np.unique(order).tolist():
            alike = np.flatnonzero(order == at)
            rows = self._measure.stated(spent[alike, np.newaxis])
            epsilons[alike] = self._measure.any_time_epsilon(
                rows, [self.policy.budget[at]], delta, [self.policy.orders[at]]
            )
        return epsilons
