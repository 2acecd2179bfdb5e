"""Erased users, as the documents say it: hashes by the key that is used when none is set.

No output may depend on the key, so the workers of a log may have had others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tests.audit.auditor_requests import User

if TYPE_CHECKING:
    from tests.audit.auditor_accounts import Account, Dataset

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
        names = {self.ids[name]: name for name in self.of(family)}
        return [
            user if any(user in dataset.accounts for dataset in family) else names.get(user, user)
            for user in users
        ]


def keyed_hash(user: User, hidden: bool, key: bytes = _KEY) -> str:
    """What takes the place of an id."""
    kind = "erased:s:" if isinstance(user, str) else "erased:i:"
    text = f"{kind}{user}".encode()
    hashed = hashlib.blake2b(text, key=key, digest_size=16, person=b"turnstile erased")
    return kind + "hidden:" * hidden + hashed.hexdigest()


def published(names: Iterable[User]) -> list[User]:
    """Users as outputs have them."""
    return [
        name[:9] if isinstance(name, str) and name[9:].startswith("hidden:") else name
        for name in names
    ]


def spend_the_rest(dataset: Dataset, account: Account) -> None:
    """Nothing is left, and the odometer says nothing of it."""
    if dataset.binds and account.order is None:
        account.order = 0
    left = dataset.left(account)
    account.spent = tuple(s + rest for s, rest in zip(account.spent, left, strict=True))


def renamed(rows: dict[User, Any], user: User, name: User) -> dict[User, Any]:
    """The same rows, in their order."""
    return {name if known == user else known: row for known, row in rows.items()}
