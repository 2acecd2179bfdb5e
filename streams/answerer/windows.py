"""Windows of time: the events in them, when they close, and the state of the whole input.

A window consists of panes, each from the beginning of one window to that of the next
(``spacing``). So an event is stored once, in however many windows it is. Contributions are stored
as integers, so their sums do not depend on the order of events, and a rebuilt window is charged
exactly as before.

Windows close in the order of their ends. Windows with the same end close in the order of the file.
A block of windows, whose answers are corrected together, closes after its last window, and after
all other windows with that end. So the file alone, and no data, determines what each step of the
run charges. The last windows are those that end by the public ``end`` of the input, whatever the
last event is: otherwise one user's event would decide how many answers there are.

`InputState` is pure: no I/O, no clock, no noise. Lateness is decided by event. With the broker's
clock, an event is too late for a window if it arrived after the window was due to close, whatever
other events did. Every user's guarantee needs this: one user's events must not decide whether
another user's events count. With the clock of the events (``clock = "events"``), the latest event
of a partition closes windows. Use it only for inputs in the order of time, as files are sorted
here; then no event is too late.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from streams.answerer.events import (
    EventPlace,
    SkipReason,
    UserEvent,
    decoded,
)
from streams.answerer.kinds import Content, Floats
from streams.answerer.query_file import QueryFile
from streams.answerer.spacing import NEVER, Spacing
from streams.records import User


class Window(NamedTuple):
    """A window of a query, or a block of its windows.

    Attributes:
        step: the step of the run.
        query: its index in the file.
        number: of the window or the block, from 0.
        start, end: in ms since 1970.
        closes: when it can be closed, in ms since 1970.
        is_block: whether it is a block of windows.
    """

    step: int
    query: int
    number: int
    start: int
    end: int
    closes: int
    is_block: bool = False


class _Span(NamedTuple):
    """The windows of a query, or its blocks: so many panes each, of which one begins ``every``
    panes.
    """

    query: int
    spacing: Spacing
    panes: int
    every: int = 1
    limit: int = NEVER
    most: int = NEVER  # panes of all blocks together: the last one can be shorter
    is_block: bool = False

    def begin(self, number: int) -> int:
        """Return when a window or a block begins, in ms since 1970."""
        return self.spacing.begin(number * self.every)

    def end(self, number: int) -> int:
        """Return when a window or a block ends, in ms since 1970."""
        return self.spacing.begin(min(number * self.every + self.panes, self.most))

    def ended(self, time: int) -> int:
        """Return the number of the first of them that has not ended at a time."""
        last = self.spacing.last(time)
        number = (last - self.panes) // self.every + 1 if last < self.most else self.limit
        return min(max(0, number), self.limit)


def iso(ms: int, timezone: str = "UTC") -> str:
    """Return a moment in ms since 1970 as ISO 8601, with the offset of a time zone."""
    moment = datetime.fromtimestamp(ms / 1000, ZoneInfo(timezone))
    precision = "seconds" if ms % 1000 == 0 else "milliseconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


class Calendar:
    """The order in which windows and blocks close.

    Attributes:
        next: the window or block that closes next, of all queries. After the last one, a window
            that never closes.
        limits: by query, the number of its first window that is not answered.
    """

    def __init__(self, query_file: QueryFile, step: int = 0) -> None:
        self._queries, self._blocks = query_file.queries, query_file.blocks
        self._lateness, self.limits = query_file.source.lateness.ms, query_file.limits
        parts = zip(query_file.spacings, self._queries, query_file.limits, strict=True)
        self._spans = [
            _Span(number, spacing, query.panes, limit=limit)
            for number, (spacing, query, limit) in enumerate(parts)
        ]
        for number, (query, blocks) in enumerate(zip(self._queries, self._blocks, strict=True)):
            if blocks.size:
                self._spans.append(
                    _Span(
                        number,
                        query_file.spacings[number],
                        blocks.size - 1 + query.panes,
                        blocks.size,
                        limit=blocks.number,
                        most=blocks.windows - 1 + query.panes,
                        is_block=True,
                    )
                )
        self._numbers = [0] * len(self._spans)
        self._jump_towards(step)
        self.next = self._next()
        while self.step < step:
            self.advance()

    @property
    def step(self) -> int:
        """The step of the run that charges the next window."""
        return sum(self._numbers)

    @property
    def numbers(self) -> list[int]:
        """By query, the number of its next window."""
        return self._numbers[: len(self._queries)]

    def open_windows(self, query: int) -> int:
        """Return how many windows of a query have closed since its last block that has closed."""
        blocks, closed_blocks = self._blocks[query], 0
        for span, number in zip(self._spans, self._numbers, strict=True):
            if span.is_block and span.query == query:
                closed_blocks = number
        return max(0, min(self.numbers[query], blocks.windows) - blocks.size * closed_blocks)

    def advance(self) -> None:
        """Close the next window."""
        closed = self.next.query, self.next.is_block
        place = [(span.query, span.is_block) for span in self._spans].index(closed)
        self._numbers[place] += 1
        self.next = self._next()

    def closed_before(self, query: int, number: int) -> list[int]:
        """Return by query the number of its first window that does not close before this one."""
        return self._closed_before(query, number)[: len(self._queries)]

    def block_end(self, query: int, block: int) -> int:
        """Return the end of a block, in ms since 1970."""
        return self.window(query, self._blocks[query].last_of(block)).end

    def window(self, place: int, number: int) -> Window:
        """Return a window of a query, by its place in the file, or a block, by its number from 0.

        Blocks have the places after those of all queries.
        """
        span = self._spans[place]
        start, end = span.begin(number), span.end(number)
        step = sum(self._closed_before(place, number))
        return Window(step, span.query, number, start, end, end + self._lateness, span.is_block)

    def _closed_before(self, place: int, number: int) -> list[int]:
        end = self._spans[place].end(number)
        return [
            other.ended(end - (at > place)) if at != place else number
            for at, other in enumerate(self._spans)
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
        frequent = min(
            range(len(self._queries)), key=lambda query: self._spans[query].spacing.longest(1)
        )

        def step_of(number: int) -> int:
            return sum(self._closed_before(frequent, number))

        number = bisect.bisect_right(range(step + 1), step, key=step_of) - 1
        if number >= 0:
            self._numbers = self._closed_before(frequent, number)

    def _next(self) -> Window:
        ends = [
            span.end(number) if number < span.limit else NEVER
            for number, span in zip(self._numbers, self._spans, strict=True)
        ]
        place = ends.index(min(ends))
        window = self.window(place, self._numbers[place])
        return window if ends[place] < NEVER else window._replace(closes=2 * NEVER)


class Panes:
    """The events of one query that may still count.

    Args:
        spacing: of its panes.
        panes: the number of panes of a window.
        lateness: how long after its end a window waits, in ms.
    """

    def __init__(self, spacing: Spacing, panes: int, lateness: int) -> None:
        self._last_pane, self._panes, self._lateness = spacing.last, panes, lateness
        # Each user's events of one pane that count in the same windows.
        self._buckets: dict[tuple[int, int], Content] = {}

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
        last = self._last_pane(time)
        belongs = max(last - self._panes + 1, 0)
        first = max(belongs, closed)
        if arrived is not None:
            first = max(first, self._last_pane(arrived - self._lateness) - self._panes + 1)
        return first, belongs, last

    def add(self, user: User, added: Sequence[tuple[int, int]], first: int, last: int) -> None:
        """Add an event to the windows from ``first`` to ``last``."""
        sums = self._buckets.setdefault((last, first), {}).setdefault(user, {})
        for coordinate, amount in added:
            sums[coordinate] = sums.get(coordinate, 0) + amount

    def content(self, window: int) -> Content:
        """Return each user's contribution to a window."""
        total: Content = {}
        for (pane, first), bucket in self._buckets.items():
            if first <= window <= pane < window + self._panes:
                for user, added in bucket.items():
                    sums = total.setdefault(user, {})
                    for coordinate, amount in added.items():
                        sums[coordinate] = sums.get(coordinate, 0) + amount
        return total

    def close(self, window: int) -> None:
        """Drop events that count in no window after this one."""
        for key in [key for key in self._buckets if key[0] <= window]:
            del self._buckets[key]


class InputState:
    """The state of an answerer's input.

    Args:
        query_file: the file of queries.
        step: of the window that closes next.

    Attributes:
        queries: of the file.
        calendar: finds the window that closes next.
        positions: by partition, the offset of the next event.
        clocks: by partition, the latest time, in ms.
        skipped: number of events that did not count, by reason.
        incomplete: number of events without the number that a query needs, by query and column. An
            event counts once for each query.
    """

    def __init__(self, query_file: QueryFile, *, step: int = 0) -> None:
        self._source = source = query_file.source
        self.queries = query_file.queries
        self.calendar = Calendar(query_file, step)
        self.positions: dict[int, int] = {}
        self.clocks: dict[int, int] = {}
        self.skipped: Counter[SkipReason] = Counter()
        self.incomplete: Counter[tuple[str, str]] = Counter()
        self._by_arrival = source.by_arrival
        self._ahead, self._lateness = source.ahead.ms, source.lateness.ms
        self._start, self._end = query_file.start, query_file.end
        self._spacings = query_file.spacings
        self._panes = [
            Panes(spacing, query.panes, self._lateness)
            for spacing, query in zip(self._spacings, self.queries, strict=True)
        ]
        self._replaying: Mapping[int, int] = {}
        # The offset of the first event by its time, in stretches of the longest panes, and by
        # partition.
        self._stretch = max(spacing.longest(1) for spacing in self._spacings)
        self._firsts: dict[int, dict[int, int]] = {}

    def resume(
        self, positions: Mapping[int, int], clocks: Mapping[int, int], begins: Mapping[int, int]
    ) -> None:
        """Continue from the state of another answerer.

        Events from ``begins`` to ``positions`` are read again, and are not counted as skipped
        again.
        """
        self._replaying = dict(positions)
        self.positions = dict(begins)
        self.clocks = dict(clocks)

    def take(self, place: EventPlace, value: bytes | None, arrived: int | None) -> None:
        """Process a record of the input.

        Args:
            place: of the record.
            value: the event as it was sent.
            arrived: when the broker received it, in ms; None if unknown.
        """
        partition, offset = place
        if offset < self.positions.get(partition, 0):
            return  # it was processed before
        again = offset < self._replaying.get(partition, 0)
        self.positions[partition] = offset + 1
        event = decoded(value, self._source)
        clock = arrived if self._by_arrival else None
        if isinstance(event, UserEvent):
            ahead = NEVER if arrived is None else arrived + self._ahead + 1
            if event.time >= min(self._end, ahead):
                event = SkipReason.AHEAD  # and it does not move the clock
            elif not self._by_arrival:
                clock = event.time
        if clock is not None:
            self.clocks[partition] = max(clock, self.clocks.get(partition, clock))
        if isinstance(event, UserEvent):
            if event.time >= self._start:
                firsts = self._firsts.setdefault(event.time // self._stretch, {})
                firsts[partition] = min(offset, firsts.get(partition, offset))
            self._count(*self._keep(event, arrived), is_again=again)
        else:
            self._count(event, [], is_again=again)

    def take_event(self, event: UserEvent, *, is_again: bool = False) -> None:
        """Process an event of an input that was read whole.

        Args:
            event: one that can count.
            is_again: whether an earlier answerer has processed it, so it is not counted again.
        """
        self._count(*self._keep(event, None), is_again=is_again)

    def _count(
        self, outcome: SkipReason | None, incomplete: list[tuple[str, str]], *, is_again: bool
    ) -> None:
        if outcome is not None and not is_again:
            self.skipped[outcome] += 1
            if outcome is SkipReason.INCOMPLETE:
                self.incomplete.update(incomplete)

    def _keep(
        self, event: UserEvent, arrived: int | None
    ) -> tuple[SkipReason | None, list[tuple[str, str]]]:
        """Store an event.

        Returns:
            Why the event does not count, if so, and the queries and columns it has no number for.
        """
        if event.time < self._start:
            return SkipReason.BEFORE, []
        outcome, incomplete = None, []
        for number, (query, panes) in enumerate(zip(self.queries, self._panes, strict=True)):
            added = query.added(event.columns)
            if added is None:
                outcome = outcome or SkipReason.INCOMPLETE
                incomplete.append((query.name, query.column))
            if not added:
                continue
            first, belongs, last = panes.windows_of(
                event.time,
                self.calendar.numbers[number],
                arrived if self._by_arrival else None,
            )
            if belongs >= (limit := self.calendar.limits[number]):
                outcome = outcome or SkipReason.AHEAD
                continue
            if first > min(last, limit - 1):
                outcome = SkipReason.TOO_LATE
                continue
            if first > belongs:
                outcome = outcome or SkipReason.LATE
            panes.add(event.user, added, first, last)
        return outcome, incomplete

    def is_due(self, now: int | None) -> bool:
        """Return whether the next window can be closed.

        Args:
            now: the time up to which the input is complete, in ms; None if unknown.
        """
        return now is not None and now >= self.calendar.next.closes

    def clock(self, partitions: int, quiet: Mapping[int, int | None]) -> int | None:
        """Return the time that every partition has reached, in ms; None if unknown.

        Args:
            partitions: the number of partitions.
            quiet: the partitions that were read to their end and have been idle; each with the
                broker's time up to which this holds, in ms, or None.
        """
        times: list[int] = []
        for partition in range(partitions):
            known = self.clocks.get(partition)
            if partition in quiet:
                until = quiet[partition]
                if until is not None:
                    known = until if known is None else max(known, until)
                elif len(quiet) < partitions or known is None:
                    continue
            if known is None:
                return None
            times.append(known)
        if not times:
            return None
        # If all partitions were read to their ends, the latest event counts for all of them.
        all_read = len(quiet) == partitions and not self._by_arrival
        return max(times) if all_read else min(times)

    @property
    def keeps(self) -> int:
        """Return for how long after its arrival an event may count, in ms.

        The input topic must retain events for that long. An event's time can lie in the future, at
        the beginning of the longest window.
        """
        longest = max(
            spacing.longest(query.panes)
            for query, spacing in zip(self.queries, self._spacings, strict=True)
        )
        return self._ahead + longest + self._lateness

    def begins(self) -> dict[int, int]:
        """Return the offsets by partition from which all events of later windows can be read
        again.
        """
        oldest = min(window.start for window in self.calendar.windows()) // self._stretch
        self._firsts = {time: firsts for time, firsts in self._firsts.items() if time >= oldest}
        begins = dict(self.positions)
        for firsts in self._firsts.values():
            for partition, offset in firsts.items():
                begins[partition] = min(begins[partition], offset)
        return begins

    def content_of(self, window: Window) -> tuple[list[User], Floats, list[list[int]]]:
        """Return the users of the window that closes next, their contributions, and their private
        keys, if the query has such.
        """
        query, content = self.queries[window.query], self.unbounded(window)
        return *query.rows(content), query.keys_of(content) if query.keys else []

    def unbounded(self, window: Window) -> Content:
        """Return each user's contribution to that window, before any bound."""
        return self._panes[window.query].content(window.number)

    def close(self, window: Window) -> None:
        """Advance to the next window or block."""
        if not window.is_block:
            self._panes[window.query].close(window.number)
        self.calendar.advance()
