"""Examples grouped by user. The protected unit is the user, with any number of examples.

Users are in the order of their first example, so the same data give the same roster after a
restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streams.records.users import UserIds
from streams.sdk.arguments import read_users
from streams.sdk.errors import InvalidRequest


@dataclass(frozen=True, eq=False)
class ExamplesByUser:
    """The examples of each user.

    Attributes:
        users: distinct ids, (n,).
        order: the examples in use, sorted by user, (used,).
        starts: where each user's examples begin in ``order``, (n + 1,).
        total: the number of examples, those that are not used included.
    """

    users: UserIds
    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    total: int

    @classmethod
    def of(cls, users: object, max_examples_per_user: int | None = None) -> ExamplesByUser:
        """Group examples by the ids of their users, (examples,).

        Args:
            users: the user of each example.
            max_examples_per_user: the number of a user's examples that are used at most: those at
                equal distances among the user's own, in their order. So the choice does not depend
                on other users, as one by the place among all examples would. None: no limit.

        Raises:
            InvalidRequest: an id or the limit is invalid.
        """
        distinct, owners = read_users(users).distinct()
        counts = np.bincount(owners, minlength=len(distinct))
        order = np.argsort(owners, kind="stable")
        if max_examples_per_user is not None:
            most = max_examples_per_user
            if not isinstance(most, int | np.integer) or isinstance(most, bool) or most < 1:
                raise InvalidRequest(
                    f"max_examples_per_user is {most!r}; it must be a whole number, at least 1"
                )
            given, most = np.repeat(counts, counts), min(int(most), len(order))
            ranks = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
            order = order[(ranks + 1) * most // given > ranks * most // given]
            counts = np.minimum(counts, most)
        return cls(distinct, order, np.concatenate([[0], np.cumsum(counts)]), len(owners))

    @classmethod
    def one_each(cls, examples: int) -> ExamplesByUser:
        """Make each example a user of its own, with the example's index as the id."""
        places = np.arange(examples, dtype=np.int64)
        return cls(UserIds(places), places, np.arange(examples + 1, dtype=np.int64), examples)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def check_covers(self, examples: int) -> None:
        """Check that there are as many examples as user ids.

        Raises:
            InvalidRequest: the numbers differ.
        """
        if self.total != examples:
            raise InvalidRequest(
                f"there are {self.total} user ids for {examples} examples; give one per example"
            )

    @cached_property
    def _is_one_each(self) -> bool:
        return bool((np.diff(self.starts) == 1).all())

    def select(self, positions: NDArray[np.int64]) -> Selection:
        """Return the examples of the users at these positions."""
        if self._is_one_each:
            return Selection(self.order[positions], np.ones(len(positions), dtype=np.int64))
        counts = self.starts[positions + 1] - self.starts[positions]
        ends = np.cumsum(counts)
        # Concatenate the ranges of the users' places.
        places = np.arange(int(counts.sum())) + np.repeat(
            self.starts[positions] - (ends - counts), counts
        )
        return Selection(self.order[places], counts)

    def parts(self, positions: NDArray[np.int64], examples_at_once: int) -> list[slice]:
        """Split ``positions`` into slices of users that together have about so many examples."""
        counts = self.starts[positions + 1] - self.starts[positions]
        part = (np.cumsum(counts) - counts) // examples_at_once
        begins = np.flatnonzero(np.diff(part, prepend=-1))
        return [slice(begin, end) for begin, end in pairwise([*begins, len(positions)])]


@dataclass(frozen=True, eq=False)
class Selection:
    """The examples of some users.

    Attributes:
        examples: those of the first user, then those of the second, and so on.
        counts: the number of each user's examples, (m,).
    """

    examples: NDArray[np.int64]
    counts: NDArray[np.int64]

    # Without a warning of numpy, which would tell that there is a user with such numbers.
    @np.errstate(over="ignore", invalid="ignore")
    def sums(self, rows: NDArray[np.floating]) -> NDArray[np.floating]:
        """Sum rows of examples by user: (examples, d) to (m, d)."""
        if len(self.counts) == len(self.examples):
            return rows
        begins = np.cumsum(self.counts) - self.counts
        return np.add.reduceat(rows, begins, axis=0)


class SumsByUser:
    """Sums of rows by user, where the examples of a user may arrive in several pieces.

    The rows of a user are added one after the other, in float64. So a sum does not depend on where
    the examples are split into pieces, which depends on the other users.

    Args:
        counts: the number of each user's examples, (m,).
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._counts = counts
        self._seen = 0
        self._begun: list[NDArray[np.float64]] = []  # partial sums of the incomplete user

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self._counts)

    @cached_property
    def _owners(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self._counts)), self._counts)

    @np.errstate(over="ignore", invalid="ignore")
    def add(self, parts: Sequence[NDArray[np.floating]]) -> tuple[slice, list[NDArray[np.float64]]]:
        """Add the rows of the next examples, in parts by columns, (k, d_i) each, k > 0.

        Returns:
            The users who are complete with these examples, and their sums, (users, d_i) each.
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
