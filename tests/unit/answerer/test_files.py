"""Files of events: each format gives the same answers."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from streams.answerer.answering import Answering, answer_file
from streams.answerer.events import EventFile
from streams.answerer.queries import UnusableQueries
from tests.doubles.memory_journal import MemoryJournal
from tests.unit.answerer.asking import END, FILE, asked_of
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


def charged(path: Path) -> list[dict[int | str, float]]:
    """Return the charge of each window, by user."""
    world = World(QUESTIONS)
    file = EventFile(path, QUESTIONS)
    answering = Answering(
        QUESTIONS,
        file.source,
        lambda released: world.service.open(released=released),
        MemoryJournal(world.topics, "d"),
        text=file.text,
    )
    answer_file(answering, file)
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


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("last", ["1970-01-04", "1970-01-05", "1970-02-20", "9999-12-31"])
def test_one_user_does_not_decide_how_many_answers_there_are(
    last: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"events{suffix}"
    rows = [{**row, "c": str(row["c"])} for row in ROWS if row["t"] < "1970-01-03"]
    of_another = {"u": 99, "t": f"{last}T00:00:00", "x": 1.0, "c": "a", "n": 1}
    WRITERS[suffix](path, rows)
    charges = charged(path)  # it checks the number of answers
    WRITERS[suffix](path, [*rows, of_another])
    is_counted = last == "1970-01-04"
    assert charged(path) == charges + ([{99: pytest.approx(1.0)}] if is_counted else [])


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
    with pytest.raises(UnusableQueries):
        EventFile(path, QUESTIONS).rows()


def test_events_of_json_lines_may_lack_a_column(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    jsonl_file(path, [{key: row[key] for key in ("u", "t")} for row in ROWS])
    assert len(EventFile(path, QUESTIONS).rows()) == len(ROWS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.txt", ""),
        ("x.csv", "a,b\n1,2\n"),
        ("x.jsonl", '{"u": 1}\n[1]\n'),
        ("x.parquet", "PAR1 this is none"),
        ("none/x.csv", None),
    ],
)
def test_unreadable_file_is_rejected(name: str, content: str | None, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(UnusableQueries):
        EventFile(path, QUESTIONS).rows()
