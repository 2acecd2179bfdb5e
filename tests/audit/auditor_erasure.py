"""Erased users, as the documents say it: hashes by the key that is used when none is set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from tests.audit.auditor_accounts import Account, Dataset
from tests.audit.auditor_requests import User

_KEY = b"turnstile: no erasure key is set"


class Names:
    """Of one partition; ``ids`` says whose they are, which no worker knows."""

    def __init__(self) -> None:
        self.ids: dict[User, User] = {}

    def of(self, family: Sequence[Dataset]) -> set[User]:
        """Those that have an account in these datasets."""
        return {name for name in self.ids if any(name in one.accounts for one in family)}

    def known_as(self, users: Iterable[User], family: Sequence[Dataset]) -> list[User]:
        """Users by their names, where they have one and their id has no account any more."""
        names = self.of(family)
        return [
            name
            if (name := keyed_hash(user)) in names
            and not any(user in dataset.accounts for dataset in family)
            else user
            for user in users
        ]


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
