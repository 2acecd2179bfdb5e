"""Pacing: noise and levels that each user's budget can pay for until the last step.

A user whose gradients stay long would exhaust the budget long before a user whose gradients are
short, and the model has most to learn from the former. A pace lowers a level to what the user's
budget can pay for in every remaining step. A user who needs less saves it, and may have more later.

A level follows the observed norms and the charges of this user only: its own data and coins
(docs/guarantees.md). The service alone decides what is charged. A pace that is wrong, because other
runs charge the same users, costs steps and no privacy.

Spending up to step t never exceeds t times the cost of the first level: the pace, (budget - spent)
/ (steps left), does not fall as long as no step costs more than it. A restarted trainer, which has
not stored each user's spending, continues from this bound.

`noise_for_steps` calibrates noise to the individual filter. Accountants of a fixed number of steps
(``accounting.noise_for_epsilon``) return slightly less noise than a filter, which decides step by
step, needs. With that noise a user who always has the largest norm would be halted before the end,
and the last steps would be mostly noise.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput, PoissonGaussian, candidate_orders, charge_units
from accounting.costs.norm_levels import grid_norms
from accounting.filters.per_user_order import PerUserOrderFilter, best_order
from accounting.measures import cost_table
from streams.sdk.errors import InvalidRequest

_ACCURACY: Final = 1e-4
_LARGEST: Final = 1e9


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
            self._add_up(np.arange(len(self._level)), step)
            self._price(mechanism)

    def limited(
        self, step: int, positions: NDArray[np.int64], norms: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return norms for these users after a step, limited to what their budgets can pay for."""
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


def noise_for_steps(
    epsilon: float, delta: float, steps: int, *, sampling_rate: float = 1.0, clip_norm: float = 1.0
) -> float:
    """Return the noise with which a user of the largest norm is admitted to so many steps.

    The dataset has measure="renyi", epsilon and delta. Users with shorter norms are admitted to
    more steps. The result is rounded up by a factor of at most 1 + 1e-4.

    Raises:
        InvalidRequest: an argument is invalid.
    """
    if steps < 1:
        raise InvalidRequest(f"steps is {steps}; it must be at least 1")
    if not 0.0 < sampling_rate <= 1.0:
        raise InvalidRequest(f"sampling_rate is {sampling_rate}; it must be above 0, at most 1")
    if not 0.0 < clip_norm < math.inf:
        raise InvalidRequest(f"clip_norm is {clip_norm}; it must be finite and positive")
    try:
        ladder = candidate_orders(epsilon, delta)
        rule = PerUserOrderFilter(ladder.orders, ladder.budgets)
        budgets = np.array(rule.budget_units)

        def lasts(ratio: float) -> bool:
            mechanism = PoissonGaussian(ratio * clip_norm, sampling_rate)
            units = charge_units("renyi", mechanism, [clip_norm], orders=rule.orders)[0]
            return bool((budgets // np.maximum(units, 1) >= steps).any())

        high = 1.0
        while not lasts(high):
            high *= 2.0
            if high > _LARGEST:
                raise InvalidRequest(f"no noise lasts for {steps} steps at epsilon {epsilon}")
        low = high / 2.0
        while lasts(low) and low > 1.0 / _LARGEST:
            low, high = low / 2.0, low
        while high - low > _ACCURACY * high:
            middle = (low + high) / 2.0
            low, high = (low, middle) if lasts(middle) else (middle, high)
    except InvalidInput as error:
        raise InvalidRequest(str(error)) from error
    return high * clip_norm
