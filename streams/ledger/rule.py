"""What a step comes to under one policy: rows of numbers in, rows of numbers out.

The rule itself is in ``accounting``. This module puts its parts together: the filter decides who is
admitted, or with what norm; the odometer rises with what was charged. Nothing here is written.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accounting import Mechanism, advance_units
from streams.ledger.columns import Numbers
from streams.ledger.policies import filter_of, measure_of
from streams.schemas import Policy

_BLOCK_NUMBERS = 2**18
"""Users times orders that are charged at a time: the temporaries do not grow with the record."""

NOBODY = np.empty(0, dtype=np.int64)


class Settled(NamedTuple):
    """What a step comes to for some users; positions are those among them."""

    spent: Numbers
    admitted: NDArray[np.bool_]
    exhausted: NDArray[np.bool_]
    clipped: Numbers  # positions, with the granted norms
    granted: NDArray[np.float64]
    charged: NDArray[np.bool_]  # who spent something
    raised: Numbers  # positions of those whose odometer rose, with what it is now
    base: Numbers
    rungs: Numbers
    rungs_before: Numbers


class Rule:
    """How the users of one dataset are charged.

    Attributes:
        orders: how many numbers a user has of what is spent; None: one, in rows without an axis
            for it.
        block_users: how many users are best charged at a time.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._measure = measure_of(policy)
        self._filter = filter_of(policy)
        self._orders = np.array(policy.orders) if self._measure.per_order else None
        self.orders = len(policy.orders) if self._measure.per_order else None
        self._budget = self._numbers(policy.budget)
        self._odometer_step = self._numbers(policy.odometer_step)
        # The filter alone already promises that no user goes beyond the budget.
        self._most_rungs = -(-self._budget // self._odometer_step)
        self.block_users = max(1, _BLOCK_NUMBERS // self._budget.size)

    def settle(
        self,
        spent_before: Numbers,
        base: Numbers,
        rungs: Numbers,
        mechanism: Mechanism,
        norms: NDArray[np.float64],
    ) -> Settled:
        """Decide about some users, of whom the first three arrays are the rows."""
        clipped, granted = NOBODY, np.empty(0)
        if self._policy.on_exhaustion == "halt":
            cost = self._measure.charge_units(mechanism, norms, self._orders)
            spent, admitted = self._filter.admit_units(spent_before, cost)
        else:
            spent, norms_granted, _ = self._filter.grant_units(spent_before, mechanism, norms)
            admitted = (norms_granted > 0) | (norms == 0)
            clipped = np.flatnonzero(admitted & (norms_granted < norms))
            granted = norms_granted[clipped]
        cost = spent - spent_before
        used, risen = advance_units(spent_before - base, rungs, cost, self._odometer_step)
        raised = positions(risen != rungs)
        return Settled(
            spent=spent,
            admitted=admitted,
            exhausted=self.exhausted(spent),
            clipped=clipped,
            granted=granted,
            charged=_any_order(cost != 0),
            raised=raised,
            base=spent[raised] - used[raised],
            rungs=risen[raised],
            rungs_before=rungs[raised],
        )

    def exhausted(self, spent: Numbers) -> NDArray[np.bool_]:
        """Who has nothing left, (n,)."""
        return _any_order(spent >= self._budget)

    def bounds(self, rungs: Numbers) -> NDArray[np.float64]:
        """What odometers say in the policy's own measure, (n,) or (n, orders).

        At the budget the bound remains where it is, however many rungs are climbed.
        """
        rows = rungs if self._orders is None else rungs[:, np.newaxis]
        units = np.minimum(np.minimum(rows, self._most_rungs) * self._odometer_step, self._budget)
        return self._measure.stated(units)

    def _numbers(self, units: list[int]) -> Numbers:
        numbers = np.array(units, dtype=np.int64)
        return numbers if self._measure.per_order else numbers[0]


def positions(where: NDArray[np.bool_]) -> Numbers:
    """Where it is true: most often nowhere, which is found out faster than by numpy alone."""
    return np.flatnonzero(where) if where.any() else NOBODY


def _any_order(where: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(where.any(axis=1) if where.ndim == 2 else where)
