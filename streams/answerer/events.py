"""Events of users: JSON or MessagePack records, or the rows of a CSV, JSON lines or Parquet file.

Unreadable events are counted and skipped, since one bad event must not stop the others. Ids are
normalised and checked as the dataset requires, so that no charge of a window is rejected for an id.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from streams.answerer.queries import QueryFile, Source, UnusableQueries
from streams.records import User
from streams.records.users import normal_form

_LONGEST_ID: Final = 256
_LARGEST_MS: Final = 2**53
_JSON: Final = msgspec.json.Decoder(dict[str, Any])
FILE_SUFFIXES: Final = (".csv", ".jsonl", ".parquet")
_BLOCK: Final = 1 << 20
_MSGPACK: Final = msgspec.msgpack.Decoder(dict[str, Any])


class SkipReason(StrEnum):
    """Why an event does not count."""

    UNREADABLE = "unreadable record, or longer than 64 KiB"
    NO_EVENT = "not a JSON or MessagePack object"
    NO_USER = "no valid user id"
    NO_TIME = "no valid time"
    AHEAD = "after the last window, or in the future"
    BEFORE = "before the first window"
    TOO_LATE = "too late for all of its windows"
    LATE = "too late for some of its windows"
    INCOMPLETE = "required number missing"


class EventPlace(NamedTuple):
    """The position of an event in the input."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class UserEvent:
    """An action of a user at a time, with all other columns."""

    user: User
    time: int
    columns: Mapping[str, Any]


class EventReader:
    """Reads events.

    Args:
        source: names the columns with user and time.
        text: whether all columns are text, as in CSV.
    """

    def __init__(self, source: Source, text: bool = False) -> None:
        self._source = source
        self.text = text

    def decode(self, value: bytes | None) -> UserEvent | SkipReason:
        """Return an event from a Kafka record; unreadable ones have a placeholder value."""
        if not value:
            return SkipReason.NO_EVENT
        if value[0] == 0:  # no event begins with this byte; see streams.kafka.batches
            return SkipReason.UNREADABLE
        try:
            columns = (_JSON if value[:1] == b"{" else _MSGPACK).decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
            return SkipReason.NO_EVENT
        return self.event_of(columns)

    def event_of(self, columns: Mapping[str, Any]) -> UserEvent | SkipReason:
        """Return an event from its columns."""
        user = self._user(columns.get(self._source.user))
        if user is None:
            return SkipReason.NO_USER
        time = self._time(columns.get(self._source.time))
        if time is None:
            return SkipReason.NO_TIME
        return UserEvent(user, time, columns)

    def _user(self, value: Any) -> User | None:
        if self._source.integers:
            if self.text and isinstance(value, str):
                try:
                    value = int(value)
                except ValueError:
                    return None
            return value if type(value) is int and -(2**63) <= value < 2**63 else None
        if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_ID:
            return None
        try:
            value.encode()
        except UnicodeEncodeError:
            return None
        name = normal_form(value)
        return name if 1 <= len(name) <= _LONGEST_ID else None

    def _time(self, value: Any) -> int | None:
        if isinstance(value, datetime | date):
            return _ms(value)
        if self._source.time_unit == "iso":
            try:
                return _ms(datetime.fromisoformat(value))
            except (TypeError, ValueError, OverflowError):
                return None
        number = number_of(value, self.text)
        if number is None:
            return None
        time = number * (1000.0 if self._source.time_unit == "s" else 1.0)
        return math.floor(time) if abs(time) < _LARGEST_MS else None


def number_of(value: Any, text: bool) -> float | None:
    """Return a finite number, from text if all columns are text; None if the value is not one."""
    if text and isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _ms(moment: datetime | date) -> int:
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return math.floor(aware.timestamp() * 1000)


class EventFile:
    """A file of events.

    Args:
        path: the file; its suffix is one of FILE_SUFFIXES.
        query_file: names the columns.

    Raises:
        UnusableQueries: the file cannot be read; from ``rows``, a column is missing.
    """

    def __init__(self, path: Path, query_file: QueryFile) -> None:
        self.path = path
        self.text = path.suffix == ".csv"
        self._source = query_file.source
        self._wanted = {self._source.user, self._source.time}
        if path.suffix != ".jsonl":  # where an event may lack a column
            self._wanted = self._wanted.union(*(query.columns for query in query_file.queries))
        if path.suffix not in FILE_SUFFIXES:
            raise UnusableQueries(
                f"{path} has an unknown suffix; it must be one of {', '.join(FILE_SUFFIXES)}"
            )
        try:
            with path.open("rb") as file:
                digest = hashlib.sha256()
                while block := file.read(_BLOCK):
                    digest.update(block)
        except OSError as error:
            raise UnusableQueries(f"cannot read {path}: {error}") from error
        self.source = f"file:{digest.hexdigest()}"

    def rows(self) -> list[Mapping[str, Any]]:
        """Return its rows: those without a time first, the others in the order of their times."""
        reader = EventReader(self._source, self.text)
        rows = list(self._read())
        if rows and (missing := self._wanted - rows[0].keys()):
            raise UnusableQueries(
                f"{self.path} has no column {min(missing)!r}; it has {', '.join(rows[0])}"
            )
        events = [reader.event_of(row) for row in rows]
        times = [event.time if isinstance(event, UserEvent) else -(2**62) for event in events]
        return [rows[place] for place in sorted(range(len(rows)), key=times.__getitem__)]

    def _read(self) -> Iterator[Mapping[str, Any]]:
        try:
            match self.path.suffix:
                case ".csv":
                    with self.path.open(newline="", encoding="utf-8") as lines:
                        yield from csv.DictReader(lines)
                case ".jsonl":
                    decoder = msgspec.json.Decoder(dict[str, Any])
                    with self.path.open("rb") as lines:
                        for number, line in enumerate(lines, start=1):
                            if line.strip():
                                yield _decoded(decoder, line, number)
                case _:
                    yield from _parquet(self.path)
        except (OSError, UnicodeDecodeError, csv.Error, msgspec.DecodeError) as error:
            raise UnusableQueries(f"{self.path}: {error}") from error


def _decoded(decoder: msgspec.json.Decoder[dict[str, Any]], line: bytes, number: int) -> Any:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableQueries(f"line {number}: {error}") from error


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise UnusableQueries(
            f"{path}: Parquet files need pyarrow: pip install 'dp-turnstile[report]'"
        ) from error
    try:
        for batch in ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except ArrowException as error:
        raise UnusableQueries(f"{path}: {error}") from error
