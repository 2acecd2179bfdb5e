"""Examples grouped by user. The protected unit is the user, with any number of examples.

Users are in the order of their first example, so the same data give the same roster after a
restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accounting.exact.argument_checks import whole_number
from streams.records.users import UserIds
from streams.sdk.arguments import read_users
from streams.sdk.errors import InvalidRequest, invalid_requests


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
            with invalid_requests():
                most = whole_number("max_examples_per_user", max_examples_per_user, 1, 2**62)
            given, most = np.repeat(counts, counts), min(most, len(order))
            ranks = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
            order = order[(ranks + 1) * most // given > ranks * most // given]
            counts = np.minimum(counts, most)
        return cls(distinct, order, np.concatenate([[0], np.cumsum(counts)]), len(owners))

    @classmethod
    def covering(
        cls, examples: int, users: object = None, max_examples_per_user: int | None = None
    ) -> ExamplesByUser:
        """Group so many examples by user, as ``of`` does.

        Without ids each example has its own user, whose id is the example's index.
        """
        made = cls.of(
            np.arange(examples, dtype=np.int64) if users is None else users, max_examples_per_user
        )
        made.check_covers(examples)
        return made

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

    def select(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the examples of the users at these positions, user after user, and the number of
        each user's examples, (m,).
        """
        if len(self) == len(self.order):  # each user has one example
            return self.order[positions], np.ones(len(positions), dtype=np.int64)
        counts = self.starts[positions + 1] - self.starts[positions]
        ends = np.cumsum(counts)
        # Concatenate the ranges of the users' places.
        places = np.arange(int(counts.sum())) + np.repeat(
            self.starts[positions] - (ends - counts), counts
        )
        return self.order[places], counts


class Batch(NamedTuple):
    """Examples of the users of a step that are computed together.

    Attributes:
        users: places of users among those who were drawn.
        examples: places of their examples among those of all drawn users.
        counts: the number of examples here of each of the users, (k,).
        begins, ends: whether the first of a user's examples are here, and the last ones. Both are
            true unless a single user has more examples than a batch.
    """

    users: slice
    examples: slice
    counts: NDArray[np.int64]
    begins: bool
    ends: bool


def batches_of(counts: NDArray[np.int64], size: int) -> Iterator[Batch]:
    """Split drawn users into batches of at most so many examples; at least one batch, if empty.

    No batch cuts a user, except one with more examples than a batch, who has batches of its own.
    So the way in which a user is split follows from that user's number of examples alone.

    Args:
        counts: (m,), the number of examples of each user, at least one.
        size: of a batch.
    """
    if not len(counts):
        yield Batch(slice(0, 0), slice(0, 0), counts, True, True)
    ends, user, start = np.cumsum(counts), 0, 0
    while user < len(counts):
        stop = int(np.searchsorted(ends, start + size, side="right"))
        end = int(ends[max(stop - 1, user)])
        if stop > user:
            yield Batch(slice(user, stop), slice(start, end), counts[user:stop], True, True)
        else:
            stop = user + 1
            for first in range(start, end, size):
                last = min(first + size, end)
                here = np.array([last - first])
                ends_here = first == start, last == end
                yield Batch(slice(user, stop), slice(first, last), here, *ends_here)
        user, start = stop, end


class SumsByUser:
    """Sums of rows by user, where the examples of a user may arrive in several pieces.

    The rows of a user are added one after the other, in float64. So a sum does not depend on where
    the examples are split into pieces, which depends on the other users.

    Args:
        counts: the number of each user's examples, (m,).
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._ends = np.cumsum(counts)
        self._owners = np.repeat(np.arange(len(counts)), counts)
        self._one_each = len(self._owners) == len(counts)
        self._seen = 0
        self._begun: list[NDArray[np.float64]] = []  # partial sums of the incomplete user

    # Without a warning of numpy, which would tell that there is a user with such numbers.
    @np.errstate(over="ignore", invalid="ignore")
    def add(self, parts: Sequence[NDArray[np.floating]]) -> tuple[slice, list[NDArray[np.float64]]]:
        """Add the rows of the next examples, in parts by columns, (k, d_i) each.

        Returns:
            The users who are complete with these examples, and their sums, (users, d_i) each.
        """
        count = len(parts[0])
        owners = self._owners[self._seen : self._seen + count]
        self._seen += count
        if self._one_each:  # in float64, as if others had more: no row may depend on other users
            return slice(self._seen - count, self._seen), [
                rows.astype(np.float64, copy=False) for rows in parts
            ]
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
