"""The distribution of spending: the number of users in each eighth of the budget.

It comes from odometers, which are upper bounds and rise in ticks. Only counts are kept, and no user
ids. The counts are still data about people, and confidential. If there are many users, a sample
represents them; a keyed hash of the id chooses it, independently of the spending.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Mapping
from math import ceil
from typing import Any

from streams.records import OdometerRecord, odometer_key

PARTS = 8
"""By default, odometers rise by an eighth of the budget."""
_ROUNDING = 1e-6
"""Bounds are rounded up, so a bound of an eighth can be a little above it."""
MOST_USERS = 200_000
"""The users that are kept; above this number, the sample is halved."""


class Spending:
    """The spending of the users of all datasets."""

    def __init__(self, most_users: int = MOST_USERS) -> None:
        self._most = most_users
        self._key = secrets.token_bytes(16)
        self._parts: dict[int, tuple[str, int]] = {}
        self._one_in = 1

    def see(self, odometer: OdometerRecord, share: float) -> None:
        """Count an odometer record. The order and repetitions do not matter: bounds never fall.

        Args:
            odometer: the odometer record of a user.
            share: the spent share of the budget, 0 to 1.
        """
        name = odometer_key(odometer.dataset, odometer.user)
        digest = hashlib.blake2b(name, digest_size=8, key=self._key).digest()
        user = int.from_bytes(digest, "big")
        if user % self._one_in:
            return
        part = min(PARTS - 1, max(0, ceil(share * PARTS - _ROUNDING) - 1))
        known = self._parts.get(user)
        self._parts[user] = odometer.dataset, max(part, known[1] if known else 0)
        while len(self._parts) > self._most:
            self._one_in *= 2
            kept = {user: at for user, at in self._parts.items() if user % self._one_in == 0}
            self._parts = kept

    def distribution(self, users: Mapping[str, int]) -> list[dict[str, Any]]:
        """Return, for each dataset, the number of users in every eighth of the budget.

        Args:
            users: the number of users of each dataset. Users without an odometer record are in
                the first eighth.
        """
        counts = Counter(list(self._parts.values()))
        shown = []
        for name, count in sorted(users.items()):
            first, *others = (self._one_in * counts[name, part] for part in range(PARTS))
            parts = [max(first, count - sum(others)), *others]
            shown.append({"dataset": name, "parts": parts, "users": count, "one_in": self._one_in})
        return shown
