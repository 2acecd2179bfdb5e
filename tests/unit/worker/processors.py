"""A processor without Kafka and Redis: what it takes, writes and publishes is kept in lists."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streams.ledger.ledger import Channel, Ledger, Output
from streams.store.holding import Backlog
from streams.store.layout import LAYOUT, Meta
from streams.store.port import Verdict
from streams.store.snapshot import Snapshot
from streams.wire.chain import Chain
from streams.worker.log_reader import Missing
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

    async def commit(self, *arguments: Any) -> Verdict:
        if self.may_commit:
            await self.may_commit.wait()
        *rest, published = arguments
        self.commits.append(Commit(*rest, list(published)))
        self.version += 1
        return Verdict.OK

    async def forget(self, published: Sequence[str]) -> Verdict:
        self.forgotten += published
        return Verdict.OK

    async def compact(self, offset: int, pages: Mapping[str, bytes | None]) -> Verdict:
        self.pages.append(pages)
        return Verdict.OK

    async def drop(self, covered: Backlog, since: int) -> Verdict:
        self.dropped.append((covered, since))
        return Verdict.OK

    async def keep_stop(self, reason: str, problem: str, remedy: str) -> None:
        self.stop = reason, problem, remedy


@dataclass
class Broker:
    """Stands for both producers; confirms what it is told to confirm."""

    answers: list[Output] = field(default_factory=list)
    checkpoints: list[Output] = field(default_factory=list)
    confirmations: dict[str, list[asyncio.Future[None]]] = field(
        default_factory=lambda: {"answers": [], "checkpoints": []}
    )
    confirms: bool = True
    error: Exception | None = None

    async def publish(self, partition: int, outputs: Sequence[Output]) -> list[Any]:
        assert all(output.channel is not Channel.ODOMETER for output in outputs)
        self.answers += outputs
        return [self._confirmation("answers")]

    def _confirmation(self, kind: str) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        self.confirmations[kind].append(future)
        if self.confirms:
            future.set_result(None)
        return future


@dataclass
class OdometerBroker:
    """The odometer's side of it."""

    broker: Broker
    stopped: bool = False

    async def publish(self, outputs: Sequence[Output]) -> Any:
        assert all(output.channel is Channel.ODOMETER for output in outputs)
        self.broker.checkpoints += outputs
        return self.broker._confirmation("checkpoints")

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.stopped = True


@dataclass
class Bench:
    """A processor, and all that surrounds it."""

    processor: Processor
    books: Books
    broker: Broker
    asked: list[tuple[int, int]]

    async def arrive(self, *records: Record) -> None:
        for record in records:
            await self.processor.intake.arrive(record)

    async def until(self, condition: Any) -> None:
        """Let the processor work until something is so."""
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0)


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


def bench(
    ledger: Ledger | None = None,
    kept: Snapshot | None = None,
    missing: Missing = Missing.HOLE,
    books: Books | None = None,
    broker: Broker | None = None,
) -> Bench:
    """A processor that was not started."""
    books, broker = books or Books(), broker or Broker()
    asked: list[tuple[int, int]] = []

    async def proof(first: int, end: int) -> Missing:
        asked.append((first, end))
        return missing

    processor = Processor(
        ledger or Ledger(0, 1),
        kept or snapshot(),
        books,  # type: ignore[arg-type]
        broker,
        OdometerBroker(broker),
        proof,
        Stops("t.", 0, 0),
    )
    return Bench(processor, books, broker, asked)
