"""Examples by user: the unit that is protected is the user, however many examples it has.

Users are in the order in which they first appear, so that the same data give the same roster after
a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streams.schemas import User
from streams.sdk.arguments import Ids, read_users
from streams.sdk.errors import InvalidRequest


@dataclass(frozen=True, eq=False)
class ExamplesByUser:
    """Which examples each user has.

    Attributes:
        users: distinct ids, (n,).
        order: all examples, those of one user after those of the user before, (examples,).
        starts: where each user's begin in ``order``, (n + 1,).
    """

    users: Ids
    order: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, user_ids: object) -> ExamplesByUser:
        """Group examples by the ids of their users, (examples,).

        Raises:
            InvalidRequest: they are no ids.
        """
        ids = read_users(user_ids)
        if isinstance(ids, list):
            places: dict[User, int] = {}
            owners = np.array([places.setdefault(user, len(places)) for user in ids], np.int64)
            users: Ids = list(places)
        else:
            distinct, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
            appearance = np.argsort(first, kind="stable")
            rank = np.empty_like(appearance)
            rank[appearance] = np.arange(appearance.size)
            users, owners = distinct[appearance], rank[inverse]
        counts = np.bincount(owners, minlength=len(users))
        starts = np.concatenate([[0], np.cumsum(counts)])
        return cls(users, np.argsort(owners, kind="stable"), starts)

    @classmethod
    def one_each(cls, examples: int) -> ExamplesByUser:
        """Every example is a user of its own, with its place as the id."""
        places = np.arange(examples, dtype=np.int64)
        return cls(places, places, np.arange(examples + 1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def check_covers(self, examples: int) -> None:
        """Refuse another number of examples than there are ids.

        Raises:
            InvalidRequest: it is another one.
        """
        if len(self.order) != examples:
            raise InvalidRequest(f"{len(self.order)} user ids for {examples} examples")

    def select(self, positions: NDArray[np.int64]) -> Selection:
        """The examples of these users."""
        counts = self.starts[positions + 1] - self.starts[positions]
        ends = np.cumsum(counts)
        # Runs of consecutive places, one after the other.
        places = np.arange(int(counts.sum())) + np.repeat(
            self.starts[positions] - (ends - counts), counts
        )
        return Selection(self.order[places], counts)

    def parts(self, positions: NDArray[np.int64], examples_at_once: int) -> list[slice]:
        """Places in ``positions`` of users that together have about so many examples."""
        counts = self.starts[positions + 1] - self.starts[positions]
        part = (np.cumsum(counts) - counts) // examples_at_once
        begins = np.flatnonzero(np.diff(part, prepend=-1))
        return [slice(begin, end) for begin, end in pairwise([*begins, len(positions)])]


@dataclass(frozen=True, eq=False)
class Selection:
    """Examples of some users.

    Attributes:
        examples: those of the first user, then those of the second, ...
        counts: how many each user has, (m,).
    """

    examples: NDArray[np.int64]
    counts: NDArray[np.int64]

    def sums(self, rows: NDArray[np.floating]) -> NDArray[np.floating]:
        """Sum rows of examples by user: (examples, d) to (m, d)."""
        if len(self.counts) == len(self.examples):
            return rows
        begins = np.cumsum(self.counts) - self.counts
        return np.add.reduceat(rows, begins, axis=0)


class SumsByUser:
    """Sums of rows of examples by user, where the examples of a user may come in several pieces.

    The rows of a user are added one after the other, in float64. So a sum does not depend on where
    the examples are cut into pieces, which depends on the other users.

    Args:
        counts: how many examples each user has, (m,).
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._ends = np.cumsum(counts)
        self._owners = np.repeat(np.arange(len(counts)), counts)
        self._seen = 0
        self._begun: list[NDArray[np.float64]] = []  # of the user of whom examples are missing

    def add(self, parts: Sequence[NDArray[np.floating]]) -> tuple[slice, list[NDArray[np.float64]]]:
        """Add the rows of the next examples, in parts of columns, (k, d_i) each, k > 0.

        Returns:
            The users that are complete with these examples, and their sums, (users, d_i) each.
        """
        count = len(parts[0])
        owners = self._owners[self._seen : self._seen + count]
        self._seen += count
        first = int(owners[0])
        complete = int(np.searchsorted(self._ends, self._seen, side="right")) - first
        owners = owners - first
        sums = [np.zeros((int(owners[-1]) + 1, rows.shape[1])) for rows in parts]
        for total, begun in zip(sums, self._begun, strict=False):
            total[0] = begun
        ranks = np.arange(count) - np.searchsorted(owners, owners)
        for rank in range(int(ranks.max()) + 1):
            chosen = np.flatnonzero(ranks == rank)
            for total, rows in zip(sums, parts, strict=True):
                total[owners[chosen]] += rows[chosen]
        self._begun = [total[complete] for total in sums] if complete < len(sums[0]) else []
        return slice(first, first + complete), [total[:complete] for total in sums]
