"""The names of users who were forgotten, ready to be looked for among many at every step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streams.ledger.index import UNKNOWN, UserIndex
from streams.schemas import User


class Names:
    """Of all who share a budget. Each step asks who has one: that takes as long as it has users,
    and not longer the more names there are.
    """

    def __init__(self) -> None:
        self._all: set[User] = set()
        self._integers = UserIndex()

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, user: User) -> bool:
        return user in self._all

    def add(self, name: User) -> None:
        """Have one more, if it is not there yet."""
        if name not in self._all:
            self._all.add(name)
            if not isinstance(name, str):
                self._integers.add(np.array([name], dtype=np.int64))

    def among(self, users: NDArray[np.int64] | list[User]) -> NDArray[np.bool_]:
        """Which of these users have one, (n,)."""
        if isinstance(users, np.ndarray):
            return np.asarray(self._integers.find(users) != UNKNOWN)
        return np.array([user in self._all for user in users], dtype=np.bool_)
