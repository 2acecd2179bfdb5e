"""Pacing: levels that each user's budget can pay for until the last step.

A user whose gradients stay long would exhaust the budget long before a user whose gradients are
short, and the model has most to learn from the former. A pace lowers a level to what the user's
budget can pay for in every remaining step. A user who needs less saves it, and may have more later.

A level follows the observed norms and the charges of this user only: its own data and coins
(docs/guarantees.md). The service alone decides what is charged. A pace that is wrong, because other
runs charge the same users, costs steps and no privacy.

Spending up to step t never exceeds t times the cost of the first level: the pace, (budget - spent)
/ (steps left), does not fall as long as no step costs more than it. A restarted trainer, which has
not stored each user's spending, continues from this bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput, PoissonGaussian, candidate_orders
from accounting.costs.norm_levels import grid_norms
from accounting.filters.per_user_order import PerUserOrderFilter, best_order
from accounting.measures import cost_table
from streams.sdk.errors import InvalidRequest


class Pace:
    """The norm that each user can pay for in every remaining step.

    Args:
        epsilon: of the dataset, which has measure="renyi", with delta and no orders.
        delta: see epsilon.
        steps: total number of steps of the run.

    Raises:
        InvalidRequest: no budget can be made of these.
    """

    def __init__(self, epsilon: float, delta: float, steps: int) -> None:
        if steps < 1:
            raise InvalidRequest(f"steps is {steps}; it must be at least 1")
        try:
            ladder = candidate_orders(epsilon, delta)
        except InvalidInput as error:
            raise InvalidRequest(str(error)) from error
        self._rule = PerUserOrderFilter(ladder.orders, ladder.budgets)
        self._steps = steps
        self._order = self._budget = -1
        self._mechanism: PoissonGaussian | None = None

    def begin(
        self, users: int, step: int, mechanism: PoissonGaussian, clip_norm: float, levels: int
    ) -> float:
        """Return the first level of all users, as a norm, for the next step.

        It is set before the first charge, which binds each user to the best Rényi order for it.
        """
        self._norms = grid_norms(clip_norm, levels)
        self._price(mechanism)
        budgets = np.array(self._rule.budget_units)
        lasts = (budgets // np.maximum(self._units, 1) >= self._steps).any(axis=1)
        first = int(np.flatnonzero(lasts).max())
        self._order = int(best_order(self._units[first : first + 1], self._rule.budget_units)[0])
        self._budget = int(budgets[self._order])
        self._level = np.full(users, first, dtype=np.int64)
        self._spent = np.full(users, step * self._costs[first], dtype=np.int64)
        self._since = np.full(users, step, dtype=np.int64)  # the step up to which spent is known
        return float(self._norms[first])

    def charged(self, step: int, mechanism: PoissonGaussian) -> None:
        """Record the mechanism with which a step is charged."""
        if mechanism != self._mechanism:
            everybody = np.arange(len(self._level))
            self._add_up(everybody, step)
            self._price(mechanism)

    def limited(
        self, step: int, positions: NDArray[np.int64], norms: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return norms for the levels of these users after a step, none above what lasts."""
        self._add_up(positions, step + 1)
        left = max(1, self._steps - step - 1)
        afforded = np.maximum(self._budget - self._spent[positions], 0) // left
        most = np.searchsorted(self._costs, afforded, side="right") - 1
        wanted = np.searchsorted(self._norms, norms, side="left")
        level = np.minimum(most, wanted)
        self._level[positions] = level
        return np.asarray(self._norms[level])

    def _add_up(self, positions: NDArray[np.int64], step: int) -> None:
        steps = step - self._since[positions]
        self._spent[positions] += steps * self._costs[self._level[positions]]
        self._since[positions] = step

    def _price(self, mechanism: PoissonGaussian) -> None:
        self._mechanism = mechanism
        highest, levels = float(self._norms[-1]), len(self._norms) - 1
        self._units = cost_table("renyi", mechanism, highest, levels, self._rule.orders)

    @property
    def _costs(self) -> NDArray[np.int64]:
        """Return the cost of every level at the Rényi order of all users."""
        return self._units[:, self._order]
