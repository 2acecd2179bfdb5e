"""The budgets that a charge draws on: those of its dataset and its ancestors.

A charge is admitted for a user if every one of these budgets admits it, and is then charged to all
of them; otherwise it is charged to none. The charged dataset's ``on_exhaustion`` decides, for all
budgets, whether less than the requested norm may be granted (clip). The granted norm is the least
that any budget would grant alone, so it fits all of them. A user lives in one partition for all
datasets, so one partition decides alone. Two datasets have a budget in common if their outermost
dataset is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from accounting import InvalidInput
from streams.ledger.accounts import AccountDelta, Accounts, ChargePlan, Raised, Sought
from streams.ledger.columns import Numbers
from streams.ledger.tracked import Address, Tracked
from streams.ledger.validation import check_charge, check_kinds
from streams.records import ERASED, OWN_BUDGET, TOO_SOON, Charge, Erase, Policy
from streams.records.users import UserIds

_NO_POSITIONS = np.empty(0, dtype=np.int64)

KnownAs = Callable[[UserIds, Accounts], UserIds]
"""Replaces the ids of erased users by their keyed hashes, as these accounts have them."""


@dataclass(frozen=True)
class Charged:
    """The result of a charge; arrays in the order of its users."""

    users: UserIds
    admitted: NDArray[np.bool_]
    exhausted: NDArray[np.bool_]  # nothing is left in some budget
    clipped: Numbers  # positions granted less than asked for
    granted: NDArray[np.float64]  # the norms of those positions
    reasons: NDArray[np.uint8]  # of each halted user: a budget, TOO_SOON or ERASED
    raised: list[tuple[str, Iterator[Raised]]]  # by dataset
    changes: list[AccountDelta]


class Budgets:
    """The accounts of a dataset, and of its ancestors, the nearest first.

    Attributes:
        accounts: all of them.
        own: the dataset's own.
        outermost: the outermost ancestor's.
    """

    def __init__(self, accounts: Sequence[Accounts], known_as: KnownAs) -> None:
        self.accounts = tuple(accounts)
        self.own, self.outermost = self.accounts[0], self.accounts[-1]
        for inner in self.accounts[:-1]:
            inner.erased = self.outermost.erased
        self._known_as = known_as

    @property
    def is_nested(self) -> bool:
        """Return whether there is more than one budget."""
        return len(self.accounts) > 1

    @property
    def clips(self) -> bool:
        """Return whether less than the requested norm may be granted."""
        return self.own.policy.on_exhaustion == "clip"

    @property
    def policies(self) -> list[Policy]:
        """Return the policies of all budgets, the nearest first."""
        return [accounts.policy for accounts in self.accounts]

    @property
    def names(self) -> list[str]:
        """Return the names of the datasets, the nearest first."""
        return [accounts.policy.dataset for accounts in self.accounts]

    @property
    def orders(self) -> Mapping[str, int]:
        """Return the number of balances per user, by dataset."""
        return {accounts.policy.dataset: accounts.rule.orders or 1 for accounts in self.accounts}

    def plan(self, charge: Charge) -> list[ChargePlan]:
        """Return the plan of a charge for each budget; change nothing.

        Raises:
            Rejection: for the first reason that applies.
        """
        held = [(accounts.policy, accounts.first_user) for accounts in self.accounts]
        users, norms, mechanism = check_charge(charge, held)
        users = self.known_as(users)
        # A step without users may have a mechanism that cannot be clipped.
        clips = self.clips and len(users) > 0
        return [
            ChargePlan(
                users, norms, mechanism, clips, charge.reserve or 0.0, *accounts.seek(users)
            )
            for accounts in self.accounts
        ]

    def charge(
        self, plans: Sequence[ChargePlan], too_soon: NDArray[np.bool_] | None = None
    ) -> Charged:
        """Carry out plans that `plan` made of the current accounts.

        Args:
            plans: one per budget.
            too_soon: users who are halted by the minimum separation and charged nothing, (n,).
        """
        reasons = np.full(len(plans[0].users), OWN_BUDGET, dtype=np.uint8)
        if too_soon is not None:
            reasons[too_soon] = TOO_SOON
        erased = self.are_erased(plans[0].users)
        if erased is not None:
            reasons[erased] = ERASED
        left_out = reasons != OWN_BUDGET
        if left_out.any():
            plans = [replace(plan, norms=np.where(left_out, 0.0, plan.norms)) for plan in plans]
        for accounts, plan in zip(self.accounts, plans, strict=True):
            accounts.prepare(plan)
        granted = None
        if self.is_nested:
            granted, refused_by = self._granted(plans)
            reasons[~left_out] = refused_by[~left_out]
        outcomes = [
            accounts.charge(plan, granted)
            for accounts, plan in zip(self.accounts, plans, strict=True)
        ]
        own = outcomes[0]
        admitted = own.admitted & ~left_out
        return Charged(
            users=plans[0].users,
            admitted=admitted,
            exhausted=reduce(np.logical_or, [outcome.exhausted for outcome in outcomes]),
            clipped=own.clipped,
            granted=own.granted,
            reasons=reasons[~admitted],
            raised=[
                (name, outcome.raised) for name, outcome in zip(self.names, outcomes, strict=True)
            ],
            changes=[outcome.changes for outcome in outcomes],
        )

    def reasons(self, halted: UserIds, refused_by: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the reason byte of each halted member of a roster, (n,).

        Args:
            halted: the halted users.
            refused_by: the first budget that does not admit each of them.
        """
        reasons = refused_by.copy() if self.is_nested else np.zeros(len(halted), dtype=np.uint8)
        erased = self.are_erased(halted)
        if erased is not None:
            reasons[erased] = ERASED
        return reasons

    def known_as(self, users: UserIds) -> UserIds:
        """Return these users, with the keyed hashes of erased ones."""
        return self._known_as(users, self.outermost)

    def erased_at(self, slots: Numbers) -> Numbers:
        """Return the positions of erased users among these slots of the dataset."""
        erased = self.are_erased(self.own.users_at(slots))
        return np.flatnonzero(erased) if erased is not None else _NO_POSITIONS

    def are_erased(self, users: UserIds) -> NDArray[np.bool_] | None:
        """Return which of these users are keyed hashes of erased users, (n,); None if none is."""
        names = self.outermost.erased
        if not names or users.are_integers:
            return None
        erased = np.array([user in names for user in users], dtype=np.bool_)
        return erased if erased.any() else None

    def _granted(
        self, plans: Sequence[ChargePlan]
    ) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
        """Return what all budgets grant together, and the first budget that grants 0, both (n,)."""
        grants = np.stack(
            [accounts.grants(plan) for accounts, plan in zip(self.accounts, plans, strict=True)]
        )
        nothing = (grants == 0) & (plans[0].norms > 0)
        return np.asarray(grants.min(axis=0)), nothing.argmax(axis=0).astype(np.uint8)

    def enrolment(self, users: UserIds, members: Numbers) -> list[Sought]:
        """Return the slots of users to be enrolled, in each budget; change nothing.

        Args:
            users: to be enrolled.
            members: slots of the members in the dataset itself.

        Raises:
            Rejection: MIXED_USERS, DUPLICATE_USER or WRONG_PARTITION.
        """
        for accounts in self.accounts:
            check_kinds(accounts.policy, accounts.first_user, users)
        return [self.own.seek(users, members), *(outer.seek(users) for outer in self.accounts[1:])]

    def cost_tables(self, packed: bytes, levels: int) -> list[Numbers]:
        """Unpack the cost table of each budget: units of every level, at every order.

        Raises:
            InvalidInput: they are no cost tables of these budgets.
        """
        sizes = [8 * (levels + 1) * len(policy.budget) for policy in self.policies]
        if self.is_nested and len(packed) != sum(sizes):
            raise InvalidInput("units", len(packed) // 8, f"{sum(sizes) // 8}, of all budgets")
        if not self.is_nested:
            return [self.own.rule.cost_table(packed, levels)]
        ends = np.cumsum(sizes).tolist()
        return [
            accounts.rule.cost_table(packed[end - size : end], levels)
            for accounts, size, end in zip(self.accounts, sizes, ends, strict=True)
        ]


class Policies(Tracked[Policy]):
    """The policies of all datasets, and the accounts that are charged under each.

    Attributes:
        accounts: name of the dataset -> accounts.
        known_as: replaces the ids of erased users by their keyed hashes.
    """

    def __init__(self, partition: int) -> None:
        super().__init__("policy", Policy)
        self.accounts: dict[str, Accounts] = {}
        self.known_as: KnownAs
        self._partition = partition
        self._children: dict[str, set[str]] = {}  # the datasets whose parent each is
        self._shares: dict[str, set[str]] = {}  # dataset -> those that have a share of its budget

    def _moves(self, address: Address, before: Policy | None, after: Policy | None) -> None:
        (name,) = address
        if before is not None and before.parent is not UNSET:
            self._children[before.parent].remove(name)
        if after is not None and after.parent is not UNSET:
            self._children.setdefault(after.parent, set()).add(name)
        if before is not None and before.share_of is not UNSET:
            self._shares[before.share_of].remove(name)
        if after is not None and after.share_of is not UNSET:
            self._shares.setdefault(after.share_of, set()).add(name)
        if after is None:
            del self.accounts[name]
        elif after != before:
            # A policy is replaced only during a restore: the dataset was withdrawn and created
            # again, and later deltas restore the users charged since.
            self.accounts[name] = Accounts(after, self._partition)

    def budgets(self, name: str) -> Budgets:
        """Return the budgets of a dataset and its ancestors, the nearest first.

        Raises:
            KeyError: if the dataset does not exist.
        """
        found = [self.accounts[name]]
        while (parent := found[-1].policy.parent) is not UNSET:
            found.append(self.accounts[parent])
        return Budgets(found, self.known_as)

    def policies_of(self, name: str) -> list[Policy]:
        """Return the policies of a dataset and its ancestors, nearest first; none if unknown."""
        found = []
        while (policy := self.get((name,))) is not None:
            found.append(policy)
            if policy.parent is UNSET:
                break
            name = policy.parent
        return found

    def outermost_of(self, request: Erase) -> list[str]:
        """Return the datasets without a parent in which a request erases a user."""
        if request.dataset is not UNSET:
            outermost = [policy.dataset for policy in self.policies_of(request.dataset)[-1:]]
            return [*outermost, *(share for name in outermost for share in self.shares_of(name))]
        return [
            name
            for (name,), policy in sorted(self.items())
            if policy.parent is UNSET and policy.pseudonyms == request.pseudonyms
        ]

    def family(self, outermost: str) -> list[Accounts]:
        """Return all accounts that share this outermost budget, by name."""
        return [self.accounts[name] for name in self.with_nested(outermost)]

    def with_nested(self, name: str) -> list[str]:
        """Return a dataset and all nested in it, by name; none if it does not exist."""
        found = [name] if name in self.accounts else []
        for outer in found:  # which grows meanwhile
            found.extend(self._children.get(outer, ()))
        return sorted(found)

    def has_nested(self, name: str) -> bool:
        """Return whether another dataset is nested in this one."""
        return bool(self._children.get(name))

    def shares_of(self, name: str) -> list[str]:
        """Return the datasets that have a share of this one's budget, by name."""
        return sorted(self._shares.get(name, ()))
