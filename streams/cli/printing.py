"""The output of commands: text for people or, with ``--json``, JSON Lines for programs.

With ``--json`` every line on standard output is one JSON object. Its field ``type`` names the kind
of the line; the table of commands lists the types of each command. Notes and errors are text on
standard error.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import UTC, datetime
from itertools import chain, islice, zip_longest
from shutil import get_terminal_size
from textwrap import TextWrapper, fill, wrap
from typing import Any, Final

import msgspec

from streams.config import redact
from streams.failures import Exit, Failure

_SHOWN_ITEMS: Final = 8
"""Items that are shown of a list; the JSON has all of them."""
_ALIGNED_ROWS: Final = 200
"""Rows that decide how wide a column is. Later ones can be wider."""
_LINE: Final = 80
_LEAST: Final = 20
"""The least width of a last column whose text is wrapped."""
_PIPED: Final = 160
"""The width of an output that is no terminal."""


class UnusableInput(Failure, ValueError):
    """Input, or a combination of options, that a command cannot use."""

    exit_code = Exit.USAGE


def show(
    type_: str,
    found: Any,
    as_json: bool,
    columns: Sequence[str] | Mapping[str, str] = (),
    *,
    follow: bool = False,
) -> int:
    """Print a record or several, and return their number.

    A record is a dataclass, a struct or a mapping. For people, one record is a line or, if it is
    too long, a line for each field. Several are a table or, if it is too wide for the terminal, a
    block each.

    Args:
        type_: the type of the JSON objects.
        found: one record, or an iterable of records.
        as_json: print each as a JSON object with all its fields instead.
        columns: the fields to show people, or their headings by field; without them, those with a
            value.
        follow: print each record at once, because it may be long until the next one.
    """
    is_one = isinstance(found, (Mapping, msgspec.Struct)) or is_dataclass(found)
    records = iter([found] if is_one else found)
    count = 0
    if as_json:
        for record in records:
            fields = msgspec.to_builtins(record, enc_hook=str)
            # UTF-8, even if the terminal uses another encoding.
            _write(msgspec.json.encode({"type": type_, **fields}, enc_hook=str) + b"\n")
            count += 1
        return count
    rows = map(_fields, records)
    if is_one:
        _show_one(next(rows), columns)
        return 1
    if not (first := list(islice(rows, 1 if follow else _ALIGNED_ROWS))):
        return 0
    names = columns or [
        name for name in first[0] if any(_has_value(row.get(name)) for row in first)
    ]
    if not isinstance(names, Mapping):
        names = {name: name.replace("_", " ") for name in names}
    shown = ([row.get(name) for name in names] for row in chain(first, rows))
    return show_table(list(names.values()), shown, decided_by=len(first))


def show_table(
    names: Sequence[str], rows: Iterable[Sequence[Any]], *, decided_by: int | None = None
) -> int:
    """Print rows under column names, and return their number.

    Columns with text are aligned left, numbers right. The first ``decided_by`` rows, or all,
    decide the widths. If the table is wider than the terminal, names of several words take several
    lines, gaps are narrow, and text in the last column is wrapped. If that does not suffice, each
    row is a block.
    """
    remaining = iter(rows)
    first = list(islice(remaining, decided_by))
    columns = list(zip(names, *first, strict=True))
    text = (str, list, tuple, dict)
    texts = [any(isinstance(value, text) for value in values) for _, *values in columns]
    longest = [max(len(plain(value)) for value in values) for _, *values in columns]
    for is_narrow in (False, True):
        least = [max(map(len, name.split(" " if is_narrow else "\n"))) for name in names]
        widths, gap = list(map(max, longest, least)), " " if is_narrow else "  "
        is_table = len(gap.join(" " * width for width in widths)) <= _width()
        if is_table:
            break
    last = _width() - sum(widths[:-1]) - len(gap) * (len(widths) - 1)
    is_wrapped = not is_table and texts[-1] and last >= _LEAST
    if is_wrapped:
        widths[-1], is_table = last, True
    names_in_lines = (wrap(name, max(1, width)) for name, width in zip(names, widths, strict=True))
    heads = list(zip_longest(*map(reversed, names_in_lines), fillvalue=""))
    count = -len(heads) if is_table else 0
    for row in chain(reversed(heads) if is_table else [], first, remaining):
        count += 1
        if is_table:
            *others, end = map(plain, row)
            ends = wrap(end, last) if is_wrapped else [end]
            for cells in zip_longest(*([other] for other in others), ends or [""], fillvalue=""):
                aligned = (
                    cell.ljust(width) if is_text else cell.rjust(width)
                    for cell, width, is_text in zip(cells, widths, texts, strict=True)
                )
                say(gap.join(aligned).rstrip())
        else:
            if count > 1:
                say("")
            _show_block(dict(zip(names, row, strict=True)))
    return count


def _fields(record: Any) -> Mapping[str, Any]:
    """Return the fields of a record by name."""
    if isinstance(record, Mapping):
        return record
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.asdict(record)
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _has_value(value: Any) -> bool:
    return value is not None and value not in ("", [], {})


def _width() -> int:
    return get_terminal_size((_LINE, 24)).columns if sys.stdout.isatty() else _PIPED


def _show_one(row: Mapping[str, Any], columns: Iterable[str]) -> None:
    shown = {name: row[name] for name in columns or row if columns or _has_value(row[name])}
    line = "  ".join(f"{name}={plain(value)}" for name, value in shown.items())
    if len(line) <= _LINE:
        say(line)
    else:
        _show_block(shown)


def _show_block(row: Mapping[str, Any]) -> None:
    width = max(map(len, row)) + 2
    fit = TextWrapper(_width(), subsequent_indent=" " * width)
    fit.break_long_words = fit.break_on_hyphens = False  # links and ids are copied
    for name, value in row.items():
        if _has_value(value):
            say(fit.fill(f"{name:{width}}{plain(value)}"))


def say(text: str) -> None:
    """Print a line for people among the results; pass values in it through ``plain``."""
    _write(f"{text}\n".encode(sys.stdout.encoding or "utf-8", "backslashreplace"))


def tell(text: str) -> None:
    """Print a sentence for people among the results, wrapped to the width of a terminal."""
    for line in text.split("\n"):
        is_indented, is_wrapped = line.startswith(("- ", "  ")), sys.stdout.isatty()
        indent = "  " if is_indented else ""
        # Commands are copied from here, so words are not broken.
        fit = TextWrapper(_width(), subsequent_indent=indent, break_long_words=False)
        fit.break_on_hyphens = False
        say(fit.fill(line) if is_wrapped else line)


def note(message: object, *, is_wrapped: bool = False) -> None:
    """Print a message for people on standard error, without passwords.

    A command still cleans up if its terminal was closed, so errors are ignored.

    Args:
        is_wrapped: wrap it to the width of a terminal. Commands are copied from other notes.
    """
    text = redact(message)
    with suppress(OSError, ValueError):
        if is_wrapped and sys.stderr.isatty():
            text = fill(text, get_terminal_size((_LINE, 24)).columns)
        print(text, file=sys.stderr, flush=True)


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
    """Return a value as text for people; long lists are cut."""
    match value:
        case None | [] | ():
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case list() | tuple():
            shown = ", ".join(map(plain, value[:_SHOWN_ITEMS]))
            return shown + (f", ... {len(value):,} in all" if len(value) > _SHOWN_ITEMS else "")
        case dict():
            return ", ".join(f"{plain(name)}: {_nested(item)}" for name, item in value.items())
        case bytes():
            return value.hex()
    # Values that others wrote must not control the terminal.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def _nested(value: Any) -> str:
    """Return a value in a mapping as text, so that its end can be seen."""
    match value:
        case dict():
            return f"{{{plain(value)}}}"
        case list():
            return f"[{plain(value) if value else ''}]"
    return plain(value)


def _write(line: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


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
