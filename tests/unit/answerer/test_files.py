"""Files of events: each format gives the same answers."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs
from pyarrow import parquet

from streams.answerer.event_file import EventFile, label_uses
from streams.answerer.event_input import EventInput
from streams.answerer.events import SkipReason, UserEvent, event_of, number_of
from streams.answerer.memory_journal import MemoryJournal
from streams.answerer.query_file import QueryFile
from streams.answerer.query_keys import UnusableQueries
from streams.answerer.window_answering import Answering, answer_input
from tests.unit.answerer.asking import COUNT, END, FILE, asked_of
from tests.unit.answerer.lives import World

QUESTIONS = asked_of(
    FILE.replace('time_unit = "ms"\n', "").replace(END, "1970-01-05")
    + """
[[query]]
name = "spent"
kind = "sum"
column = "x"
by = "c"
labels = ["a", 2]
where = { n = 1 }
each = 4
groups = 2
window = "1d"
noise = 1.0
"""
)
ROWS = [
    {
        "u": user,
        "t": f"1970-01-0{day}T0{user}:00:00",
        "x": day + user / 4,
        "c": "a" if user % 2 else "2",
        "n": 1 if day < 4 else 0,
    }
    for day in (1, 2, 4)
    for user in range(5)
]


def csv_file(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as lines:
        out = csv.DictWriter(lines, list(rows[0]))
        out.writeheader()
        out.writerows(rows)


def jsonl_file(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows) + b"\n\n")


def parquet_file(path: Path, rows: list[dict[str, Any]]) -> None:
    parquet.write_table(pa.Table.from_pylist(rows), path)


WRITERS = {".csv": csv_file, ".jsonl": jsonl_file, ".parquet": parquet_file}
Opened = Callable[..., EventFile]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_packed_file_is_the_file_that_was_packed(suffix: str, tmp_path: Path) -> None:
    plain = tmp_path / f"events{suffix}"
    WRITERS[suffix](plain, [{"u": 1, "t": "1970-01-01", "x": 1, "c": "a", "n": 1}])
    packed = tmp_path / f"events{suffix}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    found = [EventFile(path, QUESTIONS) for path in (plain, packed)]
    assert found[0].source == found[1].source
    assert len(found[0].events) == 1
    assert found[0].events == found[1].events


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Return a function that writes a file, and opens it for the queries."""

    def opened(
        content: bytes | pa.Table, suffix: str = ".csv", query_file: QueryFile = QUESTIONS
    ) -> EventFile:
        path = tmp_path / f"events{suffix}"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            parquet.write_table(content, path)
        return EventFile(path, query_file)

    return opened


def charged(path: Path) -> list[dict[int | str, float]]:
    """Return the charge of each window, by user."""
    world = World(QUESTIONS)
    given = EventInput([EventFile(path, QUESTIONS)])
    answering = Answering(
        QUESTIONS,
        given.source,
        lambda released: world.service.open(released=released),
        MemoryJournal(world.topics, "d"),
    )
    answer_input(answering, given)
    assert sorted(world.answers) == [0, 1, 2, 3]
    return [charge for charge in world.service.charged() if charge]


@pytest.mark.parametrize("suffix", WRITERS)
def test_file_format_and_order_do_not_change_the_charges(suffix: str, tmp_path: Path) -> None:
    rows = [{**row, "c": row["c"] if row["c"] == "a" else 2} for row in ROWS]
    if suffix == ".parquet":  # a column has one type there
        rows = [{**row, "c": str(row["c"])} for row in rows]
    path = tmp_path / f"events{suffix}"
    found = []
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        WRITERS[suffix](path, rows)
        found.append(charged(path))
    assert found[0] == found[1] == found[2]
    users = {user for record in found[0] for user in record}
    assert users == ({1, 3} if suffix == ".parquet" else {0, 1, 2, 3, 4})


def test_events_count_up_to_the_last_window_of_any_query(opened: Opened) -> None:
    dated = FILE.replace('time_unit = "ms"\n', "").replace(END, "1970-01-05")
    daily, longer = (
        COUNT.replace("10ms", "1d"),
        COUNT.replace("10ms", "3d").replace("count", "l", 1),
    )
    rows = b"u,t\n" + b"".join(b"1,1970-01-0%dT12:00:00\n" % day for day in range(1, 7))
    for queries in (daily + longer, longer + daily):
        file = opened(rows, query_file=asked_of(dated + queries))
        assert (len(file.events), file.skipped) == (4, {SkipReason.AHEAD: 2})


def test_a_file_without_events_is_answered_up_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("u,t,x,c,n\n")
    assert charged(path) == []


@pytest.mark.parametrize("column", ["u", "t", "x", "c", "n"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_table_without_a_column_of_the_queries_is_rejected(
    suffix: str, column: str, tmp_path: Path
) -> None:
    path = tmp_path / f"events{suffix}"
    rows = [{**row, "c": str(row["c"])} for row in ROWS]
    WRITERS[suffix](path, [{("other" if k == column else k): row[k] for k in row} for row in rows])
    with pytest.raises(UnusableQueries) as caught:
        EventFile(path, QUESTIONS)
    assert repr(column) in str(caught.value)


def test_a_column_of_no_json_line_needs_no_acceptance(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    some = [{key: row[key] for key in ("u", "t")} for row in ROWS]
    jsonl_file(path, [*some, ROWS[0]])
    file = EventFile(path, QUESTIONS)
    assert (len(file.events), file.needs_acceptance) == (len(ROWS) + 1, False)
    jsonl_file(path, some)
    file = EventFile(path, QUESTIONS)
    assert "no row has a column 'x'" in file.report()
    assert not file.needs_acceptance  # one row with it, of one user, would change the exit code


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.txt", b""),
        ("x.csv", b""),
        ("x.csv", b"a,b\n1,2\n"),
        ("x.csv", b"u,t,x,c,n,u\n1,1970-01-01,1,a,1,2\n"),
        ("x.csv", "u,t,x,c,n\n1,1970-01-01,1,a,1\n".encode("utf-16")),
        ("x.csv", "u,t,x,c,n,größe\n1,1970-01-01,1,a,1,1\n".encode("latin-1")),
        ("x.parquet", b"PAR1 this is none"),
        ("x.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)),
        ("x.csv.gz", b"a,b\n1,2\n"),
        ("x.csv.gz", gzip.compress(b"u,t,x,c,n\n1,1970-01-01,1,a,1\n", mtime=0)[:-12]),
        ("x.csv.gz", gzip.compress(b"u,t,x,c,n\n1,1970-01-01,1,a,1\n", mtime=0)[:9] + b"\1" * 40),
        ("none/x.csv", None),
    ],
)
def test_file_without_a_usable_schema_is_rejected(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnusableQueries) as caught:
        EventFile(path, QUESTIONS)
    assert str(path) in str(caught.value)


GOOD = b"1,1970-01-01,2.5,a,1\n"
TABLES = {
    "byte-order mark": b"\xef\xbb\xbfu,t,x,c,n\n" + GOOD,
    "semicolons": (b"u;t;x;c;n\n" + GOOD.replace(b",", b";")),
    "tabs": (b"u\tt\tx\tc\tn\n" + GOOD.replace(b",", b"\t")),
    "lines of Windows": b"u,t,x,c,n\r\n1,1970-01-01,2.5,a,1\r\n,,,,\r\n\r\n",
    "quoted names and other columns": b'"u","t","x","c","n","o"\n1,1970-01-01,2.5,a,1,"a\n,""b"\n',
}


@pytest.mark.parametrize("content", TABLES.values(), ids=TABLES)
def test_tables_of_spreadsheets_are_read(content: bytes, opened: Opened) -> None:
    file = opened(content)
    assert [(one.user, one.time, one.columns["x"]) for one in file.events] == [(1, 0, 2.5)]
    assert file.report() == ""


def test_decimal_commas_are_read_where_the_file_says_so(opened: Opened) -> None:
    asked = replace(QUESTIONS, source=structs.replace(QUESTIONS.source, decimal=","))
    file = opened(b"u;t;x;c;n\n1;1970-01-01;2,5;a;1\n2;1970-01-01;1.234,5;a;1\n", query_file=asked)
    assert [one.columns["x"] for one in file.events] == [2.5, "1.234,5"]
    assert file.incomplete == {("spent", "x"): 1}


def test_digits_in_a_table_are_the_label_written_like_them(opened: Opened) -> None:
    rows = b"u,t,x,c,n\n1,1970-01-01,1,2,1\n1,1970-01-01,1,3,1\n1,1970-01-01,1,4,1\n"
    (query,) = QUESTIONS.queries
    asked = replace(QUESTIONS, queries=(structs.replace(query, labels=("a", 2, "3")),))
    file = opened(rows, query_file=asked)
    assert [one.columns["c"] for one in file.events] == [2, "3", "4"]


def test_a_column_of_text_and_numbers_is_refused_in_a_table(opened: Opened) -> None:
    (query,) = QUESTIONS.queries
    for labels in (("a", "b"), ("a", 1, "1")):
        column = "c" if labels == ("a", "b") else query.column
        changed = structs.replace(query, column=column, labels=labels)
        with pytest.raises(UnusableQueries, match="'c'"):
            opened(b"u,t,x,c,n\n", query_file=replace(QUESTIONS, queries=(changed,)))


NONE, NO_USER, NO_TIME, LACKS = (
    SkipReason.NO_EVENT,
    SkipReason.NO_USER,
    SkipReason.NO_TIME,
    SkipReason.INCOMPLETE,
)
BAD_CELLS = {
    "id as a float": (b"9.0,1970-01-01,1,a,1\n", NO_USER),
    "id with an underscore": (b"9_0,1970-01-01,1,a,1\n", NO_USER),
    "id of 5,000 digits": (b"9" * 5000 + b",1970-01-01,1,a,1\n", NO_USER),
    "no id": (b",1970-01-01,1,a,1\n", NO_USER),
    "date of the US": (b"9,01/31/1970,1,a,1\n", NO_TIME),
    "time that is none": (b"9,NaT,1,a,1\n", NO_TIME),
    "decimal comma": (b'9,1970-01-01,"2,5",a,1\n', LACKS),
    "money": (b"9,1970-01-01,$2.50,a,1\n", LACKS),
    "no number": (b"9,1970-01-01,nan,a,1\n", LACKS),
    "too large a number": (b"9,1970-01-01,1e999,a,1\n", LACKS),
    "not UTF-8": ("9,1970-01-01,1,ä,1\n".encode("latin-1"), NONE),
    "not UTF-8 in a cell of rows": (
        '9,1970-01-01,1,"ä\n8,1970-01-01,1,a,1\n",1\n'.encode("latin-1"),
        NONE,
    ),
    "a cell of 300 rows": (b'9,1970-01-01,1,"' + b"8,1970-01-01,1,a,1\n" * 300 + b'",1,1\n', NONE),
    "id with a NUL": (b"9\0,1970-01-01,1,a,1\n", NO_USER),
    "a NUL alone": (b"\0\n", NONE),
    "too few cells": (b"9,1970-01-01,1,a\n", NONE),
    "too many cells": (b"9,1970-01-01,1,a,1,1\n", NONE),
    "a huge cell of too many": (b"9,1970-01-01,1," + b"a" * 200_000 + b",1,1\n", NONE),
    "before the start": (b"9,1969-12-31,1,a,1\n", SkipReason.BEFORE),
    "after the end": (b"9,9999-12-31,1,a,1\n", SkipReason.AHEAD),
}


@pytest.mark.parametrize(("line", "why"), BAD_CELLS.values(), ids=BAD_CELLS)
def test_a_cell_of_one_user_costs_the_row_and_nothing_else(
    line: bytes, why: SkipReason, opened: Opened
) -> None:
    file = opened(b"u,t,x,c,n\n" + GOOD * 2 + line + GOOD * 1000)
    assert file.skipped == {why: 1}
    assert sum(one.user == 1 for one in file.events) == 1002
    assert file.needs_acceptance is (why not in (SkipReason.BEFORE, SkipReason.AHEAD))
    assert f"{why}: 1" in file.report()


def test_open_quote_is_refused_as_rows_of_others_may_follow(opened: Opened) -> None:
    with pytest.raises(UnusableQueries, match="row 3"):
        opened(b"u,t,x,c,n\n" + GOOD + b'9,1970-01-01,1,"a,1\n' + GOOD)


@pytest.mark.parametrize("user", ["", "x" * 257, "\ud800", "erased:x", 7, None])
def test_text_that_is_no_id_costs_its_row(user: object) -> None:
    source = structs.replace(QUESTIONS.source, users="string")
    row = {"u": user, "t": "1970-01-01"}
    assert event_of(row, source) is NO_USER
    for name, normal in (("x" * 256, "x" * 256), ("e\u0301", "\u00e9")):
        assert event_of(row | {"u": name}, source) == UserEvent(normal, 0, row | {"u": name})


BAD_LINES = {
    "NaN": (b'{"u": 9, "t": "1970-01-01", "x": NaN}', NONE),
    "half an object": (b'{"u": 9', NONE),
    "a NUL": (b"\0", NONE),
    "a list": (b'[{"u": 9}]', NONE),
    "not UTF-8": (b'{"u": 9, "t": "1970-01-01", "c": "\xe4"}', NONE),
    "MessagePack": (b"\x81\xa1u\x01", NONE),
    "half a character": (b'{"u": "\\ud800", "t": "1970-01-01"}', None),
    "id as a float": (b'{"u": 9.0, "t": "1970-01-01"}', NO_USER),
    "number as text": (b'{"u": 9, "t": "1970-01-01", "x": "2", "c": "a", "n": 1}', LACKS),
    "number as a flag": (b'{"u": 9, "t": "1970-01-01", "x": true, "c": "a", "n": 1}', LACKS),
}


@pytest.mark.parametrize(("line", "why"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_of_one_user_costs_itself_and_nothing_else(
    line: bytes, why: SkipReason | None, opened: Opened
) -> None:
    good = b'{"u": 1, "t": "1970-01-01", "x": 2.5, "c": "a", "n": 1}\n'
    file = opened(b"\xef\xbb\xbf" + good + line + b"\n" + good, ".jsonl")
    assert sum(file.skipped.values()) == 1
    assert why is None or file.skipped == {why: 1}
    assert sum(one.user == 1 for one in file.events) == 2
    assert file.needs_acceptance


def arrow(**columns: pa.Array) -> pa.Table:
    usual = {
        "u": pa.array([1, 2, 3]),
        "t": pa.array([0, 1, 2], pa.timestamp("s")),
        "x": pa.array([1.0, 2.0, 3.0]),
        "c": pa.array(["a", "a", "a"]),
        "n": pa.array([1, 1, 1]),
    }
    return pa.table(usual | columns)


DECIMALS = list(map(Decimal, ("10.50", "0.10", "3.00")))
MOMENTS = ["1970-01-01T00:00:00.000", "1970-01-02T03:04:05.678", "1970-01-03T00:00:00"]
TYPES = {
    "integers of 8 bits": ("u", pa.array([1, 2, 3], pa.uint8()), [1, 2, 3]),
    "ids of a category": ("u", pa.array([1, 2, 3]).dictionary_encode(), [1, 2, 3]),
    "decimals": ("x", pa.array(DECIMALS, pa.decimal128(10, 2)), [10.5, 0.1, 3.0]),
    "wide decimals": ("x", pa.array(DECIMALS, pa.decimal256(60, 2)), [10.5, 0.1, 3.0]),
    "half floats": ("x", pa.array(np.array([1, 2, 3], np.float16)), [1.0, 2.0, 3.0]),
    "integers as numbers": ("x", pa.array([1, 2, 3], pa.int8()), [1.0, 2.0, 3.0]),
    "labels of a category": ("c", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "long labels": ("c", pa.array(["a", "b", "a"], pa.large_string()), ["a", "b", "a"]),
    "dates": ("t", pa.array([0, 1, 2], pa.date32()), [0, 86_400_000, 172_800_000]),
    "text": ("t", pa.array(MOMENTS), [0, 97_445_678, 172_800_000]),
    **{
        f"times in {unit}": (
            "t",
            pa.array([0, 10**power, 2 * 10**power], pa.timestamp(unit, zone)),
            [0, 1000, 2000],
        )
        for unit, power in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9))
        for zone in (None, "America/New_York")
    },
}


@pytest.mark.parametrize(("column", "values", "wanted"), TYPES.values(), ids=TYPES)
def test_types_of_parquet_for_ids_times_and_numbers_are_read(
    column: str, values: pa.Array, wanted: list[Any], opened: Opened
) -> None:
    file = opened(arrow(**{column: values}), ".parquet")
    found = {"u": lambda one: one.user, "t": lambda one: one.time}
    number = {"x": lambda one: number_of(one.columns["x"])}
    of = (found | number).get(column, lambda one: one.columns[column])
    assert ([of(one) for one in file.events], file.report()) == (wanted, "")


UNUSABLE = {
    "float ids": ("u", pa.array([1.0, 2.0, 3.0])),
    "text ids": ("u", pa.array(["1", "2", "3"])),
    "no ids": ("u", pa.nulls(3)),
    "times of the day": ("t", pa.array([0, 1, 2], pa.time64("us"))),
    "durations": ("t", pa.array([0, 1, 2], pa.duration("s"))),
    "integers for ISO 8601": ("t", pa.array([0, 1, 2])),
    "text numbers": ("x", pa.array(["1", "2", "3"])),
    "flags as numbers": ("x", pa.array([True, False, True])),
    "lists as numbers": ("x", pa.array([[1.0], [2.0], [3.0]])),
    "bytes as labels": ("c", pa.array([b"a", b"b", b"a"])),
    "floats as labels": ("n", pa.array([1.0, 1.0, None])),
}


@pytest.mark.parametrize(("column", "values"), UNUSABLE.values(), ids=UNUSABLE)
def test_column_of_an_unusable_type_is_rejected_by_the_schema(
    column: str, values: pa.Array, opened: Opened
) -> None:
    for table in (arrow(**{column: values}), arrow(**{column: values}).slice(0, 0)):
        with pytest.raises(UnusableQueries, match=repr(column)):
            opened(table, ".parquet")


def garbled(good: bytes) -> pa.Array:
    return pa.array([good, b"\xff", good]).view(pa.string())


LARGEST = 2**63 - 1
BAD_VALUES = {
    "seconds beyond all years": (
        "t",
        pa.array([0, LARGEST // 1000, 1], pa.timestamp("s")),
        NO_TIME,
    ),
    "microseconds beyond all years": ("t", pa.array([0, -LARGEST, 1], pa.timestamp("us")), NO_TIME),
    "days beyond all years": ("t", pa.array([0, 2**31 - 1, 1], pa.date32()), NO_TIME),
    "no time": ("t", pa.array([0, None, 1], pa.timestamp("ms")), NO_TIME),
    "a time that is not UTF-8": ("t", garbled(b"1970-01-01"), NONE),
    "a label that is not UTF-8": ("c", garbled(b"a"), NONE),
    "a large id": ("u", pa.array([1, 2**64 - 1, 3], pa.uint64()), NO_USER),
    "a number that is none": ("x", pa.array([1.0, float("nan"), 2.0]), LACKS),
    "no decimal": ("x", pa.array([1, None, 2], pa.decimal128(38, 0)), LACKS),
}


@pytest.mark.parametrize(("column", "values", "why"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_value_of_parquet_costs_the_row_and_nothing_else(
    column: str, values: pa.Array, why: SkipReason, opened: Opened
) -> None:
    file = opened(arrow(**{column: values}), ".parquet")
    assert file.skipped == {why: 1}
    assert len({one.user for one in file.events} & {1, 3}) == 2


@pytest.mark.parametrize("suffix", WRITERS)
def test_labels_that_do_not_fit_the_values_of_a_file_are_listed(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"events{suffix}"
    rows = [{**row, "n": 1} for row in ROWS]
    WRITERS[suffix](path, rows)
    (query,) = (one for one in QUESTIONS.queries if one.labels)
    for labels, where, unused in (
        (("a", "2"), {"n": 1}, []),
        (("a", "b"), {"n": (1, 3)}, [("where", "n", [3], {}), ("labels", "c", ["b"], {"'2'": 9})]),
        (("a", "2", 3), {"n": 5}, [("where", "n", [5], {}), ("labels", "c", ["a", "2", 3], {})]),
    ):
        changed = structs.replace(query, labels=labels, where=where, groups=1)
        asked = replace(QUESTIONS, queries=(*QUESTIONS.queries[:-1], changed))
        uses = label_uses(asked, EventFile(path, asked).events)
        found = [(one.key, one.column, one.unused, one.other_values) for one in uses]
        assert found == unused
