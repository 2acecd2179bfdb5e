"""The output of commands: text for people or, with ``--json``, JSON Lines for programs.

With ``--json`` every line on standard output is one JSON object. Its field ``type`` names the kind
of the line; the table of commands lists the types of each command. Notes and errors are text on
standard error.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

import msgspec

from streams.config import redact

_SHOWN_ITEMS = 8
"""Items that are shown of a list in a quoted record; the JSON has all of them."""


class Exit(IntEnum):
    """Exit codes that scripts can rely on."""

    OK = 0
    """Done."""
    REFUSED = 1
    """The request was rejected, or a check found something."""
    USAGE = 2
    """Arguments or input are unusable."""
    UNAVAILABLE = 69
    """Kafka, Redis or the workers do not answer, or ``status`` found a problem."""
    SOFTWARE = 70
    """A bug, or decisions that contradict each other."""
    INTERRUPTED = 130
    """Ctrl-C."""


class UnusableInput(ValueError):
    """Input, or a combination of options, that a command cannot use."""


def show(type_: str, record: Mapping[str, Any], as_json: bool) -> None:
    """Print one record: as a JSON object with its type, or its values with their names."""
    if as_json:
        # UTF-8, even if the terminal uses another encoding.
        line = msgspec.json.encode({"type": type_, **record}, enc_hook=str) + b"\n"
    else:
        line = _encoded("  ".join(f"{name}={plain(value)}" for name, value in record.items()))
    _write(line)


def say(text: str) -> None:
    """Print a line for people among the results; pass values in it through ``plain``."""
    _write(_encoded(text))


def show_all(
    type_: str, records: Iterable[Mapping[str, Any]], columns: Sequence[str], as_json: bool
) -> None:
    """Print records: each as a JSON object with its type, or these columns of all as a table."""
    if as_json:
        for record in records:
            show(type_, record, True)
    else:
        show_table(columns, [[record[name] for name in columns] for record in records])


def show_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under column names; columns with text are aligned left, numbers right."""
    columns = list(zip(names, *rows, strict=True))
    texts = [any(isinstance(value, str) for value in values) for _, *values in columns]
    cells = [[plain(value) for value in column] for column in columns]
    widths = [max(map(len, column)) for column in cells]
    for row in zip(*cells, strict=True):
        aligned = (
            cell.ljust(width) if is_text else cell.rjust(width)
            for cell, width, is_text in zip(row, widths, texts, strict=True)
        )
        say("  ".join(aligned).rstrip())


def note(message: object) -> None:
    """Print a message for people on standard error, without passwords.

    A command still cleans up if its terminal was closed, so errors are ignored.
    """
    with suppress(OSError, ValueError):
        print(redact(message), file=sys.stderr, flush=True)


def close_unwritable_outputs() -> None:
    """Redirect an output whose reader is gone to the null device.

    Otherwise Python's flush at exit fails, and replaces the exit code by 120.
    """
    for output in (sys.stdout, sys.stderr):
        try:
            output.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def plain(value: Any) -> str:
    """Return a value as text for people."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.6g}"
        case list() | tuple():
            return ",".join(map(plain, value)) or "-"
        case dict():
            items = (f"{plain(name)}: {_quoted(item)}" for name, item in value.items())
            return "{" + ", ".join(items) + "}"
        case bytes():
            return value.hex()
    # Values that others wrote must not control the terminal.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def _encoded(text: str) -> bytes:
    return f"{text}\n".encode(sys.stdout.encoding or "utf-8", "backslashreplace")


def _write(line: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _quoted(value: Any) -> str:
    """Return a value of a quoted record as text; long lists are cut."""
    if isinstance(value, list) and len(value) > _SHOWN_ITEMS:
        shown = ",".join(map(plain, value[:_SHOWN_ITEMS]))
        return f"[{shown}, ... {len(value):,} in all]"
    return f"[{plain(value)}]" if isinstance(value, list) else plain(value)


def start_log(level: str, format_: str) -> None:
    """Write the log and Python's warnings to standard error, as ``text`` or as JSON Lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format_ == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(True)


_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """Formats a log record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if reason := getattr(record, "reason", None):
            line["reason"] = reason
        if record.exc_info:
            line["traceback"] = redact(self.formatException(record.exc_info))
        return msgspec.json.encode(line).decode()
