"""What the commands print, for people or, with --json, for programs: one JSON object a line."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any

import msgspec

from streams.config import redact

_SHOWN_ITEMS = 8
"""Of a list in a record that a reject quotes; the whole of it is in the JSON."""


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


class Exit(IntEnum):
    """Exit codes that scripts can rely on."""

    OK = 0
    REFUSED = 1  # understood, and the answer is no
    USAGE = 2  # arguments or input that make no sense
    UNAVAILABLE = 69  # Kafka, Redis or the workers did not answer
    SOFTWARE = 70  # a bug, or decisions that contradict each other
    INTERRUPTED = 130


class UnusableInput(ValueError):
    """A file that cannot be read as what it should be."""


def show(record: Mapping[str, Any], as_json: bool) -> None:
    """One record: JSON, or its values with their names."""
    if as_json:
        # UTF-8 whatever the terminal speaks.
        line = msgspec.json.encode(record, enc_hook=str) + b"\n"
    else:
        line = _encoded("  ".join(f"{name}={plain(value)}" for name, value in record.items()))
    _write(line)


def say(text: str) -> None:
    """A line for people among the results; values in it come from ``plain``."""
    _write(_encoded(text))


def show_table(
    names: Sequence[str], rows: Sequence[Sequence[Any]], words: Collection[str] = ()
) -> None:
    """Rows under the names of their columns: some are ``words``, the others numbers."""
    cells = [list(names), *([plain(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        places = zip(row, widths, strict=True)
        say(
            "  ".join(
                cell.ljust(width) if names[number] in words else cell.rjust(width)
                for number, (cell, width) in enumerate(places)
            ).rstrip()
        )


def as_cell(value: Any) -> Any:
    """Return a value for a CSV file, so that no spreadsheet runs it as a formula.

    A string that begins with ``=``, ``+``, ``-``, ``@``, a tab, a carriage return or an apostrophe
    gets one apostrophe before it. To read the string back, drop one leading apostrophe.
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def note(message: object) -> None:
    """Something for people only, beside the results; never a password.

    A terminal that has gone away stops nobody from putting things in order.
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
    """A value as people read it."""
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
    # What others wrote must not command the terminal.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def _encoded(text: str) -> bytes:
    return f"{text}\n".encode(sys.stdout.encoding or "utf-8", "backslashreplace")


def _write(line: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _quoted(value: Any) -> str:
    """A value inside of a record that is quoted: long ones are cut."""
    if isinstance(value, list) and len(value) > _SHOWN_ITEMS:
        shown = ",".join(map(plain, value[:_SHOWN_ITEMS]))
        return f"[{shown}, ... {len(value):,} in all]"
    return f"[{plain(value)}]" if isinstance(value, list) else plain(value)
