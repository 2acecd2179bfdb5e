"""Events from a file: CSV, JSON lines or Parquet, in the order of their times.

At the end of the file, its clock advances to the first end of a window that contains the last
event. A window that has not ended by then is incomplete, and is not answered.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from streams.answerer.answering import Answering
from streams.answerer.desk import EventPlace
from streams.answerer.events import EventReader, UserEvent
from streams.answerer.questions import Questions, UnusableQueries

_BLOCK: Final = 1 << 20
KINDS: Final = (".csv", ".jsonl", ".parquet")


class EventFile:
    """A file of events.

    Args:
        path: ends in one of KINDS.
        questions: name the columns with user and time.

    Raises:
        UnusableQueries: it cannot be read.
    """

    def __init__(self, path: Path, questions: Questions) -> None:
        self.path = path
        self.text = path.suffix == ".csv"
        self._source = questions.source
        if path.suffix not in KINDS:
            raise UnusableQueries(
                f"{path} has an unknown suffix; a file of events must end in {', '.join(KINDS)}"
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
        wanted = {self._source.user, self._source.time}
        if rows and (missing := wanted - rows[0].keys()):
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


def answer_file(answering: Answering, file: EventFile) -> None:
    """Answer all windows that end within a file.

    Raises:
        UnusableQueries: nothing more can be answered.
        TurnstileError: as ``Answering.close_due``.
    """
    rows = file.rows()
    answering.start()
    desk = answering.desk
    again = answering.again.get(0, 0)
    for offset, row in enumerate(rows):
        if offset == again:
            answering.go_on()
        desk.take_row(EventPlace(0, offset), row)
        if offset >= again:
            answering.close_due(desk.clock(1, {}))
    if again >= len(rows):
        answering.go_on()
    answering.close_due(desk.end_of_window(desk.clock(1, {})))


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
