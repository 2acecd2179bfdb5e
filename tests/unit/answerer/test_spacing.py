"""Days and months in a time zone: windows tile time, whatever the clocks do."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from streams.answerer.events import SkipReason
from streams.answerer.spacing import DAY, Spacing, Unit
from streams.answerer.windows import Calendar, InputState
from tests.unit.answerer.asking import COUNT, END, FILE, asked_of, at, event, zoned

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # midnight was skipped until 2018
    "America/St_Johns",  # midnight came twice until 2011
    "Australia/Lord_Howe",  # half an hour
    "Asia/Kathmandu",
    "Pacific/Apia",  # skipped a whole day in 2011
    "Africa/Cairo",
]


def midnight(zone: str, year: int, month: int, day: int) -> int:
    return round(datetime(year, month, day, tzinfo=ZoneInfo(zone)).timestamp() * 1000)


@given(
    zone=st.sampled_from(ZONES),
    day=st.dates(datetime(1990, 1, 1).date(), datetime(2060, 1, 1).date()),
    every=st.integers(1, 40),
    unit=st.sampled_from(["d", "mo"]),
    number=st.integers(0, 400),
    beyond=st.integers(0, 3 * DAY),
)
def test_panes_tile_time_without_gap_or_overlap(
    zone: str, day: Any, every: int, unit: Unit, number: int, beyond: int
) -> None:
    day = day.replace(day=min(day.day, 28))
    spacing = Spacing(midnight(zone, day.year, day.month, day.day), every, unit, zone)
    begin, end = spacing.begin(number), spacing.begin(number + 1)
    assert begin <= end
    assert end - begin <= spacing.longest(1)
    for time in (begin, begin + beyond, end - 1, end, end + beyond):
        found = spacing.last(time)
        assert spacing.begin(found) <= time < spacing.begin(found + 1)
    assert spacing.last(spacing.begin(0) - 1) < 0


def test_days_have_23_and_25_hours_where_the_clock_changes() -> None:
    start = midnight("Europe/Berlin", 2026, 1, 1)
    spacing = Spacing(start, 1, "d", "Europe/Berlin")
    hours = [(spacing.begin(n + 1) - spacing.begin(n)) / 3_600_000 for n in range(365)]
    assert {n: length for n, length in enumerate(hours) if length != 24.0} == {87: 23.0, 297: 25.0}
    first = datetime(2026, 1, 1) + timedelta(days=87)
    assert first == datetime(2026, 3, 29)


def test_months_begin_on_the_same_day_whatever_their_length() -> None:
    for day in (1, 15, 28):
        spacing = Spacing(midnight("Europe/Berlin", 2023, 11, day), 1, "mo", "Europe/Berlin")
        for number in range(40):
            local = datetime.fromtimestamp(spacing.begin(number) / 1000, ZoneInfo("Europe/Berlin"))
            assert (local.day, local.hour, local.minute) == (day, 0, 0)
            assert 12 * local.year + local.month == 12 * 2023 + 11 + number


def test_moments_after_the_last_year_are_in_some_pane() -> None:
    for unit in ("d", "mo"):
        spacing = Spacing(midnight("Asia/Kathmandu", 2026, 1, 1), 1, unit, "Asia/Kathmandu")
        number = spacing.last(2**62 - 1)
        assert spacing.last(2**53) == number
        assert spacing.begin(number) < spacing.begin(number + 2)


@given(
    windows=st.lists(
        st.sampled_from(["1d", "1w", "1mo", "2mo", "3mo|1mo", "6d|2d", "36h", "4h|1h"]),
        min_size=1,
        max_size=4,
    ),
    zone=st.sampled_from(["Europe/Berlin", "Pacific/Apia", "America/Sao_Paulo"]),
    steps=st.integers(0, 50),
    corrected=st.integers(1, 20),
)
def test_window_number_determines_the_windows_closed_before(
    windows: list[str], zone: str, steps: int, corrected: int
) -> None:
    file = FILE.replace("1970-01-01", "2011-10-01").replace(END, "2021-10-01")
    file = file.replace('"r"', f'"r"\ntimezone = "{zone}"')
    for number, window in enumerate(windows):
        length, _, every = window.partition("|")
        lines = f'"{length}"\nevery = "{every or length}"'
        settings = f"active_windows = 2\nleft_out = 0.3\nblock = 2\ncorrected = {corrected}"
        query = COUNT.replace('"10ms"', lines).replace("noise = 1.0", settings)
        file += query.replace("count", f"q{number}", 1)
    query_file = asked_of(file)
    calendar = Calendar(query_file)
    for step in range(steps):
        window_now = calendar.next
        if not window_now.is_block:
            closed = calendar.closed_before(window_now.query, window_now.number)
            assert closed == calendar.numbers
        assert Calendar(query_file, step).next == window_now
        calendar.advance()
        assert calendar.next.end >= window_now.end


def test_lateness_counts_from_the_local_end_of_a_month() -> None:
    text = zoned("Europe/Berlin", "2026-03-01", "1mo")
    text = text.replace('clock = "events"', 'clock = "arrival"\nlateness = "2h"')
    state = InputState(asked_of(text))
    end = midnight("Europe/Berlin", 2026, 4, 1)
    closes = end + 2 * 3_600_000
    assert state.calendar.next.closes == closes
    state.take(at(0), event(1, end - 1), closes - 1)
    state.take(at(1), event(2, end - 1), closes)
    state.take(at(2), event(3, end), closes)
    assert state.content_of(state.calendar.next)[0] == [1]
    assert state.skipped == {SkipReason.TOO_LATE: 1}
