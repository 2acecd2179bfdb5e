"""The command that shows published answers, as a table or record by record, and in files."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streams.cli.printing import Exit, UnusableInput, note, plain, show, show_table
from streams.cli.subjects import nothing_of, warn_of_absent
from streams.cli.table_files import (
    Kind,
    check_file,
    check_package,
    complete_file,
    write_csv,
    write_parquet,
)
from streams.cli.topic_commands import MISSING_USERS, Printer
from streams.config import Config

if TYPE_CHECKING:
    from streams.answerer.answer_table import AnswerRow, AnswerTable
    from streams.answerer.published_answers import AnswerRecord

_COLUMNS: Final[dict[str, Kind]] = {
    "step": "integer",
    **dict.fromkeys(("dataset", "run", "query", "kind", "label"), "text"),
    **dict.fromkeys(("start", "end", "block_end", "exhaustible_since"), "time"),
    **dict.fromkeys(("corrected", "provisional", "above"), "flag"),
}
"""The kinds of the columns of files; the others have numbers."""
_PLOTS: Final = (".pdf", ".png", ".svg")


def answers(options: argparse.Namespace, config: Config) -> int:
    """Show the published answers, from the first one on, or write them to files."""
    from streams.answerer.answer_table import AnswerTable

    files = _files_of(options)
    if options.follow:
        warn_of_absent(options.dataset, config)
    printed, table, count = Printer(options.json), AnswerTable(), 0
    for record in _records(options, config):
        count += 1
        if options.follow or (options.json and not files):
            printed(record)
        else:
            table.add(record)
    if not count:
        what = "answers" if options.run is None else f"answers of run {options.run!r}"
        what += "" if options.query is None else f" to query {options.query!r}"
        return nothing_of(options.dataset, what, config)
    for name, path in files.items():
        _write(name, path, table)
        rows = sum(1 for _ in table.rows())
        show("file", {"file": str(path), "rows": rows}, options.json)
    if not files and not printed.count:
        show_rows(list(table.rows()))
    return Exit.OK


def _records(options: argparse.Namespace, config: Config) -> Iterator[AnswerRecord]:
    from streams.answerer.published_answers import read_answers

    for record in read_answers(
        config, dataset=options.dataset, run=options.run, follow=options.follow
    ):
        if options.query in (None, record.query):
            yield record


def _files_of(options: argparse.Namespace) -> dict[str, Path]:
    """Return the files to write, after a check that each can be written.

    Raises:
        ConfigurationError: a package is not installed.
        UnusableInput: a file cannot be written.
    """
    names = ("csv", "parquet", "plot")
    files = {name: path for name in names if (path := getattr(options, name)) is not None}
    if files and options.follow:
        raise UnusableInput("a file is complete only without --follow: give one or the other")
    if "parquet" in files:
        check_package("pyarrow", "report")
    if "plot" in files:
        check_package("matplotlib", "plot")
    for name, path in files.items():
        check_file(path, _PLOTS if name == "plot" else ())
    return files


def _write(file: str, path: Path, table: AnswerTable) -> None:
    """Write one file.

    Raises:
        UnusableInput: the file cannot be written.
    """
    from streams.answerer.answer_plots import save_plot  # it imports matplotlib only to draw
    from streams.answerer.answer_table import COLUMNS

    rows = map(msgspec.structs.asdict, table.rows())
    with complete_file(path) as draft:
        if file == "csv":
            write_csv(draft, COLUMNS, rows)
        elif file == "parquet":
            write_parquet(
                draft, {column: _COLUMNS.get(column, "number") for column in COLUMNS}, rows
            )
        else:
            save_plot(table, draft, path.suffix[1:])


def show_rows(rows: Sequence[AnswerRow]) -> None:
    """Print a table with one line for each number of each window.

    Numbers have as many digits as the widest interval of their query allows.
    """
    from streams.answerer.answer_table import shown_moment

    decimals: dict[str, int] = {}
    for row in rows:
        width = 0.0 if row.upper is None or row.lower is None else row.upper - row.lower
        decimals[row.query] = min(decimals.get(row.query, 9), _decimals(width) if width else 9)
    confidences = {row.confidence for row in rows}
    interval = f"{100 * confidences.pop():g} % interval" if len(confidences) == 1 else "interval"
    columns: dict[str, Callable[[AnswerRow], Any]] = {
        "dataset": lambda row: row.dataset,
        "run": lambda row: row.run,
        "query": lambda row: row.query,
        "window from": lambda row: shown_moment(row.start, row.end),
        "label": lambda row: plain(row.label),
        "value": lambda row: _number(row.value, decimals[row.query]),
        interval: lambda row: " to ".join(
            _number(end, decimals[row.query]) for end in (row.lower, row.upper)
        ),
        "": lambda row: row.state,
    }
    for name in ("dataset", "run", "label"):
        if len({getattr(row, name) for row in rows}) == 1:
            del columns[name]
    cells = {name: [of(row) for row in rows] for name, of in columns.items()}
    width = max(map(len, cells["value"]))
    cells["value"] = [text.rjust(width) for text in cells["value"]]
    show_table(list(cells), list(zip(*cells.values(), strict=True)))
    if sys.stdout.isatty() and any(row.can_miss_users for row in rows):
        note(MISSING_USERS)


def _decimals(width: float) -> int:
    """Return the decimals that show two digits of half an interval."""
    return max(0, 1 - math.floor(math.log10(width / 2))) if 0 < width < math.inf else 0


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:,.{decimals}f}"
