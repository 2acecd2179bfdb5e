"""What the commands print, for people or, with --json, for programs: one JSON object a line."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import msgspec


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
        line = msgspec.json.encode(record, enc_hook=str).decode()
    else:
        line = "  ".join(f"{name}={_plain(value)}" for name, value in record.items())
    print(line, flush=True)


def note(message: str) -> None:
    """Something for people only, beside the results."""
    print(message, file=sys.stderr, flush=True)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ",".join(_plain(item) for item in value)
    return "-" if value is None else str(value)
