"""The worst case of each budget: the spending of a user who takes part in every step at its bound.

The bound of a step is its ``clip_norm``, or the highest level of a roster. Costs rise with the
norm, so no user who was not erased has spent more than the worst case. It follows from mechanisms
and bounds alone. It does not depend on users' data, nor on who takes part, is halted or is sampled.
A step without ``clip_norm`` has no bound, so the worst case is then the whole budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from accounting import Measure, Mechanism
from streams.ledger.budgets import Budgets
from streams.ledger.roster_members import Members
from streams.ledger.tracked import Tracked
from streams.ledger.validation import check_covered
from streams.records import Policy, Rejection


class WorstCases(Tracked[list[int]]):
    """(dataset,) -> the units of its budget that are spent in the worst case, by order."""

    def __init__(self) -> None:
        super().__init__("worst-case", list[int])

    def of(self, policy: Policy) -> list[int]:
        """Return the units that are spent in the worst case, one for each order of the policy."""
        return self.get((policy.dataset,), [0] * len(policy.budget))

    def add_charge(self, budgets: Budgets, mechanism: Mechanism, clip_norm: float | None) -> None:
        """Add a step that is charged by norms, in all budgets that it draws on.

        A step that they do not cover costs nothing: it has no users here, and partitions in which
        it has users reject it.
        """
        try:
            check_covered(mechanism, budgets.policies, Measure.covers, clip_norm or 0.0)
        except Rejection:
            return
        for policy in budgets.policies:
            cost: Sequence[int] = policy.budget
            if clip_norm is not None:
                cost = _cost(policy.row, mechanism, clip_norm, tuple(policy.orders))
            self._add(policy, cost)

    def add_roster_step(self, budgets: Budgets, members: Members) -> None:
        """Add a step of a roster, which has just been charged."""
        for policy, table in zip(budgets.policies, members.recurring.tables, strict=True):
            self._add(policy, np.atleast_1d(table.units[-1]).tolist())

    def _add(self, policy: Policy, cost: Sequence[int]) -> None:
        before = self.of(policy)
        rows = zip(before, cost, policy.budget, strict=True)
        after = [min(spent + more, budget) for spent, more, budget in rows]
        if after != before:
            self[policy.dataset,] = after


@lru_cache(maxsize=1024)
def _cost(
    measure: Measure, mechanism: Mechanism, norm: float, orders: tuple[float, ...]
) -> tuple[int, ...]:
    """Return the cost of one step at a norm, one number for each order."""
    units = measure.charge_units(mechanism, [norm], orders or None)
    return tuple(np.atleast_1d(units[0]).tolist())
