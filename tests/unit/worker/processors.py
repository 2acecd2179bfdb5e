"""A processor without Kafka and Redis: what it takes, writes and publishes is kept in lists."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from streams.ledger.ledger import Channel, Ledger
from streams.store.holding import Backlog
from streams.store.layout import LAYOUT, Meta
from streams.store.port import Verdict
from streams.store.snapshot import Snapshot
from streams.wire.chain import Chain
from streams.worker.memory_broker import Effect, MemoryBroker, MemoryClient
from streams.worker.ports import Missing, World
from streams.worker.processor import Processor
from streams.worker.stops import Stops


@dataclass
class Record:
    """A record of the log."""

    offset: int
    value: bytes | None = b"nonsense"
    applied: bool = False

    def done(self) -> None:
        self.applied = True


@dataclass
class Commit:
    """One atomic write."""

    first: int
    next: int
    chain: Chain
    changes: bytes
    parcels: Mapping[str, bytes]
    published: list[str]


@dataclass
class Books:
    """Stands for what is held in Redis."""

    partition: int = 0
    owner: str = "me"
    version: int = 1
    backlog: Backlog = field(default_factory=lambda: Backlog(0, 0))
    commits: list[Commit] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    pages: list[Mapping[str, bytes | None]] = field(default_factory=list)
    dropped: list[tuple[Backlog, int]] = field(default_factory=list)
    stop: tuple[str, str, str] | None = None
    may_commit: asyncio.Event | None = None
    ends: Ends | None = None

    def _refuse_if_ended(self) -> None:
        if self.ends:
            self.ends.refuse()

    async def is_held(self) -> bool:
        return True

    async def commit(self, *arguments: Any) -> Verdict:
        self._refuse_if_ended()
        if self.may_commit:
            await self.may_commit.wait()
        *rest, published = arguments
        self.commits.append(Commit(*rest, list(published)))
        self.version += 1
        return Verdict.OK

    async def forget(self, published: Sequence[str]) -> Verdict:
        self._refuse_if_ended()
        self.forgotten += published
        return Verdict.OK

    async def compact(self, offset: int, pages: Mapping[str, bytes | None]) -> Verdict:
        self._refuse_if_ended()
        self.pages.append(pages)
        return Verdict.OK

    async def drop(self, covered: Backlog, since: int) -> Verdict:
        self._refuse_if_ended()
        self.dropped.append((covered, since))
        return Verdict.OK

    async def keep_stop(self, reason: str, problem: str, remedy: str) -> None:
        self.stop = reason, problem, remedy


class Ended(BaseException):
    """The worker has ended; no ``except Exception`` stops it."""


@dataclass
class Ends:
    """Stands for the end of the process: from then on every effect is refused."""

    why: str = ""

    def __call__(self, why: str, error: BaseException | None = None) -> NoReturn:
        self.why = self.why or why
        raise Ended(why)

    def refuse(self) -> None:
        if self.why:
            raise Ended(self.why)


@dataclass
class Gate:
    """What is done to the broker passes here, and waits here for as long as a test wants."""

    ends: Ends
    passed: list[Effect] = field(default_factory=list)
    waiting: dict[Effect, list[asyncio.Future[None]]] = field(default_factory=dict)

    def hold(self, *effects: Effect) -> None:
        self.waiting |= {effect: [] for effect in effects}

    async def __call__(self, effect: Effect) -> None:
        if effect in self.waiting:
            future = asyncio.get_running_loop().create_future()
            self.waiting[effect].append(future)
            await future
        self.ends.refuse()
        self.passed.append(effect)


@dataclass
class Bench:
    """A processor, and all that surrounds it."""

    processor: Processor
    books: Books
    broker: MemoryBroker
    gate: Gate
    ends: Ends

    async def arrive(self, *records: Record) -> None:
        for record in records:
            await self.processor.intake.arrive(record)

    async def until(self, condition: Any) -> None:
        """Let the processor work until something is so."""
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0)

    def answers(self) -> list[bytes | None]:
        """What was published of those that go out at once."""
        return [
            *self.broker.outputs(Channel.HALTS, 0).values,
            *self.broker.outputs(Channel.REJECTS, 0).values,
        ]

    def checkpoints(self) -> list[bytes | None]:
        return self.broker.outputs(Channel.ODOMETER, 0).values


def snapshot(next_offset: int = 0, outbox: Sequence[tuple[str, bytes]] = ()) -> Snapshot:
    """An empty state that has been applied up to an offset."""
    meta = Meta(
        layout=LAYOUT,
        topic="00" * 16,
        partitions=1,
        owner="me",
        version=1,
        next=next_offset,
        chain=Ledger(0, 1).chain,
        since=next_offset,
        changes=0,
        pages=0,
        digest=0,
        outbox=len(outbox),
    )
    return Snapshot(meta, {}, [], 0, list(outbox), {})


def log_with(missing: Missing, offsets: int = 10) -> MemoryBroker:
    """A broker whose log has the same at each offset."""
    broker = MemoryBroker(1)
    log = broker.norms(0)
    for _ in range(offsets):
        log.append(b"a record") if missing is Missing.RECORDS else log.mark()
    if missing is Missing.HOLE:
        log.remove(0, offsets)
    return broker


def bench(
    ledger: Ledger | None = None,
    kept: Snapshot | None = None,
    missing: Missing = Missing.HOLE,
    books: Books | None = None,
) -> Bench:
    """A processor that was not started."""
    books = books or Books()
    ends = books.ends = Ends()
    gate = Gate(ends)
    client = MemoryClient(log_with(missing), gate)
    world = World(
        owner=books.owner,
        prefix="t.",
        store=None,  # type: ignore[arg-type]  # it is reached through the books
        topics=client,
        read_log=client.read_log,
        publisher=client,
        checkpoints_of=client.checkpoints_of,
        end=ends,
    )
    processor = Processor(
        world,
        ledger or Ledger(0, 1),
        kept or snapshot(),
        books,  # type: ignore[arg-type]
        Stops("t.", 0, 0),
    )
    return Bench(processor, books, client.broker, gate, ends)
