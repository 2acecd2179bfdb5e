"""Answerers that are killed, paused or interleaved at any of their reads and writes."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from streams.answerer.journal import JournalEntry
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.answerer.query_file import QueryFile
from streams.answerer.window_answering import Answering
from streams.records import Charge, decode_request
from streams.records.digests import charge_digest
from streams.sdk.connection import PendingRequest
from tests.unit.answerer.asking import COUNT, FILE, asked_of, event, read
from tests.unit.sdk.partitions import Partitions

QUESTIONS = asked_of(
    FILE
    + COUNT
    + COUNT.replace('"10ms"', '"8ms"\nevery = "4ms"').replace('"count"\nkind', '"slid"\nkind')
)
EVENTS = [(user, time) for time in range(0, 24, 2) for user in (time % 3, 5)]


class Killed(BaseException):
    """The process was killed."""


class Places:
    """The places at which an answerer reads or writes."""

    def write(self) -> None:
        """Called before and after each write."""

    def read(self) -> None:
        """Called before each read."""


class Doom(Places):
    """Kills a life at one place, counted from 1. A kill at a read shows nothing new."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def write(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


class Sleep(Places):
    """Pauses a life at one place while something else happens there."""

    def __init__(self, at: int, meanwhile: Callable[[], object]) -> None:
        self.at, self.count = at, 0
        self._meanwhile = meanwhile

    def write(self) -> None:
        self.count += 1
        if self.count == self.at:
            self._meanwhile()

    read = write


class Turn(Places):
    """One of several lives, each in a thread, of which one runs at a time."""

    def __init__(self, live: Callable[[Turn], object]) -> None:
        self.error: BaseException | None = None
        self.is_over = False
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(live,), daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Run to the next place, or to the end."""
        if not self.is_over:
            self._go.release()
            self._paused.acquire()

    def write(self) -> None:
        self._paused.release()
        self._go.acquire()

    read = write

    def _run(self, live: Callable[[Turn], object]) -> None:
        self._go.acquire()
        try:
            live(self)
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._paused.release()


Goes = Callable[[JournalEntry], bool]
"""Returns whether compaction has removed a deleted entry."""


class WatchedJournal(MemoryJournal):
    """A journal in memory that reports each read and write to an answerer's places."""

    def __init__(
        self, places: Places, pages: MemoryTopics, query_file: QueryFile, goes: Goes
    ) -> None:
        super().__init__(pages, query_file.dataset)
        self._places, self._goes = places, goes

    def append(self, entry: JournalEntry) -> None:
        self._places.write()
        super().append(entry)
        self._places.write()

    def catch_up(self) -> Sequence[JournalEntry]:
        self._places.read()
        return super().catch_up()

    def end(self) -> int:
        self._places.read()
        return super().end()

    def published(self, since: int, run: str) -> Sequence[bytes]:
        self._places.read()
        return super().published(since, run)

    def publish(self, answer: bytes, run: str) -> None:
        self._places.write()
        super().publish(answer, run)
        self._places.write()

    def delete(self, entries: Sequence[JournalEntry]) -> None:
        for entry in entries:
            self._places.write()
            if self._goes(entry):
                super().delete([entry])
        self._places.write()


class WatchedPartitions(Partitions):
    """Publishes a charge partition by partition, so an answerer can be killed between two."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._of_thread = threading.local()

    @contextmanager
    def watched_by(self, places: Places) -> Iterator[None]:
        """Report the charges that this thread publishes to these places."""
        outer = getattr(self._of_thread, "places", None)
        self._of_thread.places = places
        try:
            yield
        finally:
            self._of_thread.places = outer

    def _publish(self, requests: Mapping[int, bytes], waiting: PendingRequest) -> None:
        places = getattr(self._of_thread, "places", None)
        if places is None or not _is_charge(requests):
            super()._publish(requests, waiting)
            return
        places.write()
        for partition in sorted(requests):
            super()._publish({partition: requests[partition]}, waiting)
            places.write()


class World:
    """A service, the two topics of answerers, and an input with all its events."""

    def __init__(
        self, query_file: QueryFile = QUESTIONS, goes: Goes = lambda entry: True, **policy: Any
    ) -> None:
        self.query_file, self.goes = query_file, goes
        self.service = WatchedPartitions(2)
        self.service.create(budget=1000.0, user_ids="integer", **policy)
        self.topics = MemoryTopics()
        self.events: list[bytes] = [event(user, time) for user, time in EVENTS]

    def answering(
        self, places: Places | None = None, source: str = "x", continues: Sequence[str] = ()
    ) -> Answering:
        """A new life, which takes over the run."""
        places, query_file = places or Places(), self.query_file

        def opened(released: int) -> Any:
            places.write()
            run = self.service.open(query_file.run, released=released)
            places.write()
            return run

        journal = WatchedJournal(places, self.topics, query_file, self.goes)
        return Answering(query_file, source, opened, journal, continues=continues)

    def live(self, places: Places | None = None, to: int | None = None) -> None:
        """Live once, to an event or the end of the input, or until killed."""
        places = places or Places()
        with self.service.watched_by(places):
            answering = self.answering(places)
            read(answering, self.events, to)

    @property
    def entries(self) -> list[JournalEntry]:
        """The entries that are left."""
        return [entry for entry in self.topics.entries if entry]

    @property
    def answers(self) -> dict[int, set[bytes]]:
        """The published answers by step."""
        return by_step(value for _, value in self.topics.answers)

    @property
    def contents(self) -> dict[tuple[str, int, int], set[bytes]]:
        """The contents with which each step was charged, by run, partition and step."""
        found: dict[tuple[str, int, int], set[bytes]] = defaultdict(set)
        for partition, log in enumerate(self.service.logs):
            for value in log:
                request = decode_request(value)
                if isinstance(request, Charge):
                    found[request.run, partition, request.step].add(charge_digest(request))
        return dict(found)


def by_step(records: Iterable[bytes]) -> dict[int, set[bytes]]:
    """Return published records by their steps."""
    found: dict[int, set[bytes]] = defaultdict(set)
    for value in records:
        found[msgspec.json.decode(value)["step"]].add(value)
    return dict(found)


def assert_same(world: World, calm: World) -> None:
    """Check that charges and answers are those of a world without any kill."""
    assert world.answers.keys() == calm.answers.keys()
    assert all(len(answers) == 1 for answers in world.answers.values())
    assert world.contents == calm.contents
    assert world.service.spent_units() == calm.service.spent_units()


def traces(world: World) -> tuple[list[Any], ...]:
    """Return everything that an answerer can change."""
    topics = world.topics
    return list(topics.entries), list(topics.answers), list(map(len, world.service.logs))


def survive(world: World, dooms: Sequence[int]) -> int:
    """Live until killed at each of these places in turn, then live to the end; count the kills."""
    killed = 0
    for doom in dooms:
        try:
            world.live(Doom(doom))
            break
        except Killed:
            killed += 1
    world.live()
    return killed


def take_turns(world: World, lives: int, turns: Sequence[int]) -> list[BaseException | None]:
    """Let several lives take turns, and return the error with which each ended, if any.

    Args:
        world: in which they live.
        lives: how many there are.
        turns: by turn, the number of places that the next life passes. Afterwards each life runs
            to its end.
    """
    started = [Turn(world.live) for _ in range(lives)]
    for number, places in enumerate(turns):
        for _ in range(places):
            started[number % lives].go_on()
    for life in started:
        while not life.is_over:
            life.go_on()
    return [life.error for life in started]


def _is_charge(requests: Mapping[int, bytes]) -> bool:
    return all(isinstance(decode_request(request), Charge) for request in requests.values())
