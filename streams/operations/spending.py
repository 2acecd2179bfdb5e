"""How much of their budgets users have spent, as odometers show it: so many in each eighth.

An odometer's bound rises in ticks, so that this is what was spent at most. Of many users some
stand for all: who does is fixed by a keyed hash of the id, whatever was spent. Ids are not kept.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from streams.records import OdometerCheckpoint, odometer_key

PARTS = 8
"""Odometers rise by an eighth of the budget, where nobody set another step."""
_ROUNDING = 1e-6
"""Bounds are rounded up: one of an eighth may be a little above it."""
MOST_USERS = 200_000
"""Are kept at once; when there are more, every second goes."""


class Spending:
    """Of the users of all datasets."""

    def __init__(self, most_users: int = MOST_USERS) -> None:
        self._most = most_users
        self._key = secrets.token_bytes(16)
        self._parts: dict[int, tuple[str, int]] = {}
        self._one_in = 1

    def see(self, checkpoint: OdometerCheckpoint, share: float) -> None:
        """Take a checkpoint, in any order and any number of times: a bound never falls.

        Args:
            checkpoint: of a user.
            share: of the budget, 0 to 1.
        """
        name = odometer_key(checkpoint.dataset, checkpoint.user)
        digest = hashlib.blake2b(name, digest_size=8, key=self._key).digest()
        user = int.from_bytes(digest, "big")
        if user % self._one_in:
            return
        part = min(PARTS - 1, max(0, ceil(share * PARTS - _ROUNDING) - 1))
        known = self._parts.get(user)
        self._parts[user] = checkpoint.dataset, max(part, known[1] if known else 0)
        while len(self._parts) > self._most:
            self._one_in *= 2
            kept = {user: at for user, at in self._parts.items() if user % self._one_in == 0}
            self._parts = kept

    def told(self, users: Mapping[str, int]) -> list[dict[str, Any]]:
        """Of each dataset, the number of users whose bound is in every eighth of the budget.

        Args:
            users: how many each dataset has; whom no odometer has shown yet is in the first one.
        """
        counts = Counter(list(self._parts.values()))
        return [
            _dataset(name, count, counts, self._one_in) for name, count in sorted(users.items())
        ]


def _dataset(
    name: str, users: int, counts: Mapping[tuple[str, int], int], one_in: int
) -> dict[str, Any]:
    parts = [one_in * counts.get((name, part), 0) for part in range(PARTS)]
    return {
        "dataset": name,
        "parts": _with_the_rest(parts, users),
        "users": users,
        "one_in": one_in,
    }


def _with_the_rest(parts: Iterable[int], users: int) -> list[int]:
    first, *others = parts
    return [max(first, users - sum(others)), *others]
