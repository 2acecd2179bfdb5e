"""Files of queries, and events, for tests of the answerer."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from streams.answerer.event_input import EventInput
from streams.answerer.events import EventPlace
from streams.answerer.kinds import Kind
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.answerer.published_answers import AnswerRecord
from streams.answerer.query_file import Blocks, QueryFile, parse_queries
from streams.answerer.window_answering import Answering, answer_input
from streams.queries.continual_monitoring import ChargedUsers
from streams.sdk.client import Turnstile

FILE = """
dataset = "d"
run = "r"

[input]
topic = "events"
user = "u"
users = "integer"
time = "t"
time_unit = "ms"
start = 1970-01-01
end = 1970-01-02T00:00:00+23:50
clock = "events"
"""
COUNT = """
[[query]]
name = "count"
kind = "count"
window = "10ms"
each = 2
noise = 1.0
"""


END = "1970-01-02T00:00:00+23:50"
"""The end in FILE, ten minutes after its start."""


def zoned(zone: str, start: str, window: str = "1d") -> str:
    """Return a file in a time zone, which starts on this day and asks one query."""
    file = FILE.replace("1970-01-01", start).replace(END, "2030-01-01")
    file = file.replace('run = "r"', f'run = "r"\ntimezone = "{zone}"')
    return file + COUNT.replace("10ms", window)


def asked_of(text: str) -> QueryFile:
    """Return the content of a file of queries.

    Blocks follow from the length of the input. So that few windows have several, a query here may
    give ``left_out``, ``block`` and ``corrected``, in windows.
    """
    return parse_blocks(tomllib.loads(text))


def parse_blocks(content: dict[str, Any]) -> QueryFile:
    """Return the content of a file of queries from its tables, as ``asked_of``."""
    given = content.get("query")
    asked = given if isinstance(given, list) else []
    blocks = [
        Blocks(*(query.pop(key, 0) for key in ("left_out", "block", "corrected")))
        for query in asked
        if isinstance(query, dict)
    ]
    file = parse_queries(content)
    return replace(file, blocks=tuple(blocks)) if any(map(any, blocks)) else file


def query_of(text: str, **settings: Any) -> Kind:
    """Return one query, with windows of 10 ms and noise 1, from its other keys."""
    rest = {"window": '"10ms"', "noise": "1.0", "name": '"q"', **settings}
    lines = "\n".join(f"{key} = {value}" for key, value in rest.items())
    return asked_of(f"{FILE}\n[[query]]\n{text}\n{lines}\n").queries[0]


def event(user: int, time: int, **columns: Any) -> bytes:
    """Return an event as it is sent."""
    return msgspec.json.encode({"u": user, "t": time, **columns})


def at(offset: int, partition: int = 0) -> EventPlace:
    """Return a place in the input."""
    return EventPlace(partition, offset)


def read(answering: Answering, events: Sequence[bytes], to: int | None = None) -> None:
    """Read the input from where the answerer needs it, and close the windows that are due."""
    given = events[:to]
    state, again = answering.state, answering.replay_until.get(0, 0)
    for offset, value in enumerate(given[:again]):
        state.take(at(offset), value, None)
    answering.finish_closing()
    answering.close_due(state.clock(1, {}))
    for offset, value in enumerate(given):
        state.take(at(offset), value, None)
        answering.close_due(state.clock(1, {}))


Look = Callable[[AnswerRecord, ChargedUsers | None], None]


def answered(
    query_file: QueryFile,
    turnstile: Turnstile,
    events: Sequence[bytes] | EventInput,
    look: Look = lambda record, charge: None,
    seed: int = 1,
) -> list[AnswerRecord]:
    """Answer the queries about all events, and return the records.

    Args:
        query_file: the file of queries.
        turnstile: holds the dataset.
        events: as they are sent, or of a file.
        look: called with each record and its charge.
        seed: of the noise.
    """
    records: list[AnswerRecord] = []

    def announce(record: AnswerRecord) -> None:
        records.append(record)
        look(record, answering.last_charge)

    answering = Answering(
        query_file,
        "x",
        lambda released: turnstile.run(query_file.dataset, query_file.run, released=released),
        MemoryJournal(MemoryTopics(), query_file.dataset),
        announce,
        noise=np.random.default_rng(seed),
    )
    if isinstance(events, EventInput):
        answer_input(answering, events)
    else:
        read(answering, events)
    return records
