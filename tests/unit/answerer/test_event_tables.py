"""Tables in memory have the answers of a file of the same events."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from msgspec import structs

from streams import Turnstile
from streams.answerer.event_file import EventFile
from streams.answerer.event_input import EventInput
from streams.answerer.event_table import EventTable, answer_table
from streams.answerer.events import SkipReason
from streams.answerer.file_journal import FileJournal
from streams.answerer.query_keys import UnusableQueries
from streams.answerer.window_answering import AlreadyAnswered, Answering, answer_input, opener
from streams.sdk.errors import UnusableFile
from tests.unit.answerer.asking import asked_of

ASKED = """
dataset = "shop"
run = "week"

[input]
user = "user"
users = "integer"
time = "bought"
start = 2026-03-27
end = 2026-04-03

[[query]]
name = "spent"
kind = "sum"
column = "amount"
by = "shop"
labels = ["north", "south"]
where = { items = { at_least = 2 } }
each = 50.0
groups = 1
window = "1d"
noise = 10.0

[[query]]
name = "buyers"
kind = "distinct"
window = "2d"
noise = 2.0
"""
QUERIES = asked_of(ASKED).for_a_file()
ROWS = [
    {
        "user": user,
        "bought": datetime(2026, 3, 27 + day % 5, user, 30, 15, 250_000),
        "amount": 2.5 * user + day / 4,
        "shop": ("north", "south", "west")[user % 3],
        "items": 1 + (user + day) % 4,
        "note": "not asked for",
    }
    for day in range(5)
    for user in range(12)
    if (day * user) % 4
]
Rows = Sequence[Mapping[str, Any]]


def _with_categories(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.apply(
        lambda column: column.astype("category") if column.name == "shop" else column
    )


TABLES: dict[str, Callable[[Rows], Any]] = {
    "pandas": pd.DataFrame,
    "pandas with its own types": lambda rows: pd.DataFrame(rows).convert_dtypes(),
    "pandas with categories": lambda rows: _with_categories(pd.DataFrame(rows)),
    "pandas with objects": lambda rows: pd.DataFrame(rows).astype(object),
    "pandas of Arrow": lambda rows: pd.DataFrame(rows).convert_dtypes(dtype_backend="pyarrow"),
    "polars": pl.DataFrame,
    "polars with categories": lambda rows: pl.DataFrame(rows).with_columns(
        pl.col(pl.String).cast(pl.Categorical), pl.col(pl.Float64).cast(pl.Float32)
    ),
    "a table of Arrow": lambda rows: pa.Table.from_pylist(list(rows)),
    "a stream of Arrow": lambda rows: pa.Table.from_pylist(list(rows)).to_reader(7),
    "rows": list,
    "rows of pandas": lambda rows: pd.DataFrame(rows).to_dict("records"),
    "rows of NumPy": lambda rows: [
        {
            name: np.datetime64(value, "ns") if name == "bought" else np.array([value])[0]
            for name, value in row.items()
        }
        for row in rows
    ],
}
by_table = pytest.mark.parametrize("table_of", TABLES.values(), ids=TABLES)


def csv_of(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="") as lines:
        out = csv.DictWriter(lines, list(rows[0]))
        out.writeheader()
        out.writerows({**row, "bought": row["bought"].isoformat()} for row in rows)
    return path


@pytest.fixture
def budgets(tmp_path: Path) -> Path:
    """Return a budget file with the dataset."""
    with Turnstile.open(tmp_path / "budgets.db") as t:
        t.create_dataset("shop", measure="zcdp", budget=100.0, user_ids="integer")
    return tmp_path / "budgets.db"


def charged(budgets: Path, given: EventInput) -> list[Any]:
    """Answer with noise of one seed; return the answers and what each user has spent."""
    records: list[Any] = []
    with (
        Turnstile.open(budgets) as t,
        closing(FileJournal(str(budgets), 30.0, "shop")) as journal,
    ):
        answering = Answering(
            QUERIES,
            given.source,
            opener(t, QUERIES),
            journal,
            records.append,
            noise=np.random.default_rng(1),
        )
        answer_input(answering, given)
        return [*records, {(r.user, tuple(r.bound)) for r in t.odometer(follow=False)}]


@pytest.fixture(scope="module")
def of_csv(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the answers to the CSV file of the events."""
    folder = tmp_path_factory.mktemp("csv")
    with Turnstile.open(folder / "budgets.db") as t:
        t.create_dataset("shop", measure="zcdp", budget=100.0, user_ids="integer")
    file = EventFile(csv_of(folder / "events.csv", ROWS), QUERIES)
    assert len(file.events) == len(ROWS)
    return charged(folder / "budgets.db", EventInput([file]))


@pytest.mark.slow
@by_table
def test_a_table_has_the_answers_of_the_file_of_its_events(
    table_of: Callable[[Rows], Any], budgets: Path, of_csv: list[Any]
) -> None:
    table = EventTable(table_of(ROWS), "it", QUERIES)
    assert table.report() == ""
    assert charged(budgets, EventInput([table])) == of_csv
    assert len(of_csv) == 7 + 3 + 1


def test_the_order_of_rows_and_the_package_do_not_make_another_input() -> None:
    sources = {EventTable(of(ROWS), "it", QUERIES).source for of in TABLES.values()}
    sources.add(EventTable(pl.DataFrame(ROWS).reverse(), "it", QUERIES).source)
    assert len(sources) == 1
    for changed in ({"amount": 1.0}, {"user": 99}, {"bought": datetime(2026, 3, 27)}):
        rows = [{**ROWS[0], **changed}, *ROWS[1:]]
        sources.add(EventTable(rows, "it", QUERIES).source)
    assert len(sources) == 4


@by_table
@pytest.mark.parametrize("column", ["user", "bought", "amount", "shop", "items"])
def test_a_table_without_a_column_of_the_queries_is_refused(
    column: str, table_of: Callable[[Rows], Any], budgets: Path
) -> None:
    table = table_of([{k: v for k, v in row.items() if k != column} for row in ROWS])
    if isinstance(table, list):
        assert f"no row has a column {column!r}" in EventTable(table, "it", QUERIES).report()
        return
    before = budgets.read_bytes()
    with pytest.raises(UnusableQueries, match=repr(column)):
        answer_table(_content(), table, budgets=budgets)
    assert budgets.read_bytes() == before


def _content() -> dict[str, Any]:
    return tomllib.loads(ASKED)


ODD: list[Any] = [pd.NaT, pd.NA, float("nan"), None, [1], {"a": 1}, object(), True, 10**5000]
ODD += [np.datetime64("NaT"), np.datetime64("10000-01-01"), Decimal("sNaN")]


@pytest.mark.parametrize("missing", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("column", ["user", "bought", "amount", "shop", "items"])
def test_no_value_of_a_row_makes_a_table_unusable(missing: Any, column: str) -> None:
    rows = [{**ROWS[0], column: missing}, *ROWS[1:]]
    for table in (rows, pd.DataFrame(rows, dtype=object)):
        found = EventTable(table, "it", QUERIES)
        assert len(found.events) >= len(ROWS) - 1


def test_missing_values_of_typed_columns_cost_their_rows() -> None:
    rows = [{**ROWS[0], "bought": None}, {**ROWS[2], "amount": None, "items": 3}, *ROWS[2:]]
    wanted = {SkipReason.NO_TIME: 1, SkipReason.INCOMPLETE: 1}
    for name in ("pandas", "pandas of Arrow", "polars", "a table of Arrow"):
        assert EventTable(TABLES[name](rows), "it", QUERIES).skipped == wanted, name


UNUSABLE = {
    "float ids": {"user": [1.5, 2.5]},
    "text ids": {"user": ["1", "2"]},
    "no times": {"bought": [None, None]},
    "integers as times": {"bought": [1, 2]},
    "text numbers": {"amount": ["1", "2"]},
    "numbers as labels": {"shop": [1, 2]},
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_column_of_another_type_is_refused(name: str, budgets: Path) -> None:
    usual = {key: [row[key] for row in ROWS[:2]] for key in ROWS[0]}
    columns = usual | UNUSABLE[name]
    before = budgets.read_bytes()
    for table in (pl.DataFrame(columns), pa.table(columns)):
        with pytest.raises(UnusableQueries, match=repr(*UNUSABLE[name])):
            answer_table(_content(), table, budgets=budgets)
    if name != "numbers as labels":  # labels of another type are other labels
        with pytest.raises(UnusableQueries, match="accept_skipped"):
            answer_table(_content(), pd.DataFrame(columns), budgets=budgets)
    assert budgets.read_bytes() == before


@pytest.mark.parametrize(
    "table", [None, "events.csv", 5, pl.LazyFrame(ROWS), ["a", "b"], {"user": [1]}]
)
def test_what_is_no_table_is_refused(table: Any, budgets: Path) -> None:
    with pytest.raises(UnusableQueries, match="no table"):
        answer_table(_content(), table, budgets=budgets)


def test_a_table_of_arrow_names_the_extra_that_it_needs() -> None:
    with (
        patch.dict("sys.modules", {"pyarrow": None}),
        pytest.raises(UnusableQueries, match="report"),
    ):
        EventTable(pl.DataFrame(ROWS), "it", QUERIES)
    with patch.dict("sys.modules", {"pyarrow": None}):
        assert len(EventTable(pl.DataFrame(ROWS).to_dicts(), "it", QUERIES).events) == len(ROWS)


@pytest.mark.slow
def test_answers_are_returned_and_charged_once(budgets: Path, tmp_path: Path) -> None:
    path = tmp_path / "week.toml"
    path.write_text(ASKED)
    frame = pl.DataFrame(ROWS)
    first = answer_table(path, frame, budgets=budgets)
    assert [row.label for row in first if row.query == "spent"] == 7 * ["north", "south"]
    assert [row.start.day for row in first if row.query == "buyers"] == [27, 29, 31]
    with Turnstile.open(budgets) as t:
        spent = {(r.user, tuple(r.bound)) for r in t.odometer(follow=False)}
    again = answer_table(_content(), pd.DataFrame(ROWS[::-1]), budgets=str(budgets))
    assert again == first
    with Turnstile.open(budgets) as t:
        assert {(r.user, tuple(r.bound)) for r in t.odometer(follow=False)} == spent
    frames = [structs.asdict(row) for row in first]
    assert pd.DataFrame(frames)["value"].notna().all()
    with pytest.raises(UnusableQueries, match="give all earlier files or tables"):
        answer_table(path, frame.head(3), budgets=budgets)
    other = _content() | {"run": "other"}
    with pytest.raises(AlreadyAnswered):
        answer_table(other, frame, budgets=budgets, take_over=True)


@pytest.mark.slow
def test_tables_are_added_day_by_day(budgets: Path) -> None:
    frame = pl.DataFrame(ROWS)
    days = [frame.filter(pl.col("bought").dt.day() == date(2026, 3, 27 + n).day) for n in range(4)]
    counts = [
        len(answer_table(_content(), days[:n], budgets=budgets, until=date(2026, 3, 27 + n)))
        for n in range(1, 5)
    ]
    assert counts == [2, 5, 7, 10]
    with pytest.raises(UnusableQueries, match="another input"):
        answer_table(_content(), days[1:], budgets=budgets)
    assert len(answer_table(_content(), days, budgets=budgets)) == 7 * 2 + 3


def test_unusable_arguments_are_refused(tmp_path: Path, budgets: Path) -> None:
    until: Any = "2026-03-28"
    with pytest.raises(UnusableQueries, match="until"):
        answer_table(_content(), ROWS, budgets=budgets, until=until)
    with pytest.raises(UnusableFile):
        answer_table(_content(), ROWS, budgets=tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
