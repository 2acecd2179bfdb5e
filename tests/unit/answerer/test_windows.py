"""Windows: their events, when they close, which events are too late, and rebuilding them."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.answerer.events import SkipReason, skipped_text
from streams.answerer.windows import Calendar, InputState
from tests.unit.answerer.asking import COUNT, END, FILE, asked_of, at, event

SLIDING = COUNT.replace('"10ms"', '"12ms"\nevery = "4ms"').replace('"count"\nkind', '"slid"\nkind')


def desk_of(text: str, step: int = 0) -> InputState:
    return InputState(asked_of(text), step=step)


def test_windows_close_in_the_order_of_their_ends() -> None:
    calendar = Calendar(asked_of(FILE + COUNT + SLIDING))
    closing = []
    for _ in range(7):
        closing.append((calendar.step, calendar.next.query, calendar.next.start, calendar.next.end))
        calendar.advance()
    assert closing == [
        (0, 0, 0, 10),
        (1, 1, 0, 12),
        (2, 1, 4, 16),
        (3, 0, 10, 20),
        (4, 1, 8, 20),
        (5, 1, 12, 24),
        (6, 1, 16, 28),
    ]
    assert Calendar(asked_of(FILE + COUNT + SLIDING), step=5).next[:6] == (5, 1, 3, 12, 24, 24)


@given(
    events=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=30),
    windows=st.sampled_from([(10, 10), (12, 4), (6, 3), (5, 1)]),
)
def test_window_contains_the_events_of_its_time(
    events: list[tuple[int, int]], windows: tuple[int, int]
) -> None:
    window, every = windows
    text = COUNT.replace('"10ms"', f'"{window}ms"\nevery = "{every}ms"')
    state = desk_of(FILE + text)
    for offset, (user, time) in enumerate(sorted(events, key=lambda e: e[1])):
        state.take(at(offset), event(user, time), None)
    # Built from a state that has closed nothing yet.
    while state.calendar.next.start <= 60:
        inside = state.calendar.next
        users, rows, _ = state.content_of(inside)
        wanted: dict[int, int] = {}
        for user, time in events:
            if inside.start <= time < inside.end:
                wanted[user] = wanted.get(user, 0) + 1
        assert users == sorted(wanted)
        assert [row[0] for row in rows] == [min(2, wanted[user]) for user in users]
        state.close(inside)


def test_event_after_its_window_closed_is_too_late() -> None:
    state = desk_of(FILE.replace("start", 'lateness = "3ms"\nstart') + COUNT)
    state.take(at(0), event(1, 12), None)
    assert not state.is_due(state.clock(1, {}))  # it waits for those that are late
    state.take(at(1), event(2, 9), None)
    state.take(at(2), event(3, 13), None)
    assert state.is_due(state.clock(1, {}))
    assert state.content_of(state.calendar.next)[0] == [2]
    state.close(state.calendar.next)
    state.take(at(3), event(4, 9), None)
    assert state.skipped == {SkipReason.TOO_LATE: 1}
    assert state.content_of(state.calendar.next)[0] == [1, 3]


def test_lateness_by_arrival_does_not_depend_on_other_events() -> None:
    """What counts is when an event came itself, even while its window is still open."""
    text = FILE.replace('clock = "events"', 'clock = "arrival"\nlateness = "5ms"') + SLIDING
    for others in ([], [(9, 11, 100)], [(9, 100, 90)]):
        state = desk_of(text)
        events = [(1, 3, 16), *others, (2, 3, 17), (3, 7, 21), (4, 9, 20)]
        for offset, (user, time, arrived) in enumerate(events):
            state.take(at(offset), event(user, time), arrived)
        windows = []
        for _ in range(3):  # they close at 17, 21 and 25
            windows.append(state.content_of(state.calendar.next)[0])
            state.close(state.calendar.next)
        assert windows == [[1], [4], [4]]
        too_late = 3 if others == [(9, 11, 100)] else 2
        assert state.skipped == {SkipReason.TOO_LATE: too_late, SkipReason.LATE: 1}


def test_event_in_the_future_does_not_move_the_clock() -> None:
    state = desk_of(FILE.replace("start", 'ahead = "5ms"\nstart') + COUNT)
    state.take(at(0), event(1, 1000), 3)
    assert state.clock(1, {}) is None
    assert state.skipped == {SkipReason.AHEAD: 1}
    state.take(at(1), event(1, 8), 3)
    assert state.clock(1, {}) == 8


@pytest.mark.parametrize("time", [1000, 10**12, 2**52])
def test_event_after_the_end_neither_counts_nor_moves_the_clock(time: int) -> None:
    state = desk_of(FILE.replace(END, "1970-01-01T00:00:00.035Z") + COUNT + SLIDING)
    state.take(at(0), event(1, time), None)
    assert state.clock(1, {}) is None
    state.take(at(1), event(1, 33), None)  # the sliding window from 20 to 32 is the last one
    assert state.skipped == {SkipReason.AHEAD: 2}
    closed = []
    while state.is_due(2**62):
        closed.append((state.calendar.next.query, state.calendar.next.end))
        state.close(state.calendar.next)
    assert [end for query, end in closed if query == 0] == [10, 20, 30]
    assert [end for query, end in closed if query == 1] == [12, 16, 20, 24, 28, 32]
    assert Calendar(asked_of(FILE + COUNT), step=len(closed)).step == len(closed)


def test_required_retention_covers_every_event_that_counts() -> None:
    text = FILE.replace('clock = "events"', 'lateness = "20ms"\nahead = "30ms"') + COUNT
    state = InputState(
        asked_of(text + COUNT.replace("10ms", "7ms").replace('"count"\nkind', '"b"\nkind'))
    )
    assert state.keeps == 30 + 10 + 20
    # As far ahead as is allowed: it is in the window that begins then, and closes no later.
    state.take(at(0), event(1, 130), 100)
    assert state.begins() == {0: 0}
    while state.is_due(100 + state.keeps):
        state.close(state.calendar.next)
    assert state.begins() == {0: 1}


def test_clock_follows_the_slowest_partition_that_is_not_idle() -> None:
    state = desk_of(FILE + COUNT)
    state.take(at(0, 0), event(1, 30), None)
    assert state.clock(2, {}) is None
    state.take(at(0, 1), event(1, 12), None)
    assert state.clock(2, {}) == 12
    assert state.clock(2, {1: None}) == 30
    assert state.clock(2, {0: None, 1: None}) == 30
    assert desk_of(FILE + COUNT).clock(2, {0: None, 1: None}) is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, SkipReason.NO_EVENT),
        (b"", SkipReason.NO_EVENT),
        (b"{", SkipReason.NO_EVENT),
        (b"[1]", SkipReason.NO_EVENT),
        (b"\xff\xff", SkipReason.NO_EVENT),
        (b"{" + b'"a":[' * 2000, SkipReason.NO_EVENT),
        (b'{"t": 1}', SkipReason.NO_USER),
        (b'{"u": "a", "t": 1}', SkipReason.NO_USER),
        (b'{"u": true, "t": 1}', SkipReason.NO_USER),
        (b'{"u": 9223372036854775808, "t": 1}', SkipReason.NO_USER),
        (b'{"u": 1}', SkipReason.NO_TIME),
        (b'{"u": 1, "t": "x"}', SkipReason.NO_TIME),
        (b'{"u": 1, "t": 1e300}', SkipReason.NO_TIME),
        (b'{"u": 1, "t": -1}', SkipReason.BEFORE),
        (b'{"u": 1, "t": 1}', SkipReason.INCOMPLETE),
        (b'{"u": 1, "t": 1, "x": "much"}', SkipReason.INCOMPLETE),
        (b'{"u": 1, "t": 1, "x": 1e999}', SkipReason.NO_EVENT),
    ],
)
def test_unusable_event_is_counted_and_skipped(value: bytes | None, why: SkipReason) -> None:
    asked = COUNT.replace('kind = "count"', 'kind = "sum"\ncolumn = "x"')
    state = desk_of(FILE + asked)
    state.take(at(0), value, None)
    assert state.skipped == {why: 1}
    told = f"{why}: 1"
    if why is SkipReason.INCOMPLETE:
        told += f" (1 in column 'x' of query {state.queries[0].name!r})"
    assert skipped_text(state.skipped, state.incomplete) == told
    state.take(at(1), event(7, 2, x=1.0), None)
    assert state.content_of(state.calendar.next)[0] == [7]


EVENTS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(0, 40)), min_size=1, max_size=25
)


@given(EVENTS, st.randoms(use_true_random=False), st.booleans())
def test_windows_rebuilt_from_an_entry_are_equal(
    events: list[tuple[int, int, int]], order: random.Random, again_at_once: bool
) -> None:
    """Whatever came when: the cut of the offsets says what is in a window."""
    text = FILE.replace("start", 'lateness = "6ms"\nstart') + COUNT + SLIDING
    records = [
        (at(sum(1 for p, *_ in events[:place] if p == partition), partition), event(user, time))
        for place, (partition, user, time) in enumerate(events)
    ]
    state = desk_of(text)
    for place, value in _mixed(records, order):
        state.take(place, value, None)
        while state.is_due(state.clock(2, {})):
            entered = dict(state.positions), dict(state.clocks), state.begins()
            inside = state.calendar.next
            # Another state, from this entry, reads the same records in another order.
            other = desk_of(text, step=inside.step)
            other.resume(*entered)
            cut = [(p, v) for p, v in records if p.offset < entered[0].get(p.partition, 0)]
            for replayed, content in _mixed(cut, order):
                other.take(replayed, content, None)
            assert other.positions == entered[0]
            assert other.skipped == {}
            users, rows, _ = state.content_of(inside)
            others, their_rows, _ = other.content_of(inside)
            assert others == users
            assert their_rows.tobytes() == rows.tobytes()
            state.close(inside)
            if again_at_once:
                other.close(inside)
                state = other


def _mixed(records: Iterable[tuple[object, bytes]], order: random.Random) -> Iterable[object]:
    """Records of partitions in any order that keeps that of each partition."""
    lanes: dict[int, list[object]] = {}
    for place, value in records:
        lanes.setdefault(place.partition, []).append((place, value))
    while lanes:
        partition = order.choice(sorted(lanes))
        yield lanes[partition].pop(0)
        if not lanes[partition]:
            del lanes[partition]
