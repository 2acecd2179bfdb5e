"""Windows of time: the events in them, and when they close.

A window consists of panes as long as the interval from one window to the next. So an event is
stored once, in however many windows it is. Contributions are stored as integers, so their sums do
not depend on the order of events, and a rebuilt window is charged exactly as before.

Windows close in the order of their ends. Windows with the same end close in the order of the file.
So the file alone, and no data, determines which window each step of the run charges.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from streams.answerer.questions import Query, Questions
from streams.records import User

Added: TypeAlias = dict[int, int]
"""A user's contribution by coordinate, in integers of a small unit."""
Content: TypeAlias = dict[User, Added]
"""Each user's contribution to a window."""


class Window(NamedTuple):
    """A window of a query: the step of the run, which query, and the window's number."""

    step: int
    query: int
    number: int
    start: int
    end: int
    closes: int


def iso(ms: int) -> str:
    """Return a moment in ms since 1970 as ISO 8601, in UTC."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    precision = "seconds" if ms % 1000 == 0 else "milliseconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


class Calendar:
    """The order in which windows close.

    Attributes:
        numbers: by query, the number of its next window, which is how many have closed.
        next: the window that closes next, of all queries.
    """

    def __init__(self, questions: Questions, step: int = 0) -> None:
        self._source = questions.source
        self._queries = questions.queries
        self.numbers = [0] * len(questions.queries)
        self._jump_towards(step)
        self.next = self._next()
        while self.step < step:
            self.advance()

    @property
    def step(self) -> int:
        """The step of the run that charges the next window."""
        return sum(self.numbers)

    def advance(self) -> None:
        """Close the next window."""
        self.numbers[self.next.query] += 1
        self.next = self._next()

    def window(self, query: int, number: int) -> Window:
        """Return a window of a query by its number, from 0."""
        asked = self._queries[query]
        start = self._source.start + number * asked.every
        end = start + asked.window
        step = sum(self.closed_before(query, number))
        return Window(step, query, number, start, end, end + self._source.lateness)

    def closed_before(self, query: int, number: int) -> list[int]:
        """Return how many windows of each query close before this one."""
        asked = self._queries[query]
        after = number * asked.every + asked.window  # from ``start`` to its end, in ms
        return [
            max(0, (after - other.window - (place > query)) // other.every + 1)
            if place != query
            else number
            for place, other in enumerate(self._queries)
        ]

    def closed(self) -> dict[str, tuple[int, int]]:
        """Return by query the begin of its first window and the end of the last that has closed."""
        return {
            query.name: (self.window(place, 0).start, self.window(place, number - 1).end)
            for place, (query, number) in enumerate(zip(self._queries, self.numbers, strict=True))
            if number
        }

    def windows(self) -> list[Window]:
        """Return the next window of each query."""
        return [self.window(query, number) for query, number in enumerate(self.numbers)]

    def _jump_towards(self, step: int) -> None:
        """Advance to a step that is not after this one, and at most a few windows before it."""
        frequent = min(range(len(self._queries)), key=lambda query: self._queries[query].every)

        def step_of(number: int) -> int:
            return sum(self.closed_before(frequent, number))

        number = bisect.bisect_right(range(step + 1), step, key=step_of) - 1
        if number >= 0:
            self.numbers = self.closed_before(frequent, number)

    def _next(self) -> Window:
        after = [
            number * asked.every + asked.window
            for number, asked in zip(self.numbers, self._queries, strict=True)
        ]
        query = after.index(min(after))
        return self.window(query, self.numbers[query])


@dataclass
class _Bucket:
    """Events of one pane that count in the same windows."""

    users: Content = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)  # offset by partition


class Panes:
    """The events of one query that may still count.

    Args:
        query: the query.
        start: when its first window begins.
        lateness: how long after its end a window waits.
    """

    def __init__(self, query: Query, start: int, lateness: int) -> None:
        self._every, self._start = query.every, start
        self._panes = query.window // query.every
        self._closes_after = query.window + lateness  # from the beginning of a window
        self._buckets: dict[tuple[int, int], _Bucket] = {}

    def windows_of(self, time: int, closed: int, arrived: int | None) -> tuple[int, int, int]:
        """Return the range of windows of an event.

        Args:
            time: of the event.
            closed: how many windows have closed.
            arrived: by the broker's clock; None if that clock does not count.

        Returns:
            The first window that the event counts in, the first whose time contains it, and the
            last one, for both.
        """
        last = (time - self._start) // self._every
        belongs = max(last - self._panes + 1, 0)
        first = max(belongs, closed)
        if arrived is not None:
            first = max(first, (arrived - self._closes_after - self._start) // self._every + 1)
        return first, belongs, last

    def add(
        self, user: User, added: Sequence[tuple[int, int]], first: int, last: int, place: _Place
    ) -> None:
        """Add an event to the windows from ``first`` to ``last``."""
        bucket = self._buckets.get((last, first))
        if bucket is None:
            bucket = self._buckets[last, first] = _Bucket()
        sums = bucket.users.setdefault(user, {})
        for coordinate, amount in added:
            sums[coordinate] = sums.get(coordinate, 0) + amount
        partition, offset = place
        if offset < bucket.first.get(partition, offset + 1):
            bucket.first[partition] = offset

    def content(self, window: int) -> Content:
        """Return each user's contribution to a window."""
        total: Content = {}
        for (pane, first), bucket in self._buckets.items():
            if first <= window <= pane < window + self._panes:
                for user, added in bucket.users.items():
                    sums = total.setdefault(user, {})
                    for coordinate, amount in added.items():
                        sums[coordinate] = sums.get(coordinate, 0) + amount
        return total

    def close(self, window: int) -> None:
        """Drop events that count in no window after this one."""
        for key in [key for key in self._buckets if key[0] <= window]:
            del self._buckets[key]

    def begins(self) -> Iterable[Mapping[int, int]]:
        """Return the offsets by partition from which the stored events can be read again."""
        return (bucket.first for bucket in self._buckets.values())


_Place = tuple[int, int]
