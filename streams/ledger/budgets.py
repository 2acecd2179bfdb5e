"""The budgets that a charge draws on: those of its dataset and its ancestors.

A charge is admitted for a user if every one of these budgets admits it, and is then charged to all
of them, once each; otherwise it is charged to none. The charged dataset's ``on_exhaustion``
decides, for all budgets, whether less than the requested norm may be granted (clip). The granted
norm is the least that any budget would grant alone, so it fits all of them. A user lives in one
partition for all datasets, so one partition decides alone.

A dataset may have several parents. Its budgets are its own, those of its parents in alphabetical
order, then those of their parents, each where it is met first. Datasets that share a budget,
directly or through others, are a *family*. A user is erased in a family at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from accounting import InvalidInput, Mechanism
from accounting.filters.account_terms import AccountCostTable
from accounting.filters.due_steps import NO_ROWS
from accounting.filters.payment import grant
from streams.ledger.accounts import AccountDelta, Accounts, PaidSlots, Raised, Sought
from streams.ledger.columns import Numbers
from streams.ledger.rule import positions
from streams.ledger.tracked import Address, Tracked
from streams.ledger.validation import check_kinds, is_keyed_hash
from streams.records import ERASED, TOO_SOON, Erase, Policy
from streams.records.users import UserIds

KnownAs = Callable[[UserIds, Accounts, Sequence[AbstractSet[str]]], UserIds]
"""Replaces ids of erased users, who are not in these accounts, by keyed hashes of these sets."""


@dataclass(frozen=True)
class Charged:
    """The result of a charge; arrays in the order of its users."""

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
        outermost: those of datasets without a parent.
        family: those of all datasets without a parent in the family, by name.
    """

    def __init__(
        self, accounts: Sequence[Accounts], family: Sequence[Accounts], known_as: KnownAs
    ) -> None:
        self.accounts, self.family = tuple(accounts), tuple(family)
        self.own = self.accounts[0]
        self.outermost = tuple(each for each in accounts if each.policy.parents is UNSET)
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

    def charge(
        self,
        users: UserIds,
        norms: NDArray[np.float64],
        mechanism: Mechanism,
        sought: Sequence[Sought],
        reserve: float = 0.0,
        too_soon: NDArray[np.bool_] | None = None,
    ) -> Charged:
        """Charge users by their norms; every check has passed.

        Args:
            norms: of these users, (n,).
            sought: the users in each budget, as it is now.
            reserve: the share of every budget that has to remain.
            too_soon: users who are halted by the minimum separation and charged nothing, (n,).
        """
        count, erased = len(users), self.are_erased(users)
        left_out = [
            (where, reason)
            for where, reason in ((too_soon, TOO_SOON), (erased, ERASED))
            if where is not None
        ]
        norms = norms.copy()
        for where, _ in left_out:
            norms[where] = 0.0
        budgets = list(zip(self.accounts, sought, strict=True))
        for accounts, found in budgets:
            accounts.prepare(found)
        granted, reasons = np.empty(count), np.empty(count, dtype=np.uint8)
        exhausted = np.zeros(count, dtype=np.bool_)
        written: list[list[PaidSlots]] = [[] for _ in budgets]
        at_once = min(accounts.rule.block_users for accounts in self.accounts)
        for start in range(0, count, at_once):
            block = slice(start, start + at_once)
            payments = [
                accounts.rule.payment(
                    accounts.columns, found.slots[block], mechanism, norms[block], reserve
                )
                for accounts, found in budgets
            ]
            asked = [payment for payment, _ in payments]
            granted[block], reasons[block] = grant(asked, norms[block], clip=self.clips)
            for (accounts, found), (payment, bound), parts in zip(
                budgets, payments, written, strict=True
            ):
                parts.append(accounts.pay(found.slots[block], payment, bound))
                if len(close := payment.close):
                    exhausted[start + close[payment.exhausted(close)]] = True
        admitted = (granted > 0) | (norms == 0)
        for where, reason in left_out:
            admitted[where], reasons[where] = False, reason
        clipped = positions(admitted & (granted < norms))
        outcomes = [
            accounts.charged(found, parts)
            for (accounts, found), parts in zip(budgets, written, strict=True)
        ]
        return Charged(
            admitted=admitted,
            exhausted=exhausted,
            clipped=clipped,
            granted=granted[clipped],
            reasons=reasons[~admitted],
            raised=[(name, raised) for name, (_, raised) in zip(self.names, outcomes, strict=True)],
            changes=[changes for changes, _ in outcomes],
        )

    def reasons(self, halted: UserIds, refused_by: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the reason byte of each halted member of a roster, (n,).

        ``refused_by`` is the first budget that does not admit each of them.
        """
        reasons = refused_by.copy() if self.is_nested else np.zeros(len(halted), dtype=np.uint8)
        erased = self.are_erased(halted)
        if erased is not None:
            reasons[erased] = ERASED
        return reasons

    def known_as(self, users: UserIds) -> UserIds:
        """Return these users, with the keyed hashes of erased ones."""
        erased = [each.erased for each in self.family]
        if not any(erased):
            return users
        # A user with an account in one of these datasets has one in each outermost one.
        return self._known_as(users, self.outermost[0], erased)

    def erased_at(self, slots: Numbers) -> Numbers:
        """Return the positions of erased users among these slots of the dataset."""
        erased = self.are_erased(self.own.users_at(slots))
        return np.flatnonzero(erased) if erased is not None else NO_ROWS

    def spend_erased(self, slots: Sequence[Numbers]) -> Iterator[AccountDelta]:
        """Charge erased users, who join a roster, all that is left of an outermost budget.

        They may be new to the outermost budgets of this dataset if these are not those in which
        they were erased. ``slots`` are those of the new members, in each budget.
        """
        if len(self.family) > 1:
            outermost = self.accounts.index(self.outermost[0])
            for position in self.erased_at(slots[0]).tolist():
                yield self.outermost[0].spend_the_rest(int(slots[outermost][position]))

    def are_erased(self, users: UserIds) -> NDArray[np.bool_] | None:
        """Return which of these users are keyed hashes of erased users, (n,); None if none is."""
        if users.are_integers or not any(each.erased for each in self.family):
            return None
        erased = np.array([is_keyed_hash(user) for user in users], dtype=np.bool_)
        return erased if erased.any() else None

    def enrolment(self, users: UserIds, members: Numbers) -> list[Sought]:
        """Return in each budget the slots of users to be enrolled; change nothing.

        ``members`` are the slots of members in the dataset itself. Reasons: MIXED_USERS,
        DUPLICATE_USER, WRONG_PARTITION.
        """
        for accounts in self.accounts:
            check_kinds(accounts.policy, accounts.first_user, users)
        return [self.own.seek(users, members), *(outer.seek(users) for outer in self.accounts[1:])]

    def cost_tables(self, packed: bytes, levels: int) -> list[AccountCostTable]:
        """Unpack each budget's cost table, units by level and order, or raise ``InvalidInput``."""
        sizes = [8 * (levels + 1) * len(policy.budget) for policy in self.policies]
        if len(packed) != sum(sizes):
            allowed = f"{sum(sizes) // 8}, {levels + 1} levels of each order of all budgets"
            raise InvalidInput("units", len(packed) // 8, allowed)
        ends = np.cumsum(sizes).tolist()
        return [
            accounts.rule.cost_table(packed[end - size : end])
            for accounts, size, end in zip(self.accounts, sizes, ends, strict=True)
        ]


class Policies(Tracked[Policy]):
    """The policies of all datasets, and the accounts that are charged under each.

    ``accounts`` are by name of the dataset, and are added and removed here.
    """

    def __init__(self, partition: int, accounts: dict[str, Accounts], known_as: KnownAs) -> None:
        super().__init__("policy", Policy)
        self.accounts, self._known_as = accounts, known_as
        self._partition = partition
        self._children: dict[str, set[str]] = {}  # the datasets whose parent each is
        self._families: dict[str, tuple[str, ...]] = {}  # the outermost datasets, by dataset
        self._budgets: dict[str, Budgets] = {}  # since the last change of a policy, by dataset
        self._shares: dict[str, set[str]] = {}  # dataset -> those that have a share of its budget

    def _moves(self, address: Address, before: Policy | None, after: Policy | None) -> None:
        (name,) = address
        if before != after:
            self._budgets.clear()
            self._note_family(name, before, after)
        for parent in (before and before.parents) or ():
            self._children[parent].remove(name)
        for parent in (after and after.parents) or ():
            self._children.setdefault(parent, set()).add(name)
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
        """Return the budgets of an existing dataset and its ancestors, the nearest first."""
        if name not in self._budgets:
            found = [self.accounts[each] for each in self.with_ancestors(name)]
            family = [self.accounts[each] for each in self.outermost_of(name)]
            self._budgets[name] = Budgets(found, family, self._known_as)
        return self._budgets[name]

    def with_ancestors(self, *names: str) -> list[str]:
        """Return datasets that exist, then their ancestors, the nearest first, each once."""
        return _closure(names, lambda name: self[name,].parents or ())

    def with_nested(self, *names: str) -> list[str]:
        """Return datasets that exist and all nested in them, by name."""
        return sorted(_closure(names, lambda name: self._children.get(name, ())))

    def outermost_of(self, name: str) -> tuple[str, ...]:
        """Return the datasets without a parent in a dataset's family, by name."""
        if name not in self._families:
            family = _closure(
                [name],
                lambda each: [*(self[each,].parents or ()), *self._children.get(each, ())],
            )
            outermost = tuple(sorted(e for e in family if self[e,].parents is UNSET))
            self._families |= dict.fromkeys(family, outermost)
        return self._families[name]

    def families_of(self, request: Erase) -> list[tuple[str, ...]]:
        """Return the outermost datasets of each family in which a request erases a user."""
        if request.dataset is UNSET:
            found = [
                self.outermost_of(name)
                for (name,), policy in self.items()
                if policy.parents is UNSET and policy.pseudonyms == request.pseudonyms
            ]
        elif request.address in self:
            found = [self.outermost_of(request.dataset)]
            shares = [share for name in found[0] for share in self.shares_of(name)]
            found += map(self.outermost_of, shares)
        else:
            found = []
        return sorted(set(found))

    def has_nested(self, name: str) -> bool:
        """Return whether another dataset is nested in this one."""
        return bool(self._children.get(name))

    def shares_of(self, name: str) -> list[str]:
        """Return the datasets that have a share of this one's budget, by name."""
        return sorted(self._shares.get(name, ()))

    def _note_family(self, name: str, before: Policy | None, after: Policy | None) -> None:
        """Add a new dataset to its parents' family; in all other cases forget the families."""
        parents = (after and after.parents) or ()
        joined = {self._families.get(parent) for parent in parents}
        if before is not None or self.has_nested(name) or len(joined) > 1:
            self._families.clear()
        elif joined and (family := joined.pop()) is not None:
            self._families[name] = family


def _closure(names: Iterable[str], following: Callable[[str], Iterable[str]]) -> list[str]:
    """Return names and all that follow from them, breadth first, each once."""
    found = dict.fromkeys(names)
    for name in (queue := list(found)):  # which grows meanwhile
        fresh = [each for each in following(name) if each not in found]
        found.update(dict.fromkeys(fresh))
        queue += fresh
    return list(found)
