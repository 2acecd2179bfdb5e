"""The command that shows published answers, as a table or record by record, and in files."""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streams.cli.output import (
    Exit,
    UnusableInput,
    as_cell,
    complete_file,
    note,
    plain,
    show,
    show_table,
)
from streams.cli.records import MISSING_USERS, Printer
from streams.cli.subjects import nothing_of, warn_of_absent
from streams.config import Config, ConfigurationError

if TYPE_CHECKING:
    from streams.answerer.answer_table import AnswerRow, AnswerTable
    from streams.answerer.answers import AnswerRecord

_EXTRAS: Final = {"csv": None, "parquet": ("pyarrow", "report"), "plot": ("matplotlib", "plot")}
"""The options for files, with the package and the extra that each needs."""
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
    from streams.answerer.answers import read_answers

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
    files = {name: path for name in _EXTRAS if (path := getattr(options, name)) is not None}
    if files and options.follow:
        raise UnusableInput("a file is complete only without --follow: give one or the other")
    for name, path in files.items():
        needed = _EXTRAS[name]
        if needed is not None and find_spec(needed[0]) is None:
            raise ConfigurationError(
                f"--{name} needs the package {needed[0]}: install dp-turnstile with its extra "
                f"`{needed[1]}`"
            )
        if name == "plot" and path.suffix not in _PLOTS:
            raise UnusableInput(f"--plot {path}: the name must end with {', '.join(_PLOTS)}")
        if not path.parent.is_dir():
            raise UnusableInput(f"--{name} {path}: the folder {path.parent} does not exist")
        if path.is_dir():
            raise UnusableInput(f"--{name} {path} is a folder: give the name of a file in it")
    return files


def _write(name: str, path: Path, table: AnswerTable) -> None:
    """Write one file.

    Raises:
        UnusableInput: the file cannot be written.
    """
    from streams.answerer.answer_plots import save_plot  # it imports matplotlib only to draw

    writers: dict[str, Callable[[Path], None]] = {
        "csv": lambda draft: write_csv(table.rows(), draft),
        "parquet": lambda draft: write_parquet(table.rows(), draft),
        "plot": lambda draft: save_plot(table, draft, path.suffix[1:]),
    }
    try:
        with complete_file(path) as draft:
            writers[name](draft)
    except OSError as error:
        raise UnusableInput(f"--{name} {path}: {error}") from error


def write_csv(rows: Iterator[AnswerRow], path: Path) -> None:
    """Write rows as CSV: ISO 8601 times in UTC, all digits of numbers, and empty cells for None.

    A label that a spreadsheet could run as a formula has an apostrophe before it (``as_cell``).
    """
    from streams.answerer.answer_table import COLUMNS

    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([_cell(getattr(row, name)) for name in COLUMNS])


def _cell(value: Any) -> Any:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case datetime():
            return msgspec.to_builtins(value.astimezone(UTC))
        case float():
            return repr(value)
    return as_cell(value)


def write_parquet(rows: Iterator[AnswerRow], path: Path) -> None:
    """Write rows as Parquet, with times in UTC to the millisecond and labels as strings."""
    import pyarrow as arrow
    from pyarrow import parquet

    from streams.answerer.answer_table import COLUMNS

    moment = arrow.timestamp("ms", tz="UTC")
    kinds = {
        **dict.fromkeys(("dataset", "run", "query", "kind", "label"), arrow.string()),
        **dict.fromkeys(("start", "end", "block_end", "exhaustible_since"), moment),
        **dict.fromkeys(("corrected", "provisional", "above"), arrow.bool_()),
        "step": arrow.int64(),
    }
    schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in COLUMNS])
    texts = [
        {
            **msgspec.structs.asdict(row),
            "label": None if row.label is None else str(row.label),
        }
        for row in rows
    ]
    parquet.write_table(arrow.Table.from_pylist(texts, schema=schema), path)


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
        "": _status,
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


def _status(row: AnswerRow) -> str:
    from streams.answerer.answer_table import shown_moment

    parts = [] if row.above is None else ["above" if row.above else "not above"]
    if row.corrected:
        parts.append("corrected")
    elif row.block_end is not None:
        parts.append(f"provisional until {shown_moment(row.block_end)}")
    elif row.exhaustible_since is not None:
        parts.append(f"admitted only since {shown_moment(row.exhaustible_since)}")
    return ", ".join(parts)
