"""The state of an answerer's input, as a pure object: no I/O, no clock, no noise.

It receives events, stores those that count in future windows, and finds the window that closes
next. Lateness is decided by event. With the broker's clock, an event is too late for a window if it
arrived after the window was due to close, whatever other events did. Every user's guarantee needs
this: one user's events must not decide whether another user's events count. With the clock of the
events (``clock = "events"``), the latest event of a partition closes windows. Use it only for
inputs in the order of time, as files are sorted here; then no event is too late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from streams.answerer.events import EventReader, UnreadableEvent, UserEvent
from streams.answerer.kinds import AskedQuery, Floats
from streams.answerer.questions import Questions
from streams.answerer.windows import Calendar, Panes, Window
from streams.records import User


class EventPlace(NamedTuple):
    """The position of an event in the input."""

    partition: int
    offset: int


class Desk:
    """The state of an answerer's input.

    Args:
        questions: the file of queries.
        text: whether the columns of events are text.
        step: of the window that closes next.

    Attributes:
        asked: the queries.
        calendar: finds the window that closes next.
        positions: by partition, the offset of the next event.
        clocks: by partition, the latest time, in ms.
        passed_over: number of events that did not count, by reason.
        incomplete: number of events without the number that a query needs, by query and column. An
            event counts once for each query.
    """

    def __init__(self, questions: Questions, *, text: bool = False, step: int = 0) -> None:
        source = questions.source
        self.asked = [AskedQuery(query, text) for query in questions.queries]
        self.calendar = Calendar(questions, step)
        self.positions: dict[int, int] = {}
        self.clocks: dict[int, int] = {}
        self.passed_over: Counter[UnreadableEvent] = Counter()
        self.incomplete: Counter[tuple[str, str]] = Counter()
        self._source = source
        self._reader = EventReader(source, text)
        self._panes = [Panes(q, source.start, source.lateness) for q in questions.queries]
        self._replaying: Mapping[int, int] = {}

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
        self._take(place, self._reader.decode(value), arrived)

    def take_row(self, place: EventPlace, row: Mapping[str, object]) -> None:
        """Process a row of a file."""
        self._take(place, self._reader.event_of(row), None)

    def event_of(self, row: Mapping[str, object]) -> UserEvent | UnreadableEvent:
        """Return the event in a row of a file, or why it is unreadable."""
        return self._reader.event_of(row)

    def _take(
        self, place: EventPlace, event: UserEvent | UnreadableEvent, arrived: int | None
    ) -> None:
        partition, offset = place
        if offset < self.positions.get(partition, 0):
            return  # it was processed before
        again = offset < self._replaying.get(partition, 0)
        self.positions[partition] = offset + 1
        clock = arrived if self._source.by_arrival else None
        if isinstance(event, UserEvent):
            if arrived is not None and event.time > arrived + self._source.ahead:
                event = UnreadableEvent.AHEAD
            elif not self._source.by_arrival:
                clock = event.time
        if clock is not None:
            self.clocks[partition] = max(clock, self.clocks.get(partition, clock))
        if isinstance(event, UserEvent):
            outcome, incomplete = self._keep(event, place, arrived)
        else:
            outcome, incomplete = event, []
        if outcome is not None and not again:
            self.passed_over[outcome] += 1
            if outcome is UnreadableEvent.INCOMPLETE:
                self.incomplete.update(incomplete)

    def told_of_passed_over(self) -> str:
        """Return the number of skipped events by reason, as text; empty if there are none."""
        told = []
        for why, count in sorted(self.passed_over.items()):
            one = f"{why}: {count:,}"
            if why is UnreadableEvent.INCOMPLETE:
                where = (
                    f"{times:,} in column {column!r} of query {query!r}"
                    for (query, column), times in sorted(self.incomplete.items())
                )
                one += f" ({', '.join(where)})"
            told.append(one)
        return ", ".join(told)

    def _keep(
        self, event: UserEvent, place: EventPlace, arrived: int | None
    ) -> tuple[UnreadableEvent | None, list[tuple[str, str]]]:
        """Store an event.

        Returns:
            Why the event does not count, if so, and the queries and columns it has no number for.
        """
        if event.time < self._source.start:
            return UnreadableEvent.BEFORE, []
        outcome, incomplete = None, []
        for number, (asked, panes) in enumerate(zip(self.asked, self._panes, strict=True)):
            added = asked.added(event)
            if added is None:
                outcome = outcome or UnreadableEvent.INCOMPLETE
                incomplete.append((asked.query.name, asked.query.column))
            if not added:
                continue
            first, belongs, last = panes.windows_of(
                event.time,
                self.calendar.numbers[number],
                arrived if self._source.by_arrival else None,
            )
            if first > last:
                outcome = UnreadableEvent.TOO_LATE
                continue
            if first > belongs:
                outcome = outcome or UnreadableEvent.LATE
            panes.add(event.user, added, first, last, place)
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
        all_read = len(quiet) == partitions and not self._source.by_arrival
        return max(times) if all_read else min(times)

    def end_of_window(self, time: int | None) -> int | None:
        """Return when the first window that contains a time closes."""
        if time is None:
            return None
        closing = []
        for query in (one.query for one in self.asked):
            last = (time - self._source.start) // query.every
            first = max(last - query.window // query.every + 1, 0)
            closing.append(self._source.start + first * query.every + query.window)
        return min(closing) + self._source.lateness

    @property
    def keeps(self) -> int:
        """Return for how long after its arrival an event may count, in ms.

        The input topic must retain events for that long. An event's time can lie in the future, at
        the beginning of the longest window.
        """
        source = self._source
        return source.ahead + max(one.query.window for one in self.asked) + source.lateness

    def begins(self) -> dict[int, int]:
        """Return the offsets by partition from which the state can be rebuilt."""
        begins = dict(self.positions)
        for panes in self._panes:
            for first in panes.begins():
                for partition, offset in first.items():
                    begins[partition] = min(begins.get(partition, offset), offset)
        return begins

    def content_of(self, window: Window) -> tuple[list[User], Floats]:
        """Return the users of the window that closes next, and their contributions."""
        asked = self.asked[window.query]
        return asked.rows(self._panes[window.query].content(window.number))

    def close(self, window: Window) -> None:
        """Advance to the next window."""
        self._panes[window.query].close(window.number)
        self.calendar.advance()
