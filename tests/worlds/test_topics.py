"""The answerer of a topic does the same with one user and without.

Events come as the broker sends them: in compressed batches of many users. Time passes in the end.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np
import pytest

from streams.answerer.answerer_app import EventInbox
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.answerer.published_answers import AnswerRecord
from streams.answerer.query_file import parse_queries
from streams.answerer.window_answering import Answering
from streams.config import Config
from streams.kafka.batches import EventBatch
from tests.batches import packed, record
from tests.worlds.events import (
    DAY,
    DAYS,
    END,
    LATE,
    OTHERS,
    USER,
    USUAL,
    answers,
    event,
    queries,
    service,
)
from tests.worlds.neighbours import SEED, Fact, check_neighbours

pytestmark = pytest.mark.slow

APPEND_TIME = 8  # the broker has set the time of the batch
PARTITIONS = 2
HOUR = DAY // 24
LATER = 100  # days after which past events are sent to a topic


class Sent(NamedTuple):
    """An event as it was sent.

    Attributes:
        value: the record.
        arrived: when the broker received it, in ms since 1970.
        partition: of the topic.
    """

    value: bytes
    arrived: int
    partition: int


def sent(one: dict[str, Any], arrived: float | None = None, partition: int = 1) -> Sent:
    """Return an event that arrives at this day, by default in the half of a day after its time."""
    time = one.get("t")
    moment = time if arrived is None else round(arrived * DAY)
    known = isinstance(moment, int) and 0 <= moment < DAYS * DAY
    return Sent(
        msgspec.json.encode(one),
        (moment // (12 * HOUR) + 1) * 12 * HOUR if known else DAY,
        partition,
    )


class Clock:
    """The clocks of the answerer, which no test waits for."""

    def __init__(self) -> None:
        self.ms = 0

    def time(self) -> float:
        return self.ms / 1000

    monotonic = time


class Reader:
    """A consumer of an empty topic."""

    def __init__(self, config: Config, *, of_events: bool) -> None:
        self._places: dict[Any, int] = {}

    def assign(self, places: list[Any]) -> None:
        self._places = dict.fromkeys(places, 0)

    def beginning_offsets(self, places: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(places, 0)

    def seek(self, place: Any, offset: int) -> None:
        self._places[place] = offset

    def position(self, place: Any) -> int:
        return self._places[place]

    def close(self) -> None:
        pass


def answer(
    events: list[Sent], until: int = DAYS + 2, file: Callable[..., str] = queries, **source: str
) -> Iterator[Fact]:
    """Answer the events of a topic until this day."""
    query_file, clock, topics = (
        parse_queries(tomllib.loads(file(**source))),
        Clock(),
        MemoryTopics(),
    )
    turnstile = service()

    def take_over() -> Answering:
        return Answering(
            query_file,
            "topic",
            lambda released: turnstile.run("d", "r", released=released),
            MemoryJournal(topics, "d"),
            noise=np.random.default_rng(SEED),
        )

    with (
        patch("streams.answerer.answerer_app.time", clock),
        patch("streams.answerer.answerer_app.new_reader", Reader),
    ):
        inbox = EventInbox(Config(), query_file, take_over, PARTITIONS, "log")
        asyncio.run(_read(inbox, events, clock, until * DAY))
    yield from answers(msgspec.json.decode(one, type=AnswerRecord) for _, one in topics.answers)
    yield Fact("next step", inbox.state.calendar.step)


async def _read(inbox: EventInbox, events: list[Sent], clock: Clock, until: int) -> None:
    await inbox.acquire(range(PARTITIONS))
    ends = dict.fromkeys(range(PARTITIONS), 0)
    inbox.end_of = ends.get
    together: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    for one in events:
        together[one.arrived, one.partition].append(one.value)
    for (clock.ms, partition), values in sorted(together.items()):
        raw = packed(
            "gzip",
            [record(place, value) for place, value in enumerate(values)],
            attributes=APPEND_TIME,
            base_offset=ends[partition],
            time_ms=clock.ms,
        )
        for message in EventBatch(memoryview(raw)):
            await inbox.arrive(SimpleNamespace(**message._asdict(), partition=partition))
        ends[partition] += len(values)
        await inbox.tick()
    while clock.ms < until:
        clock.ms += HOUR
        await inbox.tick()


SENT = [sent(one, partition=one["u"] % PARTITIONS) for one in OTHERS]
HOSTILE: dict[str, list[Sent]] = {
    **{name: [sent(one) for one in events] for name, events in USUAL.items()},
    "late events": [sent(event(USER, 0.5), 3.0), sent(event(USER, 0.5), 1.03)],
    "events of the future": [sent(event(USER, 2.5), 2.0), sent(event(USER, 10.0**6), 2.0)],
    "no JSON": [
        Sent(value, 2 * DAY, 1) for value in (b"", b"{", b"\0", b"[]", b"{" * 10_000, b"\xff" * 100)
    ],
    "a long record": [Sent(b"{" + b" " * 10**6 + b"}", 2 * DAY, 1)],
    "a record that is too long": [Sent(bytes(2**24), DAY // 2, 0)],
    "an id that is no text": [Sent(b'{"u":"\\ud800","t":1}', DAY, 1)],
}


def test_answers_of_a_topic_are_complete() -> None:
    facts = check_neighbours(answer, SENT, [])
    shown = [fact.value for fact in facts if fact.what == "answer"]
    assert sum(one["query"] == "buyers" for one in shown) > 4 * DAYS


@pytest.mark.parametrize("name", ["one event", "an event every day", *LATE])
def test_one_user_does_not_end_a_topic_by_the_clock_of_its_events(name: str) -> None:
    def by_events(events: list[Sent]) -> Iterator[Fact]:
        sent_later = [one._replace(arrived=one.arrived + LATER * DAY) for one in events]
        return answer(sent_later, LATER + DAYS + 2, clock='"events"', end=END)

    facts = check_neighbours(by_events, SENT, [sent(one) for one in (USUAL | LATE)[name]])
    shown = [fact.value for fact in facts if fact.what == "answer"]
    buyers = [one["type"] for one in shown if one["query"] == "buyers"]
    assert Counter(buyers) == {"answer": 4 * DAYS, "correction": 4}


@pytest.mark.parametrize("name", HOSTILE)
def test_one_user_of_a_topic_decides_nothing(name: str) -> None:
    check_neighbours(partial(answer, end=END), SENT, HOSTILE[name])
