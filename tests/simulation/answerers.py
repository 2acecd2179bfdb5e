"""Answerers of one stream, each with its own runs, which take over from one another.

Entries and answers are in two reliable topics in memory. An answerer can die before and after any
effect, also while it charges a window. Its operator starts it again under the same run name,
sometimes with another file, which is rejected once the run has begun a step. If another run has
answered its windows, the operator uses a new name.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from streams.answerer.journal import JournalEntry, Superseded
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.answerer.query_file import QueryFile
from streams.answerer.query_keys import UnusableQueries
from streams.answerer.window_answering import AlreadyAnswered, Answering
from streams.sdk.client import Turnstile
from streams.sdk.errors import (
    BudgetHeld,
    DecisionTimeout,
    Fenced,
    PartitionsDisagree,
    RequestRejected,
)
from streams.sdk.run import Run
from tests.simulation.clients import Plan
from tests.simulation.clock import Fibre
from tests.simulation.connection import Died, SimulatedConnection
from tests.simulation.received import Content, ReceivedDecisions
from tests.simulation.world import World, Wrong
from tests.unit.answerer.asking import COUNT, FILE, asked_of, at, event

if TYPE_CHECKING:
    from tests.simulation.clients_signed import Signing

USERS = [0, 1, 2, 5]
_EVENTS = [(user, time) for time in range(0, 44, 2) for user in (time % 3, 5)]
_EACH = 2
"""The number of a user's events that count in a window."""
_PATIENCE = 3
"""The number of refusals after which an operator leaves the windows to another run."""


class Stream:
    """The input that all answerers of a dataset share, and their output."""

    def __init__(self) -> None:
        self.pages = MemoryTopics()
        self.events = [event(user, time) for user, time in _EVENTS]
        self.history: list[JournalEntry] = []  # all entries, including deleted ones
        self.charging_again: set[str] = set()  # runs that may answer windows again

    def check(self) -> None:
        """Check that each step has one answer, and that only one run answers a window.

        Raises:
            Wrong: a step has two answers, a run answered a window in two steps or followed two
            files, or a run answered a window although it had read another run's answer to it.
        """
        files: dict[str, set[str]] = defaultdict(set)
        for entry in self.history:
            if entry.kind != "begin":
                files[entry.run].add(entry.query_file)
        for run, followed in files.items():
            if len(followed) > 1:
                raise Wrong(f"run {run} followed two files")
        published: dict[tuple[str, int], set[bytes]] = defaultdict(set)
        steps: dict[tuple[str, str, str], int] = {}
        for _, value in self.pages.answers:
            answer = msgspec.json.decode(value)
            published[answer["run"], answer["step"]].add(value)
            window = answer["run"], answer["query"], answer["start"]
            if steps.setdefault(window, answer["step"]) != answer["step"]:
                raise Wrong(f"two steps answer {window}")
        for step, values in published.items():
            if len(values) > 1:
                raise Wrong(f"two answers of step {step} were published")
        answered: dict[tuple[str, str, str], list[tuple[str, int]]] = defaultdict(list)
        looked: dict[str, int] = {}  # owner -> the number of entries that it has read
        for place, entry in enumerate(self.history):
            if entry.kind != "answered":
                looked[entry.owner] = place
                continue
            answer = msgspec.json.decode(entry.answer)
            window = answer["query"], answer["start"], answer["end"]
            for run, earlier in answered[window]:
                is_known = earlier < looked[entry.owner]
                if run != entry.run and is_known and entry.run not in self.charging_again:
                    raise Wrong(f"run {entry.run} answers {window}, which run {run} has answered")
            answered[window].append((entry.run, place))


class _Journal(MemoryJournal):
    """A slow journal, whose user may die before and after each write."""

    def __init__(self, stream: Stream, dataset: str, pause: Callable[[], None]) -> None:
        super().__init__(stream.pages, dataset)
        self._stream, self._pause = stream, pause
        self.last_answer = b""  # the last published answer

    def append(self, entry: JournalEntry) -> None:
        self._pause()
        super().append(entry)
        self._stream.history.append(entry)
        self._pause()

    def publish(self, answer: bytes, run: str) -> None:
        self._pause()
        super().publish(answer, run)
        self.last_answer = answer
        self._pause()

    def delete(self, entries: Sequence[JournalEntry]) -> None:
        self._pause()
        super().delete(entries)


class Answerer:
    """Answers the queries of a file; other answerers answer the same windows.

    Args:
        world: the simulated world.
        received: the decisions that clients received.
        plan: the plan of the dataset.
        stream: the stream of events.
        name: the name of the answerer, with which the names of its runs begin.
        chance: its random generator.
        delay: seconds until its first start.
        takes_over: whether it takes over the budget at its first start.
    """

    def __init__(
        self,
        world: World,
        received: ReceivedDecisions,
        plan: Plan,
        stream: Stream,
        name: str,
        chance: Random,
        *,
        delay: float,
        takes_over: bool,
    ) -> None:
        self.world, self.received, self.plan, self.stream, self.name = (
            world,
            received,
            plan,
            stream,
            name,
        )
        self.signing: Signing | None = None
        self.is_over = False
        self._chance, self._delay, self._take_over = chance, delay, takes_over
        self._noise = np.random.default_rng(chance.randrange(2**32))
        self._charges_again = chance.random() < 0.3
        self._files = copy(chance)  # so that the draws of ``chance`` stay as they were
        self._opened: Run  # the attempt that answers now
        self._journal: _Journal
        self._begin = 0  # the start of its first windows, in ms
        self._runs = self._lives = self._refused = 0

    def work(self, fibre: Fibre) -> None:
        """Answer all windows, or leave them to another run."""
        delay, self._delay = self._delay, 0.0
        fibre.wait(asyncio.sleep(delay))
        while not self.is_over:
            self._lives += 1
            connection = SimulatedConnection(self.world, fibre, f"{self.name}.{self._lives}")
            who = self.signing.credentials(self.name) if self.signing else {}
            try:
                with Turnstile(connection=connection, **who) as turnstile:
                    self._use_client(turnstile, connection, fibre)
            except (Died, DecisionTimeout, Fenced, Superseded) as error:
                self._note(f"begins again after {error!r:.120}")
            except AlreadyAnswered as error:
                self._continue_after(error)
            except UnusableQueries as error:
                if error.key != "run":
                    raise
                self._note("has another file than the run was begun with")
            except BudgetHeld as error:
                self._refuse(error)
            except PartitionsDisagree as error:
                self._note(f"{error!r:.120}")
            except RequestRejected as error:
                if error.reason != "not-allowed" or self.signing is None:
                    raise
                self.signing.refused()
                self._note("has a key that is not on the list")
            fibre.wait(asyncio.sleep(self._chance.uniform(0.0, 1.0)))

    @property
    def _run(self) -> str:
        return f"{self.name}-{self._runs}"

    def _use_client(
        self, turnstile: Turnstile, connection: SimulatedConnection, fibre: Fibre
    ) -> None:
        def pause() -> None:
            connection.may_die()
            fibre.wait(asyncio.sleep(self.world.delay()))

        turnstile.create_dataset(self.plan.dataset, **self.plan.policies[0])
        query_file = self._query_file()
        if self._charges_again:
            self.stream.charging_again.add(self._run)

        def opened(released: int) -> Run:
            self._opened = turnstile.run(
                self.plan.dataset, self._run, released=released, take_over=self._take_over
            )
            return self._opened

        self._journal = _Journal(self.stream, self.plan.dataset, pause)
        answering = Answering(
            query_file,
            "events",
            opened,
            self._journal,
            charge_again=self._charges_again,
            noise=self._noise,
        )
        self._take_over = False
        self._note(f"answers as {self._run} from step {answering.state.calendar.step} on")
        self._read(answering, pause)
        self.is_over = True

    def _read(self, answering: Answering, pause: Callable[[], None]) -> None:
        state, again = answering.state, answering.replay_until.get(0, 0)
        for offset, value in enumerate(self.stream.events[:again]):
            state.take(at(offset), value, None)
        answering.finish_closing()
        self._receive(answering)
        for offset, value in enumerate(self.stream.events):
            state.take(at(offset), value, None)
            if answering.close_due(state.clock(1, {})):
                self._receive(answering)
                pause()

    def _receive(self, answering: Answering) -> None:
        """Add the decision about the last closed window."""
        charged = answering.last_charge
        if charged is None:
            return
        users = [int(user) for user in charged.users]
        answer = msgspec.json.decode(self._journal.last_answer)
        begin, end = (datetime.fromisoformat(answer[key]) for key in ("start", "end"))
        norms = []
        for user, granted in zip(users, charged.decision.granted.tolist(), strict=True):
            count = sum(user == one and begin <= _moment(time) < end for one, time in _EVENTS)
            norm = float(min(count, _EACH))
            if granted and not norm <= granted <= norm * (1 + 1e-9):  # norms are rounded up
                raise Wrong(f"{self.name}: {user} is charged {granted} for {count} events")
            norms.append(granted or norm)
        content = Content(users, norms, 1.0)
        run = self._opened
        policies = [run.policy, *run.outer]
        self.received.add(self.name, policies, run.name, answer["step"], content, charged.decision)

    def _query_file(self) -> QueryFile:
        begin = _moment(self._begin).isoformat()
        file = FILE.replace('"d"', f'"{self.plan.dataset}"').replace('"r"', f'"{self._run}"')
        # The operator sometimes edits the file between two lives.
        confidence = self._files.choice((0.9, 0.95))
        return asked_of(f"confidence = {confidence}\n" + file.replace("1970-01-01", begin) + COUNT)

    def _continue_after(self, error: AlreadyAnswered) -> None:
        """Leave the windows to the run that has answered them, or continue after the last of
        them.
        """
        self._note(f"finds windows answered by {error.run} until {error.until}")
        self._refused += 1
        if self._refused > _PATIENCE:
            self.is_over = True
            return
        until = datetime.fromisoformat(error.until)
        self._begin = round(1000 * until.timestamp())
        self._runs += 1

    def _refuse(self, error: BudgetHeld) -> None:
        """Leave the budget to the run that holds it, wait for it, or take it over."""
        if not self.plan.is_exclusive:
            raise Wrong(f"{self.name}: runs may charge {self.plan.dataset} side by side") from error
        self._note(f"finds that {error.holder} holds the budget")
        self._refused += 1
        self._take_over = self._chance.random() < 0.3
        self.is_over = self._refused > _PATIENCE

    def _note(self, what: str) -> None:
        self.world.note(self.name, what)


def _moment(time: int) -> datetime:
    """Return a time in ms since 1970 as a datetime."""
    return datetime.fromtimestamp(time / 1000, UTC)


def answerers_of(
    world: World, received: ReceivedDecisions, seed: int
) -> tuple[Stream, list[Answerer]]:
    """Return the answerers of a seed: none, or two, of which the second one starts later."""
    chance, stream = Random(f"answerers of {seed}"), Stream()
    if chance.random() < 0.6:
        return stream, []
    policy: dict[str, Any] = {
        "measure": "zcdp",
        "budget": chance.choice((1.0, 4.0, 100.0)),
        "user_ids": "integer",
    }
    if chance.random() < 0.3:
        policy["assume_independent_timing"] = True
    plan = Plan("answered", list(USERS), [policy])
    answerers = [
        Answerer(
            world,
            received,
            plan,
            stream,
            name,
            Random(f"answerer {name} of {seed}"),
            delay=number * chance.choice((0.0, 0.5, 2.0, 8.0)),
            takes_over=number > 0 and chance.random() < 0.8,
        )
        for number, name in enumerate(("a", "b"))
    ]
    return stream, answerers
