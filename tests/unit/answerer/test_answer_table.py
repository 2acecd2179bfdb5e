"""The table of answers: a row for each number, with corrections, and nothing that is private."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from streams.answerer.answer_plots import plot_answers, save_plot
from streams.answerer.answer_table import (
    COLUMNS,
    AnswerTable,
    gaps_of,
    length_in_words,
    shown_moment,
)
from streams.answerer.journal import JournalEntry
from streams.answerer.published_answers import (
    CorrectedWindow,
    Correction,
    PrivateAnswer,
)
from tests.unit.answerer.published import answer, correction, day, moment

DERIVED = {"label", "raw_value", "corrected", "block_end", "provisional"}
"""The columns that are named differently in the public records, or follow from them."""


def table_of(*records: PrivateAnswer | Correction, most: int | None = None) -> AnswerTable:
    table = AnswerTable(most)
    for record in records:
        table.add(record)
    return table


def test_columns_are_those_of_the_public_records() -> None:
    public = {
        name
        for record in (PrivateAnswer, Correction, CorrectedWindow)
        for name in record.__struct_fields__
    }
    assert set(COLUMNS) <= public | DERIVED
    private = set(JournalEntry.__struct_fields__) - public
    assert private
    assert private.isdisjoint(COLUMNS)


def test_a_correction_replaces_the_values_of_its_windows() -> None:
    block = [answer(at, 10.0, provisional_until=moment(2)) for at in range(2)]
    before = list(table_of(*block).rows())
    assert [(row.provisional, row.can_miss_users, row.block_end) for row in before] == [
        (True, True, day(2))
    ] * 2
    rows = list(table_of(*block, correction(block, 5.0), answer(2, 20.0)).rows())
    assert [(row.value, row.raw_value, row.corrected) for row in rows] == [
        (15.0, 10.0, True),
        (15.0, 10.0, True),
        (20.0, 20.0, False),
    ]
    assert [(row.lower, row.upper, row.noise_stddev) for row in rows[:2]] == [(12.0, 18.0, 1.0)] * 2
    assert not any(row.provisional or row.can_miss_users for row in rows)


def test_users_can_be_missing_once_the_budget_can_be_exhausted() -> None:
    early, late = answer(0, 1.0), answer(1, 1.0, exhaustible_since=moment(1))
    assert [row.can_miss_users for row in table_of(early, late).rows()] == [False, True]


def test_a_gap_is_the_time_that_no_window_covers() -> None:
    windows = [(day(0), day(1)), (day(1), day(2)), (day(4), day(5)), (day(4), day(6))]
    assert list(gaps_of(windows)) == [(day(2), day(4))]
    sliding = [(day(at), day(at + 7)) for at in range(9)]
    assert list(gaps_of(sliding)) == []
    assert list(gaps_of([])) == []


def test_series_continue_over_runs_and_the_later_run_counts() -> None:
    first = [answer(at, 1.0) for at in range(3)]
    second = [answer(at, 2.0, run="s", step=at - 2) for at in (2, 5)]
    (series,) = table_of(*first, *second).series()
    assert [window.rows[0].value for window in series.windows] == [1.0, 1.0, 2.0, 2.0]
    assert [*series.gaps] == [(day(3), day(5))]
    assert len(list(table_of(*first, *second).rows())) == 5


def test_the_table_keeps_the_newest_windows() -> None:
    table = table_of(*(answer(at, float(at)) for at in range(9)), most=3)
    assert [row.value for row in table.rows()] == [6.0, 7.0, 8.0]


def test_lengths_are_in_the_largest_whole_unit() -> None:
    ends = {"2026-03-01": "month", "2026-05-01": "3 months", "2026-02-03": "2 days"}
    ends |= {"2026-02-15": "2 weeks", "2026-02-01T06:00": "6 hours", "2027-02-01": "12 months"}
    begin = datetime(2026, 2, 1)
    found = {end: length_in_words(begin, datetime.fromisoformat(end)) for end in ends}
    assert found == ends


def test_a_local_day_on_which_the_clocks_change_is_a_day() -> None:
    changing = answer(0, 1.0, start="2026-03-29T00:00:00+01:00", end="2026-03-30T00:00:00+02:00")
    (series,) = table_of(changing).series()
    assert series.unit == "events per day"
    assert shown_moment(series.windows[0].start, series.windows[0].end) == "2026-03-29"


def test_a_window_without_a_published_key_has_no_row() -> None:
    empty = answer(1, [], labels=[])
    table = table_of(answer(0, [1.0], labels=["a"]), empty, answer(2, [2.0], labels=["b"]))
    (series,) = table.series()
    assert (len(series.windows), series.labels, [*series.gaps]) == (3, ["a", "b"], [])
    assert [row.step for row in table.rows()] == [0, 2]
    assert table_of(empty).series()[0].labels == []


@pytest.mark.slow
def test_the_plot_draws_values_intervals_and_gaps(tmp_path: Path) -> None:
    days = [answer(at, 10.0 + at) for at in (0, 1, 4)]
    late = [answer(at, 20.0, provisional_until=moment(9)) for at in (5, 6)]
    table = table_of(*days, *late)
    (axes,) = plot_answers(table).axes
    lines = [list(map(float, line.get_ydata())) for line in axes.lines]
    # The last window of each part lasts until its end.
    assert lines == [[10.0, 11.0, 11.0], [14.0, 14.0], [20.0, 20.0, 20.0]]
    bands = [band.get_datalim(axes.transData).intervaly.tolist() for band in axes.collections]
    assert bands == [[8.0, 13.0], [12.0, 16.0], [18.0, 22.0]]
    (gap,) = axes.patches
    assert gap.get_width() == 2.0  # days
    assert {line.get_linestyle() for line in axes.lines[:2]} == {"-"}
    assert axes.lines[2].get_linestyle() != "-"
    assert axes.get_ylabel() == "events per day"
    for format_, begins in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        path = tmp_path / f"draft.{format_}"
        save_plot(table, path, format_)
        assert path.read_bytes().startswith(begins)
    before = (tmp_path / "draft.svg").read_bytes()
    save_plot(table, tmp_path / "draft.svg", "svg")
    assert (tmp_path / "draft.svg").read_bytes() == before


@pytest.mark.slow
def test_a_number_without_an_estimate_is_no_zero() -> None:
    nothing = msgspec.structs.replace(answer(1, 3.0, kind="mean"), value=None)
    (axes,) = plot_answers(table_of(answer(0, 3.0, kind="mean"), nothing)).axes
    first, *others = map(float, axes.lines[0].get_ydata())
    assert first == 3.0
    assert all(value != value for value in others)


@pytest.mark.slow
def test_the_largest_labels_of_a_histogram_share_a_panel() -> None:
    labels = [f"{bin_} to {bin_ + 1}" for bin_ in range(8)]
    values = [5.0, 1.0, 8.0, 7.0, 3.0, 9.0, 2.0, 6.0]
    (axes,) = plot_answers(table_of(answer(0, values, labels=labels, kind="histogram"))).axes
    assert [line.get_ydata()[0] for line in axes.lines] == [5.0, 8.0, 7.0, 3.0, 9.0, 6.0]
    assert "6 of 8" in axes.get_title(loc="left")
