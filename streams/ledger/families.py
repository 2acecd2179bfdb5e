"""The datasets of one partition, and which of them share a budget."""

from __future__ import annotations

from msgspec import UNSET

from streams.ledger.accounts import Accounts
from streams.ledger.budgets import Budgets, KnownAs
from streams.ledger.tracked import Address, Tracked
from streams.records import Erase, Policy


class Policies(Tracked[Policy]):
    """The policies of all datasets; to each belong the accounts that are charged under it.

    Attributes:
        accounts: name of the dataset -> accounts.
        known_as: by which names users are kept who were erased.
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
            # In place of another policy only when what a dataset was, before it was withdrawn
            # and created anew, is put back: who was charged since comes back with later changes.
            self.accounts[name] = Accounts(after, self._partition)

    def budgets(self, name: str) -> Budgets:
        """Of a dataset and its ancestors, the nearest first.

        Raises:
            KeyError: there is no such dataset.
        """
        found = [self.accounts[name]]
        while (parent := found[-1].policy.parent) is not UNSET:
            found.append(self.accounts[parent])
        return Budgets(found, self.known_as)

    def policies_of(self, name: str) -> list[Policy]:
        """Those of a dataset and its ancestors, the nearest first; none if there is none."""
        found = []
        while (policy := self.get((name,))) is not None:
            found.append(policy)
            if policy.parent is UNSET:
                break
            name = policy.parent
        return found

    def outermost_of(self, request: Erase) -> list[str]:
        """The datasets without a parent in which somebody is to be erased."""
        if request.dataset is not UNSET:
            outermost = [policy.dataset for policy in self.policies_of(request.dataset)[-1:]]
            return [*outermost, *(share for name in outermost for share in self.shares_of(name))]
        return [
            name
            for (name,), policy in sorted(self.items())
            if policy.parent is UNSET and policy.pseudonyms == request.pseudonyms
        ]

    def family(self, outermost: str) -> list[Accounts]:
        """All accounts that share this outermost budget, by name."""
        return [self.accounts[name] for name in self.with_nested(outermost)]

    def with_nested(self, name: str) -> list[str]:
        """A dataset and all that are nested in it, by name; none if there is no such dataset."""
        found = [name] if name in self.accounts else []
        for outer in found:  # which grows meanwhile
            found.extend(self._children.get(outer, ()))
        return sorted(found)

    def has_nested(self, name: str) -> bool:
        """Whether another dataset is nested in this one."""
        return bool(self._children.get(name))

    def shares_of(self, name: str) -> list[str]:
        """Return the datasets that have a share of this one's budget, by name."""
        return sorted(self._shares.get(name, ()))
