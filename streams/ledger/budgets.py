"""The budgets that count against a charge: of its dataset, and of those that this one is within.

A charge is admitted for a user if every one of these budgets admits it, and is then charged to all
of them; else it is charged to none. A user lives in one partition for all datasets, so that this is
one step of one fold. Two datasets have a budget in common if the outermost is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput
from streams.ledger.accounts import Accounts, AccountsChanges, Plan, Raised, Sought
from streams.ledger.charges import check_charge, check_kinds
from streams.ledger.columns import Numbers
from streams.schemas import Charge, Policy, User

_NOBODY = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True)
class Charged:
    """What a charge did; arrays in the order of its users."""

    users: NDArray[np.int64] | list[User]
    admitted: NDArray[np.bool_]
    exhausted: NDArray[np.bool_]  # who has nothing left in some budget
    clipped: Numbers  # positions granted less than asked for
    granted: NDArray[np.float64]  # the norms of those positions
    refused: NDArray[np.uint8]  # the first budget that does not admit each of the halted
    slots: list[Numbers]  # of the users, in each budget
    raised: list[tuple[str, Iterator[Raised]]]  # by dataset
    changes: list[AccountsChanges]
    too_soon: NDArray[np.bool_] | None  # who had to wait; None: nobody ever has to


class Budgets:
    """The accounts of a dataset, and of those that it is within, the nearest first.

    Attributes:
        accounts: all of them.
        own: those of the dataset itself.
        outermost: those that all datasets have in common with which any budget is shared.
    """

    def __init__(self, accounts: Sequence[Accounts]) -> None:
        self.accounts = tuple(accounts)
        self.own, self.outermost = self.accounts[0], self.accounts[-1]

    @property
    def is_nested(self) -> bool:
        """Whether there is more than one."""
        return len(self.accounts) > 1

    @property
    def policies(self) -> list[Policy]:
        """Of all of them."""
        return [accounts.policy for accounts in self.accounts]

    @property
    def names(self) -> list[str]:
        """Of the datasets."""
        return [accounts.policy.dataset for accounts in self.accounts]

    @property
    def orders(self) -> Mapping[str, int]:
        """By dataset, how many numbers a user has of what is spent."""
        return {accounts.policy.dataset: accounts.rule.orders or 1 for accounts in self.accounts}

    def plan(self, charge: Charge) -> list[Plan]:
        """What one step asks of each budget, if it can be charged; nothing has changed yet.

        Raises:
            Rejection: for the first reason that applies.
        """
        held = [(accounts.policy, accounts.first_user) for accounts in self.accounts]
        users, norms, mechanism = check_charge(charge, held)
        return [Plan(users, norms, mechanism, *accounts.seek(users)) for accounts in self.accounts]

    def charge(self, plans: Sequence[Plan], too_soon: NDArray[np.bool_] | None = None) -> Charged:
        """Carry out plans that were made of the accounts as they are.

        Args:
            plans: of each budget.
            too_soon: who is left out whatever is left, (n,): nothing is asked of them anywhere.
        """
        if too_soon is not None:
            plans = [replace(plan, norms=np.where(too_soon, 0.0, plan.norms)) for plan in plans]
        for accounts, plan in zip(self.accounts, plans, strict=True):
            accounts.prepare(plan)
        allowed, refused_by = None, _NOBODY
        if self.is_nested:
            allowed, refused_by = self._allowed(plans)
        outcomes = [
            accounts.charge(plan, allowed)
            for accounts, plan in zip(self.accounts, plans, strict=True)
        ]
        own = outcomes[0]
        admitted = own.admitted if too_soon is None else own.admitted & ~too_soon
        return Charged(
            users=plans[0].users,
            admitted=admitted,
            exhausted=reduce(np.logical_or, [outcome.exhausted for outcome in outcomes]),
            clipped=own.clipped,
            granted=own.granted,
            refused=refused_by[~admitted] if self.is_nested else _NOBODY,
            slots=[plan.slots for plan in plans],
            raised=[
                (name, outcome.raised) for name, outcome in zip(self.names, outcomes, strict=True)
            ],
            changes=[outcome.changes for outcome in outcomes],
            too_soon=too_soon,
        )

    def _allowed(self, plans: Sequence[Plan]) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
        """Whom all budgets admit, and the first that does not admit each of the others."""
        admits = np.stack(
            [accounts.admits(plan) for accounts, plan in zip(self.accounts, plans, strict=True)]
        )
        everywhere = np.asarray(admits.all(axis=0))
        return everywhere, np.asarray(admits.argmin(axis=0)).astype(np.uint8)

    def enrolment(
        self, users: NDArray[np.int64] | list[User], members: Numbers, version: int
    ) -> list[Sought]:
        """Where users are who are to be enrolled, in each budget; nothing has changed.

        Args:
            users: who is to be enrolled.
            members: slots in the dataset itself of those who are.
            version: of the request.

        Raises:
            Rejection: MIXED_USERS, DUPLICATE_USER or WRONG_PARTITION.
        """
        for accounts in self.accounts:
            check_kinds(accounts.policy, accounts.first_user, users, version)
        return [self.own.seek(users, members), *(outer.seek(users) for outer in self.accounts[1:])]

    def tariffs(self, packed: bytes, levels: int) -> list[Numbers]:
        """The tariffs of the wire, one after the other: units of every level, at every order.

        Raises:
            InvalidInput: they are none.
        """
        sizes = [8 * (levels + 1) * len(policy.budget) for policy in self.policies]
        if self.is_nested and len(packed) != sum(sizes):
            raise InvalidInput("units", len(packed) // 8, f"{sum(sizes) // 8}, of all budgets")
        if not self.is_nested:
            return [self.own.rule.tariff(packed, levels)]
        ends = np.cumsum(sizes).tolist()
        return [
            accounts.rule.tariff(packed[end - size : end], levels)
            for accounts, size, end in zip(self.accounts, sizes, ends, strict=True)
        ]
