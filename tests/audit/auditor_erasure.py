"""Erased users, as the documents say it: hashes by the key that is used when none is set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from tests.audit.auditor_accounts import Account, Dataset
from tests.audit.auditor_requests import NOT_GIVEN, User

_KEY = b"turnstile: no erasure key is set"


class Names:
    """Of one partition; ``ids`` says whose they are, which no worker knows."""

    def __init__(self) -> None:
        self.ids: dict[User, User] = {}
        self._of: dict[str, set[User]] = {}  # by the outermost dataset

    def of(self, dataset: Dataset) -> set[User]:
        """Those in datasets of which this is the outermost."""
        return self._of.setdefault(dataset.policy["dataset"], set())

    def merge(self, other: Names) -> None:
        """Add the names of another partition."""
        for dataset, names in other._of.items():
            self._of.setdefault(dataset, set()).update(names)

    def known_as(self, users: Iterable[User], outermost: Dataset) -> list[User]:
        """Users by their names, where they have one."""
        return [self._known(user, outermost) for user in users]

    def _known(self, user: User, outermost: Dataset) -> User:
        name = keyed_hash(user)
        return name if user not in outermost.accounts and name in self.of(outermost) else user


def keyed_hash(user: User) -> str:
    """What takes the place of an id."""
    kind = "erased:s:" if isinstance(user, str) else "erased:i:"
    text = f"{kind}{user}".encode()
    hashed = hashlib.blake2b(text, key=_KEY, digest_size=16, person=b"turnstile erased")
    return kind + hashed.hexdigest()


def spend_the_rest(dataset: Dataset, account: Account) -> None:
    """Nothing is left, and the odometer says nothing of it."""
    if dataset.binds and account.order is None:
        account.order = 0
    left = dataset.left(account)
    account.spent = tuple(s + rest for s, rest in zip(account.spent, left, strict=True))


def renamed(rows: dict[User, Any], user: User, name: User) -> dict[User, Any]:
    """The same rows, in their order."""
    return {name if known == user else known: row for known, row in rows.items()}


def outermost_of(datasets: dict[str, Dataset], name: str) -> str:
    """The dataset that has no other around it."""
    while (outer := datasets[name].policy["parent"]) is not NOT_GIVEN:
        name = outer
    return name
