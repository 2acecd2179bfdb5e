"""Files of events: CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from accounting.exact.invalid_input import quoted
from streams.answerer.arrow_columns import misfit, rows_of
from streams.answerer.event_input import EventRows, Row
from streams.answerer.events import UserEvent, columns_of
from streams.answerer.query_file import QueryFile
from streams.answerer.query_keys import (
    Conditions,
    Label,
    UnusableQueries,
    comparable,
    hold,
    labels_in,
)

FILE_SUFFIXES: Final = (".csv", ".jsonl", ".parquet")
_MARK: Final = b"\xef\xbb\xbf"  # spreadsheets write it before UTF-8
_DELIMITERS: Final = (",", ";", "\t", "|")
_END: Final = "\0"  # a line after the last one: it is a record of its own if all quotes are closed


class EventFile(EventRows):
    """The events of a file, in the order of their times.

    Args:
        path: the file; its suffix is one of FILE_SUFFIXES, or one of these with .gz.
        query_file: names the columns; its input has an end.

    Raises:
        UnusableQueries: the file cannot be read, or its schema does not fit the queries.
    """

    def __init__(self, path: Path, query_file: QueryFile) -> None:
        super().__init__(str(path), query_file)
        is_packed = path.suffix == ".gz"
        suffix = path.with_suffix("").suffix if is_packed else path.suffix
        if suffix not in FILE_SUFFIXES:
            raise UnusableQueries(
                f"{path} has an unknown suffix; it must be one of {', '.join(FILE_SUFFIXES)}, or "
                "one of these with .gz"
            )
        try:
            data = path.read_bytes()
            if is_packed:
                data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            # A NUL in the path is a ValueError. A packed file that is cut off or damaged is an
            # EOFError or a zlib.error.
            raise UnusableQueries(f"cannot read {path}: {error}") from error
        self.source = f"file:{hashlib.sha256(data).hexdigest()}"
        read = {".csv": self._csv, ".jsonl": self._json_lines, ".parquet": self._parquet}
        self._take(read[suffix](data))

    def _csv(self, data: bytes) -> Iterator[tuple[int, Row]]:
        split = data.removeprefix(_MARK).splitlines(keepends=True)
        lines = [line.decode(errors="surrogateescape") for line in split]
        if not lines:
            raise self._fault("the file is empty; its first line must have the names of columns")
        headers = {mark: next(_records(lines, mark), (1, None))[1] or [] for mark in _DELIMITERS}
        wanted = set(self._wanted)
        delimiter = max(
            headers, key=lambda mark: (len(wanted.intersection(headers[mark])), len(headers[mark]))
        )
        names = headers[delimiter]
        self._check_names(names)
        columns = {name: (names.index(name), self._of_text(name)) for name in self._wanted}
        csv.field_size_limit(max(csv.field_size_limit(), len(data)))
        records = _records(lines, delimiter)
        next(records)
        try:
            for number, cells in records:
                if cells is None or len(cells) != len(names):
                    yield number, None
                else:
                    yield number, {name: of(cells[at]) for name, (at, of) in columns.items()}
        except csv.Error as error:
            raise self._fault(f"{error}: write each quote in a cell twice") from error

    def _of_text(self, name: str) -> Callable[[str], Any]:
        """Return a function that reads the cells of a CSV column in the type of its roles.

        What is not of that type stays text, and then counts as any value of another type.
        """
        roles = {role for column, role in self._roles if column == name}
        wanted = [
            label
            for query in self._query_file.queries
            for column, given in (
                (query.by, query.labels),
                *((column, labels_in(condition)) for column, condition in query.conditions),
            )
            for label in (given if column == name else ())
        ]
        labels = {str(label): label for label in wanted}
        for label in wanted:
            if labels[str(label)] != label:  # a cell could count for one of the queries only
                raise self._fault(
                    f"the queries want {quoted(str(label))} in column {quoted(name)} both as text "
                    "and as a number: write it in one way"
                )
        if roles <= {"text", "iso"}:
            return str
        if roles & {"text", "iso"}:
            raise self._fault(
                f"the queries need text and numbers in column {quoted(name)}: change the queries"
            )
        kinds: list[Callable[[str], Any]] = [int] if "integers" in roles else []
        if roles & {"numbers", "s", "ms"}:
            swapped = str.maketrans(".,", ",.") if self._query_file.source.decimal == "," else {}
            kinds.append(lambda cell: float(cell.translate(swapped)))

        def read(cell: str) -> Any:
            if cell in labels:
                return labels[cell]
            for kind in kinds if "_" not in cell else ():  # Python alone reads 1_0 as 10
                with suppress(ValueError):
                    return kind(cell)
            return cell

        return read

    def _json_lines(self, data: bytes) -> Iterator[tuple[int, Row]]:
        for number, line in enumerate(data.removeprefix(_MARK).split(b"\n"), start=1):
            if line.strip():
                found = columns_of(line) if line.lstrip()[:1] == b"{" else None
                wanted = None
                if found is not None:
                    wanted = {name: found[name] for name in self._wanted if name in found}
                yield number, wanted

    def _parquet(self, data: bytes) -> Iterator[tuple[int, Row]]:
        try:
            import pyarrow as pa
            from pyarrow.parquet import ParquetFile
        except ModuleNotFoundError as error:
            raise self._fault(
                "Parquet files need pyarrow: pip install 'dp-turnstile[report]'"
            ) from error
        try:
            # Spark's old timestamps, in ns, could not hold the year 9999.
            file = ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="ms")
            self._check_names(file.schema_arrow.names)
            if problem := misfit(file.schema_arrow, self._roles):
                raise self._fault(problem)
            dotted = any("." in name for name in self._wanted)  # it would be read as a path
            batches = file.iter_batches(columns=None if dotted else self._wanted)
            yield from rows_of(batches, self._wanted)
        except (pa.ArrowException, OSError) as error:
            raise self._fault(str(error)) from error


@dataclass(frozen=True)
class LabelUse:
    """How the values of events differ from those that a query names: private data."""

    query: str
    key: str  # "labels" or "where"
    column: str
    unused: Sequence[Label]  # the named values that no event has
    other_events: int  # with a value that is no label
    other_values: Mapping[str, int]  # the 20 most frequent of these, with their numbers of events


def label_uses(query_file: QueryFile, events: Sequence[UserEvent]) -> Iterator[LabelUse]:
    """Yield the columns whose values differ from the labels or the conditions of a query."""
    for query in query_file.queries:
        asked: list[tuple[str, str, Sequence[Label], Conditions]] = [
            ("where", column, labels_in(wanted), {}) for column, wanted in query.conditions
        ]
        if query.labels:
            asked.append(("labels", query.by, query.labels, query.where))
        for key, column, named, where in asked:
            values = [one.columns.get(column) for one in events if hold(where, one.columns)]
            seen, known = set(map(comparable, values)), set(map(comparable, named))
            unused = [label for label in named if comparable(label) not in seen]
            unlabelled = [value for value in values if comparable(value) not in known]
            others = Counter(map(quoted, unlabelled if key == "labels" else []))
            if unused or others:
                ordered = dict(others.most_common(20))
                yield LabelUse(query.name, key, column, unused, others.total(), ordered)


def _records(lines: list[str], delimiter: str) -> Iterator[tuple[int, list[str] | None]]:
    """Yield the first line and the cells of each record; None for a record that cannot be read.

    One reader parses all lines. To begin again after a fault would let the rest of a quoted cell
    count as records of other users.

    Raises:
        csv.Error: a quote is never closed, so where the records end is not known.
    """
    reader, first = csv.reader(chain(lines, [_END]), delimiter=delimiter), 1
    for cells in reader:
        if reader.line_num > len(lines):
            if cells != [_END]:
                raise csv.Error(f"row {first:,} opens a quote that is never closed")
        elif any(cells):
            try:
                "".join(cells).encode()
                yield first, cells
            except UnicodeEncodeError:  # what is not UTF-8 was decoded as lone surrogates
                yield first, None
        first = reader.line_num + 1
