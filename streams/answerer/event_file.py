"""A file of events, read whole before anything is charged.

There are two kinds of faults. A fault of the *schema* (no header, a missing column, a column whose
type is no id, time or number) follows from no row, so the file is refused. A fault of a *row* is
counted by its reason: this row does not count, and the other rows do. Whether to go on
without them is for a person to decide, so that no row decides whether anything is published.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

from accounting.exact.invalid_input import quoted
from streams.answerer.events import EventReader, SkipReason, UserEvent, skipped_text
from streams.answerer.query_file import QueryFile
from streams.answerer.query_keys import (
    Conditions,
    Label,
    Range,
    UnusableQueries,
    comparable,
    hold,
    labels_in,
)

FILE_SUFFIXES: Final = (".csv", ".jsonl", ".parquet")
_MARK: Final = b"\xef\xbb\xbf"  # spreadsheets write it before UTF-8
_DELIMITERS: Final = (",", ";", "\t", "|")
_END: Final = "\0"  # a line after the last one: it is a record of its own if all quotes are closed
_REMEDIES: Final = {
    SkipReason.NO_EVENT: "each row must be UTF-8, with as many cells as the header, or a JSON "
    "object without NaN",
    SkipReason.NO_USER: 'ids must be as `users` under [input] says: "integer" needs 12, not 12.0; '
    "text needs 1 to 256 characters, and does not begin with erased:",
    SkipReason.NO_TIME: "times must be as `time_unit` under [input] says: ISO 8601 is "
    "2026-01-31T09:30:00",
    SkipReason.INCOMPLETE: "numbers must be written like 1234.5, or in CSV with `decimal` = ',' "
    "under [input] like 1234,5, and not be empty",
}
"""The reasons that a person has to accept."""

Row: TypeAlias = Mapping[str, Any] | None
"""The wanted columns of a row; None if it cannot be read."""


class EventFile:
    """The events of a file, in the order of their times.

    Args:
        path: the file; its suffix is one of FILE_SUFFIXES, or one of these with .gz.
        query_file: names the columns; its input has an end.

    Attributes:
        source: identifies the content of the file.
        events: those that can count.
        skipped: the number of rows that do not count, or not for all queries, by reason.
        incomplete: the number of rows without a number, by query and column.

    Raises:
        UnusableQueries: the file cannot be read, or its schema does not fit the queries.
    """

    def __init__(self, path: Path, query_file: QueryFile) -> None:
        self._path, self._query_file = path, query_file
        self._roles = _roles_of(query_file)
        self._wanted = list(dict.fromkeys(column for column, _ in self._roles))
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
        self.events: list[UserEvent] = []
        self.skipped: Counter[SkipReason] = Counter()
        self.incomplete: Counter[tuple[str, str]] = Counter()
        self._rows, self._first, self._seen = 0, dict[SkipReason, int](), set[str]()
        read = {".csv": self._csv, ".jsonl": self._json_lines, ".parquet": self._parquet}
        self._take(read[suffix](data), query_file)

    def _take(self, rows: Iterable[tuple[int, Row]], query_file: QueryFile) -> None:
        reader = EventReader(query_file.source)
        limits = zip(query_file.spacings, query_file.queries, query_file.limits, strict=True)
        end = max(spacing.begin(limit + one.panes - 1) for spacing, one, limit in limits)
        for number, columns in rows:
            self._rows += 1
            event = SkipReason.NO_EVENT if columns is None else reader.event_of(columns)
            why: SkipReason | None = None if isinstance(event, UserEvent) else event
            if columns is not None:
                self._seen |= columns.keys()
            if isinstance(event, UserEvent):
                if event.time < query_file.start or event.time >= end:
                    why = SkipReason.AHEAD if event.time >= end else SkipReason.BEFORE
                else:
                    self.events.append(event)
                    lacks = [one for one in query_file.queries if one.added(event.columns) is None]
                    why = SkipReason.INCOMPLETE if lacks else None
                    self.incomplete.update((query.name, query.column) for query in lacks)
            if why is not None:
                self.skipped[why] += 1
                self._first.setdefault(why, number)
        self.events.sort(key=lambda event: event.time)

    @property
    def needs_acceptance(self) -> bool:
        """Return whether rows cannot be read. Rows before the start or after the end can be.

        That no row has a column is reported alone: one row with it would change whether to ask.
        """
        return bool(self.skipped.keys() & _REMEDIES.keys())

    @property
    def _absent(self) -> list[str]:
        """Return the columns that no row of a file without a schema has."""
        return [name for name in self._wanted if self._seen and name not in self._seen]

    def report(self) -> str:
        """Return what does not count, for the operator only: it is data about users.

        It is empty if everything counts.
        """
        if not self.skipped and not self._absent:
            return ""
        lines = [f"{self._path} has {self._rows:,} rows. These do not count for all queries:"]
        for why, first in sorted(self._first.items()):
            only = {why: self.skipped[why]}
            text = f"  {skipped_text(only, self.incomplete)}; the first is row {first:,}"
            lines.append(f"{text}; {_REMEDIES[why]}" if why in _REMEDIES else text)
        lines += [f"  no row has a column {quoted(name)}" for name in self._absent]
        return "\n".join(lines)

    def _fault(self, problem: str) -> UnusableQueries:
        return UnusableQueries(f"{self._path}: {problem}")

    def _check_names(self, names: list[str]) -> None:
        for name in self._wanted:
            if (count := names.count(name)) != 1:
                raise self._fault(
                    f"it has {count or 'no'} columns {quoted(name)}, and must have one. Its first "
                    f"columns are {', '.join(map(quoted, names[:20]))}"
                )

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
                found = EventReader.columns_of(line) if line.lstrip()[:1] == b"{" else None
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
        number = 0
        try:
            # Spark's old timestamps, in ns, could not hold the year 9999.
            file = ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="ms")
            self._check_names(file.schema_arrow.names)
            for column, role in self._roles:
                type_ = file.schema_arrow.field(column).type
                if not _fits(type_, role):
                    raise self._fault(
                        f"column {quoted(column)} has the type {str(type_)[:60]}, and the queries "
                        f"need {_ROLES[role][0]} there: convert the column, or change the queries"
                    )
            dotted = any("." in name for name in self._wanted)  # it would be read as a path
            for batch in file.iter_batches(columns=None if dotted else self._wanted):
                columns = [_values(batch.column(name)) for name in self._wanted]
                for values in zip(*columns, strict=True):
                    number += 1
                    row = dict(zip(self._wanted, values, strict=True))
                    yield number, None if any(one is _GARBLED for one in values) else row
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


_TEXT: Final = ("is_string", "is_large_string")
_TIME: Final = ("is_timestamp", "is_date")
_NUMBER: Final = ("is_integer", "is_floating", "is_decimal")
_ROLES: Final = {
    "integers": ("integers", ("is_integer",)),
    "text": ("text", _TEXT),
    "labels": ("text or integers", ("is_integer", *_TEXT)),
    "numbers": ("integers, floats or decimals", _NUMBER),
    "iso": ("timestamps, dates or ISO 8601 text", (*_TIME, *_TEXT)),
    "s": ("timestamps, dates or seconds since 1970", (*_TIME, *_NUMBER)),
    "ms": ("timestamps, dates or milliseconds since 1970", (*_TIME, *_NUMBER)),
}
"""The roles of a column, with what each needs and the types that fit, by ``pyarrow.types``."""


def _roles_of(query_file: QueryFile) -> list[tuple[str, str]]:
    """Return the columns that are read, each with every role that it has."""
    source = query_file.source
    roles = [(source.user, "integers" if source.users == "integer" else "text")]
    roles.append((source.time, source.time_unit))
    for query in query_file.queries:
        roles += [
            (column, "numbers" if isinstance(wanted, Range) else _role_of(labels_in(wanted)))
            for column, wanted in query.conditions
        ]
        roles += [(column, "numbers") for column in query.number_columns]
        if query.by:
            keys = ("",) if query.key_bytes else (0,)
            roles.append((query.by, _role_of(query.labels or keys)))
    return list(dict.fromkeys(roles))


def _role_of(labels: Iterable[Label]) -> str:
    kinds = set(map(type, labels))
    return "labels" if len(kinds) > 1 else "text" if str in kinds else "integers"


def _fits(type_: Any, role: str) -> bool:
    from pyarrow import types

    whole = type_.value_type if types.is_dictionary(type_) else type_
    return any(getattr(types, check)(whole) for check in _ROLES[role][1])


_GARBLED: Final = object()
_UNITS: Final = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 10**6)}


def _values(column: Any) -> list[Any]:
    """Return the values of a column: None for times that Python cannot hold, _GARBLED for text.

    ``to_pylist`` alone would raise for the whole column if one value is out of range.
    """
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_string(column.type) or types.is_large_string(column.type):
        whole = column.cast(pa.large_binary()).to_pylist()
        return _each(whole, lambda value: value.decode(), _GARBLED)
    if types.is_date(column.type):
        days = types.is_date32(column.type)
        numbers = column.cast(pa.int32() if days else pa.int64()).to_pylist()
        return _each(numbers, lambda value: _moment(value * (86_400_000 if days else 1)))
    if types.is_timestamp(column.type):
        factor, divisor = _UNITS[column.type.unit]
        numbers = column.cast(pa.int64()).to_pylist()
        return _each(numbers, lambda value: _moment(value * factor // divisor))
    if types.is_float16(column.type):
        column = column.cast(pa.float32())
    values: list[Any] = column.to_pylist()
    return values


def _each(values: list[Any], convert: Callable[[Any], Any], otherwise: object = None) -> list[Any]:
    def converted(value: Any) -> Any:
        try:
            return None if value is None else convert(value)
        except (OverflowError, UnicodeDecodeError):
            return otherwise

    return list(map(converted, values))


def _moment(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
