"""Users who were forgotten, as the documents say it: names by the key that everybody knows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from tests.audit.auditor_accounts import Account, Dataset
from tests.audit.auditor_requests import NOT_GIVEN, User

_HIGHEST = 8
"""More names of one id were never needed."""


class Names:
    """Of one partition; ``ids`` says whose they are, which no worker knows.

    Args:
        topic: the id of norms, of which the key is made if no other is set.
    """

    def __init__(self, topic: bytes) -> None:
        self._key = public_key(topic)
        self.ids: dict[User, User] = {}
        self._of: dict[str, set[User]] = {}  # by the outermost dataset

    def of(self, dataset: Dataset) -> set[User]:
        """Those in datasets of which this is the outermost."""
        return self._of.setdefault(dataset.policy["dataset"], set())

    def known_as(self, users: Iterable[User], outermost: Dataset) -> list[User]:
        """Users by their names, where they have one."""
        return [self._known(user, outermost) for user in users]

    def _known(self, user: User, outermost: Dataset) -> User:
        if user not in outermost.accounts and self.of(outermost):
            for number in range(_HIGHEST):
                if (name := self.name(user, number)) in self.of(outermost):
                    return name
        return user

    def new(self, user: User, family: list[Dataset]) -> User:
        """The first name that nobody has."""
        return next(
            name
            for number in range(_HIGHEST)
            for name in [self.name(user, number)]
            if all(name not in dataset.accounts for dataset in family)
        )

    def name(self, user: User, number: int) -> User:
        kind, size = (b"s", 16) if isinstance(user, str) else (b"i", 8)
        text = number.to_bytes(4, "big") + kind + str(user).encode()
        hashed = hashlib.blake2b(text, key=self._key, digest_size=size, person=b"turnstile forget")
        if isinstance(user, str):
            return f"forgotten:{hashed.hexdigest()}"
        return int.from_bytes(hashed.digest(), "big", signed=True)


def public_key(topic: bytes) -> bytes:
    """Of a log that has none of its own: everybody knows it."""
    return hashlib.blake2b(topic, digest_size=32, person=b"turnstile public").digest()


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
    while (outer := datasets[name].policy["within"]) is not NOT_GIVEN:
        name = outer
    return name
