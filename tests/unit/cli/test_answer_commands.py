"""Published answers: lines and a table for people, and files that read back as the same rows."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streams.answerer import published_answers as answers_module
from streams.answerer.answer_table import COLUMNS, AnswerTable
from streams.answerer.published_answers import AnswerRecord, WindowsSum
from streams.cli.answer_commands import Printer
from streams.cli.main import main
from tests.unit.answerer.published import answer, correction, moment

BLOCK = [answer(at, 1234.5678 + at / 7, provisional_until=moment(3)) for at in range(3)]
RECORDS: list[AnswerRecord] = [
    *BLOCK,
    answer(0, [1.5, -2.25], labels=["=north", 7], query="by", step=500),
    msgspec.structs.replace(answer(0, 1.0, kind="mean", query="none", step=501), value=None),
    answer(0, 9.0, kind="threshold", query="is", step=502, above=True),
    correction(BLOCK[:2], 0.1),
    answer(9, 7.0, exhaustible_since=moment(2)),
]


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, run: str | None = None, **__: Any) -> Iterator[AnswerRecord]:
        return (record for record in RECORDS if run in (None, record.run))

    monkeypatch.setattr(answers_module, "read_answers", read)


def expected() -> list[dict[str, Any]]:
    """Return the rows, with labels as text."""
    table = AnswerTable()
    for record in RECORDS:
        table.add(record)
    return [
        {**msgspec.structs.asdict(row), "label": None if row.label is None else str(row.label)}
        for row in table.rows()
    ]


def test_csv_reads_back_as_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    assert main(["answers", "--csv", str(path)]) == 0
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    times = ("start", "end", "block_end", "exhaustible_since")
    flags = ("corrected", "provisional", "above")
    texts = ("dataset", "run", "query", "kind", "label")

    def read(name: str, text: str) -> Any:
        if not text:
            return None
        if name in times:
            assert text.endswith("Z")
            return datetime.fromisoformat(text)
        if name in flags:
            return {"true": True, "false": False}[text]
        if name in texts:
            return text.removeprefix("'")  # an apostrophe keeps a label from being a formula
        return int(text) if name == "step" else float(text)

    assert [{name: read(name, text) for name, text in row.items()} for row in rows] == expected()
    assert [row["label"] for row in rows if row["query"] == "by"] == ["'=north", "7"]


@pytest.mark.slow
def test_parquet_reads_back_as_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "answers.parquet"
    assert main(["answers", "--parquet", str(path)]) == 0
    read = parquet.read_table(path)
    assert read.column_names == list(COLUMNS)
    assert read.to_pylist() == expected()
    kinds = {field.name: str(field.type) for field in read.schema}
    assert (kinds["start"], kinds["corrected"]) == ("timestamp[ms, tz=UTC]", "bool")
    assert (kinds["value"], kinds["step"], kinds["label"]) == ("double", "int64", "string")


@pytest.mark.slow
def test_several_files_are_written_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / f"a.{name}" for name in ("csv", "svg")}
    command = ["answers", "--csv", str(files["csv"]), "--plot", str(files["svg"]), "--json"]
    assert main([*command, "--query", "q"]) == 0
    lines = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"type": "file", "file": str(path), "rows": 4} for path in files.values()]
    assert sorted(tmp_path.iterdir()) == sorted(files.values())


@pytest.mark.parametrize(
    "arguments",
    [["--follow", "--csv", "a.csv"], ["--plot", "a.gif"], ["--csv", "none/a.csv"], ["--csv", "."]],
)
def test_files_that_cannot_be_written_are_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["answers", *arguments]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "package", "extra"),
    [("plot", "matplotlib", "plot"), ("parquet", "pyarrow", "report")],
)
def test_a_missing_package_is_named_with_its_extra(
    option: str,
    package: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["answers", f"--{option}", str(tmp_path / "a.svg")]) == 2
    said = capsys.readouterr().err
    assert package in said
    assert f"`{extra}`" in said
    assert list(tmp_path.iterdir()) == []


def test_the_table_shows_the_corrected_value_of_each_window(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["answers", "--query", "q"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    head, *rows = shown
    assert "run" not in head  # there is one
    assert [row[0] for row in rows] == ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-10"]
    values = [float(row[2].replace(",", "")) for row in rows]
    assert values == pytest.approx([1234.7, 1234.8, 1234.9, 7.0], abs=0.06)
    assert [row[6] for row in rows] == ["corrected", "corrected", "provisional", "admitted"]
    # Half an interval is 2, so one decimal is the second digit.
    assert {len(row[at].partition(".")[2]) for row in rows for at in (2, 3, 5)} == {1}


def test_json_prints_every_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["answers", "--json"]) == 0
    lines = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines] == [record.step for record in RECORDS]


def test_a_reader_that_has_read_enough_ends_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(_: bytes) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("streams.cli.printing._write", write)
    assert main(["answers"]) == 0
    assert capsys.readouterr().err == ""
    assert not sys.stdout.closed


TOTAL = msgspec.structs.replace(
    answer(4, 9.0, query="sum"), sums=[WindowsSum(start=moment(0), value=40, lower=30, upper=50)]
)
PRINTED: list[tuple[AnswerRecord, list[str]]] = [
    (BLOCK[0], ["2026-01-01", "q", "234.6", "provisional", "2026-01-04"]),
    (correction(BLOCK[:2], 0.1), ["2026-01-01", "2026-01-02", "corrected"]),
    (answer(0, [1.5, -2.5], labels=["north", 7], query="by"), ["north", "1.5", "7", "-2.5"]),
    (answer(0, 9.0, kind="threshold", query="is", above=True), ["is", "above"]),
    (answer(0, [], labels=[], query="found"), ["found", "no"]),
    (TOTAL, ["2026-01-05", "9.0", "2026-01-01", "total", "40", "30", "50"]),
]


@pytest.mark.parametrize(("record", "words"), PRINTED)
def test_an_answer_is_printed_with_what_is_special_about_it(
    record: AnswerRecord, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    Printer(as_json=False)(record)
    said = iter(capfd.readouterr().out.replace(",", " ").split())
    assert all(word in said for word in words), "in this order"


def test_missing_users_are_explained_once_and_never_in_json(
    capfd: pytest.CaptureFixture[str],
) -> None:
    since = answer(5, 7.0, exhaustible_since=moment(2))
    for as_json, explained in ((False, [False, True, False]), (True, [False, False, False])):
        printed = Printer(as_json)
        for record, is_explained in zip((answer(1, 7.0), since, since), explained, strict=True):
            printed(record)
            assert bool(capfd.readouterr().err) == is_explained
