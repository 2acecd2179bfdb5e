"""A processor in a world of memory, in which every effect can be held up and is remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from streams.kafka.results import Missing
from streams.ledger.ledger import Channel, Ledger
from streams.records.digests import NO_TOPIC
from streams.store.layout import fields_of_nothing, with_digest
from streams.store.misfit import Suspensions
from streams.store.store_port import Guard, Verdict
from streams.store.stored_state import StoredState, verified
from streams.store.writer import PartitionWriter
from streams.worker.ports import Ending, StreamRecord, World
from streams.worker.processor import Processor
from tests.doubles.memory_broker import MemoryBroker, MemoryClient
from tests.doubles.memory_store import MemoryStore
from tests.simulation.clock import VirtualLoop


@dataclass
class Record:
    """A record of the log."""

    offset: int
    value: bytes | None = b"nonsense"
    leader_epoch: int = 0
    timestamp: int = 0


class Ended(BaseException):
    """The worker has ended; no ``except Exception`` stops it."""

    def __init__(self, reason: Ending, why: str, error: BaseException | None = None) -> None:
        super().__init__(reason, why)
        self.reason, self.error = reason, error


@dataclass
class Ends:
    """Stands for the end of the process: from then on every effect is refused."""

    first: Ended | None = None

    def __call__(self, reason: Ending, why: str, error: BaseException | None = None) -> NoReturn:
        ended = Ended(reason, why, error)
        self.first = self.first or ended
        raise ended

    def refuse(self) -> None:
        if self.first:
            raise self.first


def run_in_virtual_time(scenario: Coroutine[Any, Any, Any]) -> Any:
    """Run a scenario in which sleeping takes no time; return its result."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(scenario)
    finally:
        loop.close()


@dataclass
class Gate:
    """What is done to the world passes here, and waits here for as long as a test wants."""

    ends: Ends
    passed: list[object] = field(default_factory=list)
    waiting: dict[object, list[asyncio.Future[None]]] = field(default_factory=dict)

    def hold(self, *effects: object) -> None:
        """Let these effects wait, each until its future in ``waiting`` is done."""
        self.waiting |= {effect: [] for effect in effects}

    async def __call__(self, effect: object) -> None:
        if effect in self.waiting:
            future = asyncio.get_running_loop().create_future()
            self.waiting[effect].append(future)
            await future
        self.ends.refuse()
        self.passed.append(effect)


@dataclass
class Written:
    """The arguments of a write."""

    fields: dict[str, str]
    first: int | None = None
    replaces: bool = False
    dropped: int = 0
    changes: Sequence[bytes] = ()
    pages: Mapping[str, bytes] = field(default_factory=dict)
    deleted: Sequence[str] = ()
    outbox: Mapping[str, bytes] = field(default_factory=dict)
    published: Sequence[str] = ()

    @property
    def next(self) -> int:
        """Return the offset after the batch."""
        return int(self.fields["next"])


class Store(MemoryStore):
    """A store that remembers what was written."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(clock=lambda: 0.0)
        self.commits: list[Written] = []
        self.merges: list[Written] = []
        self.forgotten: list[str] = []
        self._gate = gate

    @property
    def suspension(self) -> str | None:
        """Return the reason why the first partition is suspended, if it is."""
        return self.contents(0).suspended.get("reason")

    async def write(self, guard: Guard, fields: Mapping[str, str], **entries: Any) -> Verdict:
        written = Written(dict(fields), **entries)
        kind = "forget" if fields.keys() == {"meta_digest"} else "merge"
        kind = kind if written.first is None else "commit"
        await self._gate(f"store.{kind}")
        if kind == "commit":
            self.commits.append(written)
        elif kind == "merge":
            self.merges.append(written)
        else:
            self.forgotten += written.published
        verdict = await super().write(guard, fields, **entries)
        if kind == "commit":
            await self._gate("store.committed")
        return verdict


@dataclass
class Bench:
    """A processor, and all that surrounds it."""

    processor: Processor
    store: Store
    broker: MemoryBroker
    gate: Gate
    ends: Ends
    committed: list[int]  # the offsets that were reported

    async def arrive(self, *records: Record) -> None:
        for record in records:
            await self.processor.inbox.arrive(record)

    async def until(self, condition: Any) -> None:
        """Let the processor work until something is so."""
        async with asyncio.timeout(20):
            while not condition():
                self.ends.refuse()
                await asyncio.sleep(0.001)

    def answers(self) -> list[bytes | None]:
        """What was published of those that go out at once."""
        return [
            *self.broker.outputs(Channel.HALTS, 0).values,
            *self.broker.outputs(Channel.REJECTS, 0).values,
        ]

    def odometers(self) -> list[bytes | None]:
        return self.broker.outputs(Channel.ODOMETER, 0).values


def log_with(missing: Missing, offsets: int) -> MemoryBroker:
    """A broker whose log has the same at each offset."""
    broker = MemoryBroker(1)
    log = broker.norms(0)
    for _ in range(offsets):
        log.append(b"a record") if missing is Missing.RECORDS else log.mark()
    if missing is Missing.HOLE:
        log.remove(0, offsets)
    return broker


def owned(store: Store, next_offset: int, outbox: Sequence[tuple[str, bytes]]) -> StoredState:
    """An empty state that has been applied up to an offset, as its owner loads it."""
    kept = store.contents(0)
    kept.outbox = {name: with_digest(packed, name) for name, packed in outbox}
    kept.meta = {**fields_of_nothing(NO_TOPIC, 0, 1), "owner": "me", "version": "1"}
    kept.seal(next=str(next_offset), since=str(next_offset))
    return verified(kept.meta, kept.pages, kept.changes, kept.outbox)


def world_of(owner: str, store: Store, client: MemoryClient, ends: Ends) -> World:
    return World(
        owner=owner,
        prefix="t.",
        store=store,
        look=client.look,
        read_log=client.read_log,
        publisher=client,
        odometer_producer_of=client.odometer_producer_of,
        snapshots_of=client.snapshots_of,
        snapshot_every=0.0,
        end=ends,
    )


def bench(
    ledger: Ledger | None = None,
    next_offset: int = 0,
    outbox: Sequence[tuple[str, bytes]] = (),
    missing: Missing = Missing.HOLE,
    offsets: int = 10,
) -> Bench:
    """A processor that was not started, of a partition that has got as far as ``next_offset``."""
    ends = Ends()
    gate = Gate(ends)
    store = Store(gate)
    broker = log_with(missing, offsets)
    committed: list[int] = []

    def tell(_: int, records: Sequence[StreamRecord], *__: object) -> None:
        committed.extend(record.offset for record in records)

    world = replace(world_of("me", store, MemoryClient(broker, gate), ends), committed=tell)
    stored = owned(store, next_offset, outbox)
    writer = PartitionWriter(store, 0, world.owner, stored)
    processor = Processor(
        world, ledger or Ledger(0, 1), stored, writer, Suspensions("t.", 0, bytes(16), 1, 0, 0)
    )
    return Bench(processor, store, broker, gate, ends, committed)
