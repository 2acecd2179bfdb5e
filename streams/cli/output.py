"""What the commands print, for people or, with --json, for programs: one JSON object a line."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any

import msgspec

from streams.config import redact

_SHOWN_ITEMS = 8
"""Of a list in a record that a reject quotes; the whole of it is in the JSON."""


class Exit(IntEnum):
    """Exit codes that scripts can rely on."""

    OK = 0
    REFUSED = 1  # understood, and the answer is no
    USAGE = 2  # arguments or input that make no sense
    UNAVAILABLE = 69  # Kafka, Redis or the workers did not answer
    SOFTWARE = 70  # a bug, or decisions that contradict each other
    INTERRUPTED = 130


def show(record: Mapping[str, Any], as_json: bool) -> None:
    """One record: JSON, or its values with their names."""
    if as_json:
        # UTF-8 whatever the terminal speaks.
        line = msgspec.json.encode(record, enc_hook=str) + b"\n"
    else:
        text = "  ".join(f"{name}={_plain(value)}" for name, value in record.items())
        line = f"{text}\n".encode(sys.stdout.encoding or "utf-8", "backslashreplace")
    sys.stdout.flush()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def note(message: object) -> None:
    """Something for people only, beside the results; never a password.

    A terminal that has gone away stops nobody from putting things in order.
    """
    with suppress(OSError, ValueError):
        print(redact(message), file=sys.stderr, flush=True)


def _plain(value: Any) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.6g}"
        case list() | tuple():
            return ",".join(map(_plain, value))
        case dict():
            items = (f"{_plain(name)}: {_quoted(item)}" for name, item in value.items())
            return "{" + ", ".join(items) + "}"
        case bytes():
            return value.hex()
    # What others wrote must not command the terminal.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def _quoted(value: Any) -> str:
    """A value inside of a record that is quoted: long ones are cut."""
    if isinstance(value, list) and len(value) > _SHOWN_ITEMS:
        shown = ",".join(map(_plain, value[:_SHOWN_ITEMS]))
        return f"[{shown}, ... {len(value):,} in all]"
    return f"[{_plain(value)}]" if isinstance(value, list) else _plain(value)
