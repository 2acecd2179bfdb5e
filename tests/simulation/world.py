"""The world of a simulation: everything that its processes share.

The world contains virtual time, the random generator, Redis, Kafka, and the trace of all events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, ContextVar
from random import Random
from typing import TYPE_CHECKING, Any

from streams.ledger.ledger import Channel
from streams.store.layout import Damaged
from streams.store.snapshot import MANIFEST, UnusableSnapshot
from streams.store.store_port import Acquired, Guard, Verdict
from streams.store.stored_state import verified
from tests.doubles.memory_broker import MemoryBroker, last_snapshot
from tests.doubles.memory_store import Contents, MemoryStore
from tests.simulation.clock import VirtualLoop, tracked_tasks
from tests.simulation.settings import Settings

if TYPE_CHECKING:
    from tests.simulation.process import Process

CURRENT: ContextVar[Process] = ContextVar("CURRENT")
"""The process whose code runs; unset for code outside all processes."""


class Wrong(AssertionError):
    """Raised if a guarantee is broken."""


class SharedStore(MemoryStore):
    """Redis, with a copy of its state after each write."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.connection = 0  # raised when all connections are dropped
        self.history: list[Mapping[int, Contents]] = [{}]

    async def acquire(self, partition: int, *how: Any, **discarding: Any) -> Acquired:
        acquired = await super().acquire(partition, *how, **discarding)
        self._remember(partition, acquired)
        return acquired

    async def write(self, guard: Guard, fields: Mapping[str, str], **entries: Any) -> Verdict:
        return self._remember(guard.partition, await super().write(guard, fields, **entries))

    def replace_contents(self, copies: Mapping[int, Contents]) -> None:
        """Replace the state of these partitions, and leave the others."""
        self.restore({**self.copy(), **copies})
        self.history.append({**self.history[-1], **copies})

    def newest_intact(self, partition: int, since: int = 0) -> Contents:
        """Return the intact copy with the highest offset, of those after this many writes."""
        copies = {id(c): c for copy in self.history[since:] if (c := copy.get(partition))}
        came = [copy for copy in copies.values() if copy.meta.get("next", "").isdecimal()]
        by_reach = sorted(came, key=lambda copy: int(copy.meta["next"]), reverse=True)
        return next(filter(_is_intact, by_reach), Contents())

    def is_ahead(self, partition: int, copy: Contents) -> bool:
        """Return whether a copy has a higher offset than the present state."""
        return int(copy.meta.get("next", "0")) > self.next_of(partition)

    def next_of(self, partition: int) -> int:
        return int(self.contents(partition).meta.get("next", "0"))

    def _remember(self, partition: int, verdict: Any) -> Any:
        self.history.append({**self.history[-1], partition: self.contents(partition).copy()})
        return verdict


def _is_intact(copy: Contents) -> bool:
    try:
        verified(copy.meta, copy.pages, copy.changes, copy.outbox)
    except Damaged:
        return False
    return True


class Records:
    """All records that were ever written to the topics, for the auditor."""

    def __init__(self) -> None:
        self.records: dict[str, list[tuple[int, int, bytes | None]]] = {
            topic: [] for topic in ("norms", "halts", "rejects", "odometer")
        }


class World:
    """The simulated world of one seed.

    Args:
        seed: the seed of all random choices.
    """

    def __init__(self, seed: int) -> None:
        self.trace: list[tuple[float, str, str]] = []
        self.failures: list[BaseException] = []
        self.rng = Random(seed)
        self.settings = Settings.draw(self.rng)
        self.loop = VirtualLoop()
        self.loop.set_task_factory(tracked_tasks(_tasks_of_current))
        self.loop.set_exception_handler(self._unexpected)
        self.broker = MemoryBroker(self.settings.partitions)
        self.store = SharedStore(self.loop.time)
        self.log = Records()
        self._fetching: list[asyncio.Future[None]] = []
        self.listeners: list[
            Callable[[Channel, int], None]
        ] = []  # called for every published record
        self.catastrophe: str | None = None
        self.floor = 0  # index in the history: Redis does not return to an older state
        self.rewound: set[int] = set()  # partitions whose Redis state was changed by a fault
        self.damaged: set[int] = set()  # partitions of which Redis lost a part, at any time
        self.exchanged: set[int] = set()  # partitions with an older page or another bit
        self.lost: set[int] = set()  # partitions whose log was replaced by the catastrophe
        self.snapshot_offsets: dict[
            tuple[int, str], int
        ] = {}  # where the last snapshot of a log continues
        self.snapshot_keys: dict[int, set[bytes]] = {}  # of the records of the last snapshot
        self.erasure_keys: list[str] = []  # the newest one first
        self.overlooked: dict[tuple[int, int], bool] = {}  # records that the stream skips once
        self._context = Context()
        self._tokens = 0

    def note(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append((self.loop.time(), who, what))

    def happens(self, rate: float) -> bool:
        return rate > 0 and self.rng.random() < rate

    def delay(self) -> float:
        """Return the duration of an effect: 0, about the latency, or rarely much longer."""
        drawn = self.rng.random()
        if drawn < 0.4:
            return 0.0
        mean = self.settings.latency * (100.0 if drawn > 0.99 else 1.0)
        return min(self.rng.expovariate(1.0) * mean, 5.0)

    def positions(self) -> list[tuple[int, list[int]]]:
        """Return the next offset of each partition, and the ends of its outputs."""
        return [
            (self.store.next_of(p), [self.broker.outputs(channel, p).end for channel in Channel])
            for p in range(self.broker.partitions)
        ]

    def is_bound(self) -> bool:
        """Return whether Redis knows the log of every partition."""
        return all(self.store.contents(p).meta for p in range(self.broker.partitions))

    def is_covered(self, partition: int) -> bool:
        """Return whether the state of a partition can be rebuilt without Redis."""
        snapshot, log = last_snapshot(self.broker, partition), self.broker.norms(partition)
        return log.start == 0 or (snapshot is not None and log.start <= snapshot.manifest.meta.next)

    def check_snapshot(self, partition: int) -> None:
        """Check that the last snapshot is complete, and that the offsets of a log's snapshots
        rise.
        """
        try:
            snapshot = last_snapshot(self.broker, partition)
        except UnusableSnapshot as unusable:
            self.failures.append(Wrong(f"the last snapshot of {partition}: {unusable}"))
            return
        if snapshot is not None:
            place, reached = (partition, snapshot.manifest.meta.topic), snapshot.manifest.meta.next
            if reached < self.snapshot_offsets.get(place, 0):
                self.failures.append(Wrong(f"the last snapshot of {partition} is at {reached}"))
            self.snapshot_offsets[place] = reached
            blocks = (*snapshot.listing.blocks.values(), snapshot.manifest.listing)
            slots = (b"%d" % slot for block in blocks for slot in block.places)
            self.snapshot_keys[partition] = {MANIFEST, *slots}

    def token(self, of: str) -> str:
        self._tokens += 1
        return f"{of}-{self._tokens}"

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task outside all processes."""
        return self.loop.create_task(work, context=self._context)

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.loop.call_later(seconds, call, *arguments, context=self._context)

    def append(self, partition: int, value: bytes | None) -> None:
        """Write to the log."""
        if partition < self.broker.partitions:
            offset = self.broker.norms(partition).append(value)
            self.log.records["norms"].append((partition, offset, value))
            self.note("log", f"{partition}/{offset} {_short(value)}")
            self.tell()

    async def news(self) -> None:
        """Wait until the log may have changed."""
        waiting = self.loop.create_future()
        self._fetching.append(waiting)
        await waiting

    def tell(self) -> None:
        """Wake up all readers that wait for records."""
        waiting, self._fetching = self._fetching, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def publish(self, channel: Channel, partition: int, key: bytes | None, value: bytes) -> None:
        """Write a worker's output, and notify all listeners."""
        self.broker.outputs(channel, partition).append(value, key)
        self.published(channel, partition, value)

    def published(self, channel: Channel, partition: int, value: bytes) -> None:
        """Record the output that was written last."""
        offset = self.broker.outputs(channel, partition).end - 1
        self.log.records[channel.value].append((partition, offset, value))
        self.note("broker", f"{channel.value} {partition}/{offset} {_short(value)}")
        for listener in self.listeners:
            listener(channel, partition)

    def _unexpected(self, _: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # An error of a task that nothing awaits is reported late: its process has ended.
        if isinstance(error, Exception) and "handle" in context:
            self.failures.append(error)


def _tasks_of_current() -> dict[asyncio.Task[Any], None] | None:
    process = CURRENT.get(None)
    return None if process is None else process.tasks


def _short(value: bytes | None) -> str:
    return "tombstone" if value is None else f"{len(value)} bytes {value[-12:].hex()}"
