"""What a step comes to under one policy: rows of numbers in, rows of numbers out.

The rule itself is in ``accounting``. This module puts its parts together: the filter decides who is
admitted, or with what norm; the odometer rises with what was charged. Nothing here is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput, Mechanism, advance_units
from accounting.costs.tariffs import checked_tariff
from accounting.rules.level_grants import grant_levels
from streams.ledger.columns import Numbers
from streams.ledger.policies import filter_of, measure_of
from streams.schemas import Policy

_BLOCK_NUMBERS = 2**18
"""Users times orders that are charged at a time: the temporaries do not grow with the record."""

NOBODY = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class ByNorm:
    """A step that is charged by norms."""

    mechanism: Mechanism
    norms: NDArray[np.float64]

    def part(self, block: slice) -> ByNorm:
        """The same for some of the users."""
        return ByNorm(self.mechanism, self.norms[block])


@dataclass(frozen=True)
class ByLevel:
    """A step that is charged by levels, each of which has a price."""

    tariff: Numbers  # (levels + 1,), or (levels + 1, orders)
    levels: NDArray[np.uint8]

    def part(self, block: slice) -> ByLevel:
        """The same for some of the users."""
        return ByLevel(self.tariff, self.levels[block])


Asked: TypeAlias = ByNorm | ByLevel


class Settled(NamedTuple):
    """What a step comes to for some users; positions are those among them."""

    spent: Numbers
    admitted: NDArray[np.bool_]
    exhausted: NDArray[np.bool_]
    clipped: Numbers  # positions, with the norms or levels that were granted
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

    def settle(self, spent_before: Numbers, base: Numbers, rungs: Numbers, asked: Asked) -> Settled:
        """Decide about some users, of whom the first three arrays are the rows."""
        clipped, granted = NOBODY, np.empty(0)
        match asked, self._policy.on_exhaustion:
            case ByNorm(mechanism, norms), "halt":
                cost = self._measure.charge_units(mechanism, norms, self._orders)
                spent, admitted = self._filter.admit_units(spent_before, cost)
            case ByNorm(mechanism, norms), _:
                spent, granted, _ = self._filter.grant_units(spent_before, mechanism, norms)
                admitted = (granted > 0) | (norms == 0)
                clipped = np.flatnonzero(admitted & (granted < norms))
            case ByLevel(tariff, levels), "halt":
                cost = tariff.take(levels, axis=0)
                spent, admitted = self._filter.admit_units(spent_before, cost)
            case ByLevel(tariff, levels), _:
                spent, lower = grant_levels(self._filter, spent_before, tariff, levels)
                admitted = (lower > 0) | (levels == 0)
                clipped = np.flatnonzero(admitted & (lower < levels))
                granted = lower.astype(np.float64)
        cost = spent - spent_before
        used, risen = advance_units(spent_before - base, rungs, cost, self._odometer_step)
        raised = positions(risen != rungs)
        return Settled(
            spent=spent,
            admitted=admitted,
            exhausted=self.exhausted(spent),
            clipped=clipped,
            granted=granted[clipped],
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

    def tariff(self, packed: bytes, levels: int) -> Numbers:
        """A tariff of the wire: units of every level up to this one, and at every order.

        Raises:
            InvalidInput: it is none.
        """
        units = np.frombuffer(packed, dtype="<i8").astype(np.int64, copy=False)
        numbers = (levels + 1) * self._budget.size
        if len(units) != numbers:
            raise InvalidInput("units", len(units), f"{numbers}, {levels + 1} levels of each order")
        shape = (levels + 1,) if self.orders is None else (levels + 1, self.orders)
        return checked_tariff(units.reshape(shape))

    def _numbers(self, units: list[int]) -> Numbers:
        numbers = np.array(units, dtype=np.int64)
        return numbers if self._measure.per_order else numbers[0]


def positions(where: NDArray[np.bool_]) -> Numbers:
    """Where it is true: most often nowhere, which is found out faster than by numpy alone."""
    return np.flatnonzero(where) if where.any() else NOBODY


def _any_order(where: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(where.any(axis=1) if where.ndim == 2 else where)
