"""Answerers that are killed at any of the places where they touch the world."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from streams.answerer.answering import Answering
from streams.answerer.journal import MemoryJournal, Pages
from streams.answerer.marks import Mark
from streams.answerer.questions import Questions
from streams.schemas import Charge, decode_request
from streams.wire.packing import charge_digest
from tests.unit.answerer.asking import COUNT, FILE, asked_of, at, event
from tests.unit.sdk.partitions import Partitions

QUESTIONS = asked_of(
    FILE
    + COUNT
    + COUNT.replace('"10ms"', '"8ms"\nevery = "4ms"').replace('"count"\nkind', '"slid"\nkind')
)
EVENTS = [(user, time) for time in range(0, 24, 2) for user in (time % 3, 5)]


class Killed(BaseException):
    """The process is no more."""


class Doom:
    """Counts the places where an answerer touches the world, and kills it at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.count = at, 0

    def touch(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


Goes = Callable[[Mark], bool]
"""Whether a mark that is forgotten is cleaned away, or still there."""


class DoomedJournal(MemoryJournal):
    """Before and after everything that it does it may be the end."""

    def __init__(self, doom: Doom, pages: Pages, questions: Questions, goes: Goes) -> None:
        super().__init__(pages, questions.dataset, questions.run)
        self._doom, self._goes = doom, goes

    def append(self, mark: Mark) -> None:
        self._doom.touch()
        super().append(mark)
        self._doom.touch()

    def publish(self, answer: bytes) -> None:
        self._doom.touch()
        super().publish(answer)
        self._doom.touch()

    def forget(self, marks: Sequence[Mark]) -> None:
        for mark in marks:
            self._doom.touch()
            if self._goes(mark):
                super().forget([mark])
        self._doom.touch()


class World:
    """A service, the two topics, and an input that is there already."""

    def __init__(self, questions: Questions = QUESTIONS, goes: Goes = lambda mark: True) -> None:
        self.questions, self.goes = questions, goes
        self.service = Partitions(2)
        self.service.create(budget=1000.0, user_ids="integer")
        self.pages = Pages()
        self.events: list[bytes] = [event(user, time) for user, time in EVENTS]

    def answering(self, doom: Doom | None = None) -> Answering:
        doom = doom or Doom()

        def opened(released: int | None) -> Any:
            doom.touch()
            run = self.service.open(released=released)
            doom.touch()
            return run

        journal = DoomedJournal(doom, self.pages, self.questions, self.goes)
        return Answering(self.questions, "x", opened, journal)

    def live(self, doom: Doom | None = None) -> None:
        """One life, to the end of the input or until killed."""
        doom = doom or Doom()
        publish = self.service._publish

        def publish_or_die(waiting: Any) -> None:
            doom.touch()
            for partition in sorted(waiting.requests):  # a part of the step may be all that went
                publish(type(waiting)({partition: waiting.requests[partition]}))
                doom.touch()

        self.service._publish = lambda waiting: (
            publish_or_die(waiting) if _is_charge(waiting) else publish(waiting)
        )
        try:
            answering = self.answering(doom)
            answering.start()
            read(answering, self.events)
        finally:
            self.service._publish = publish

    @property
    def marks(self) -> list[Mark]:
        """Those that are there."""
        return [mark for mark in self.pages.marks if mark]

    @property
    def answers(self) -> dict[int, set[bytes]]:
        """What was published of each step."""
        found: dict[int, set[bytes]] = defaultdict(set)
        for _, value in self.pages.answers:
            found[msgspec.json.decode(value)["step"]].add(value)
        return dict(found)

    @property
    def contents(self) -> dict[tuple[int, int], set[bytes]]:
        """With what content each step was charged, by partition."""
        found: dict[tuple[int, int], set[bytes]] = defaultdict(set)
        for partition, log in enumerate(self.service.logs):
            for value in log:
                request = decode_request(value)
                if isinstance(request, Charge):
                    found[partition, request.step].add(charge_digest(request))
        return dict(found)


def read(answering: Answering, events: Sequence[bytes], to: int | None = None) -> None:
    """Have the input read from where it is needed, and close what is due."""
    desk, again = answering.desk, answering.again.get(0, 0)
    for offset, value in enumerate(events[:to]):
        if offset == again:
            answering.go_on()
        desk.take(at(offset), value, None)
        if offset >= again:
            answering.close_due(desk.clock(1, {}))
    if again >= len(events[:to]):
        answering.go_on()
        answering.close_due(desk.clock(1, {}))


def survive(world: World, dooms: Sequence[int]) -> int:
    """Live until killed at each of these places in turn, and then to the end; how many came."""
    killed = 0
    for doom in dooms:
        try:
            world.live(Doom(doom))
            break
        except Killed:
            killed += 1
    world.live()
    return killed


def _is_charge(waiting: Any) -> bool:
    return all(isinstance(decode_request(r), Charge) for r in waiting.requests.values())
