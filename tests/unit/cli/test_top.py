"""`turnstile top` marks old rows, and shows no halted users."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from typing import Any

import pytest

from streams.cli.views import frame
from streams.config import Config

rich = pytest.importorskip("rich.console")

GREEN, GREY = "\x1b[32m", "\x1b[90m"
PARTITION = {
    "partition": 0,
    "owner": "host:1",
    "rate": 1.0,
    "lag": 0,
    "snapshot": 11382,
    "seen": 5,
    "state": "deciding",
}
RUN = {"run": "night", "dataset": "d", "step": 7, "rate": 0.5, "attempt": 1, "state": "open"}
PEOPLE = {
    "users": {"partitions": {0: 40}, "datasets": {"d": 40}},
    "runs": [{**RUN, "users": 3333, "halted": 4444}],
}


def shown(age: float, away: bool, partitions: Sequence[Any] = (PARTITION,)) -> str:
    """A frame of which Redis was seen some seconds ago."""
    sides = {name: {"age": age, "away": away} for name in ("Kafka", "Redis")}
    seen: dict[str, Any] = {
        "time": 0.0,
        "rate": 1.0,
        "rates": [],
        "lag": 0,
        "alarms": [],
        "sides": sides,
        "partitions": list(partitions),
        "workers": [],
        "rejects": {},
    }
    file = StringIO()
    console = rich.Console(file=file, width=160, force_terminal=True, color_system="standard")
    console.print(frame(seen, PEOPLE, Config()))
    return file.getvalue()


def row(text: str) -> str:
    """The line of the partition, with its colours."""
    (line,) = (line for line in text.splitlines() if "host:1" in line)
    return line


def test_old_rows_are_grey() -> None:
    new, old = row(shown(0.2, away=False)), row(shown(1432.0, away=True))
    assert re.search(r"\b5 s\b", new)
    assert "1,437 s" in old
    assert (GREEN in new, GREEN in old, GREY in old) == (True, False, True)


def test_row_has_snapshot_and_users() -> None:
    line = row(shown(0.0, away=False))
    assert "11,382" in line
    assert " 40 " in line


def test_halted_users_are_not_shown() -> None:
    text = shown(0.0, away=False)
    assert "night" in text
    assert not re.search("3,?333|4,?444", text)


def test_of_many_partitions_those_that_need_attention_are_shown() -> None:
    many = [{**PARTITION, "partition": number, "owner": f"h{number}"} for number in range(256)]
    many[200] |= {"state": "suspended"}
    many[100] |= {"lag": 77}
    text = shown(0.0, away=False, partitions=many)
    listed = re.findall(r"\bh(\d+)\b", text)
    assert listed[:2] == ["200", "100"]
    assert len(listed) < 20
    assert "240" in text  # the others are counted
