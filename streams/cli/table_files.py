"""Tables in CSV and Parquet files, which are complete or do not exist."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from streams.cli.printing import UnusableInput

Kind: TypeAlias = Literal["text", "number", "integer", "flag", "time"]
"""The kind of the values of a column."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "'")
_ROWS_AT_ONCE: Final = 2**16


def check_file(path: Path, endings: Sequence[str] = ()) -> None:
    """Check that a file can be written, before anything is computed.

    Args:
        endings: the possible endings of its name; none for any.

    Raises:
        UnusableInput: the file cannot be written.
    """
    if endings and path.suffix not in endings:
        raise UnusableInput(f"{path}: the name must end with {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise UnusableInput(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise UnusableInput(f"{path} is a folder: give the name of a file in it")


@contextmanager
def complete_file(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield the path of a draft, which replaces a file once it is complete.

    Args:
        path: the file, which is unchanged after an error.
        mode: who may read and write the file, before the process's umask.

    Raises:
        UnusableInput: the file cannot be written.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        try:
            yield draft
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UnusableInput(f"cannot write {path}: {error}") from error


def write_table(
    path: Path,
    columns: Mapping[str, Kind],
    rows: Iterable[Mapping[str, Any]],
    kind: Literal["csv", "parquet"],
) -> None:
    """Write rows to a file.

    In CSV, times are ISO 8601 in UTC, numbers have all digits, None is an empty cell, and a text
    that a spreadsheet could run as a formula has an apostrophe before it (``as_cell``). In Parquet,
    times are in UTC to the millisecond.
    """
    if kind == "parquet":
        _write_parquet(path, columns, rows)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        for row in rows:
            writer.writerow({name: as_cell(value) for name, value in row.items()})


def as_cell(value: Any) -> Any:
    """Return a value for a CSV file, so that no spreadsheet runs it as a formula.

    A string that begins with ``=``, ``+``, ``-``, ``@``, a tab, a carriage return or an apostrophe
    gets one apostrophe before it. To read the string back, drop one leading apostrophe.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case datetime():
            return msgspec.to_builtins(value.astimezone(UTC))
        case str() if value.startswith(_FORMULA):
            return f"'{value}"
    return value


def _write_parquet(
    path: Path, columns: Mapping[str, Kind], rows: Iterable[Mapping[str, Any]]
) -> None:
    import pyarrow as arrow
    from pyarrow.parquet import ParquetWriter

    types = {
        "text": arrow.string(),
        "number": arrow.float64(),
        "integer": arrow.int64(),
        "flag": arrow.bool_(),
        "time": arrow.timestamp("ms", tz="UTC"),
    }
    schema = arrow.schema([(name, types[kind]) for name, kind in columns.items()])
    texts = [name for name, kind in columns.items() if kind == "text"]
    remaining = iter(rows)
    with ParquetWriter(path, schema) as writer:
        while some := [
            {**row, **{name: None if row[name] is None else str(row[name]) for name in texts}}
            for row in islice(remaining, _ROWS_AT_ONCE)
        ]:
            writer.write_table(arrow.Table.from_pylist(some, schema=schema))
