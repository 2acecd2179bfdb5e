"""A worker process: the real worker, whose ports pass through a gate.

At the gate, before each effect, the process may die, pause or be slow. A dead process never has an
effect again. A paused process has its effect later, when the world has changed. Messages that a
process has sent may arrive after its death.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple, NoReturn

from streams.kafka.results import LogUnavailable, NotSent, Origin, TopicsUnavailable
from streams.ledger.ledger import Channel, Output
from streams.store.snapshot import MANIFEST
from streams.store.snapshot import Record as SnapshotRecord
from streams.store.store_port import (
    Guard,
    Store,
    StoreFailure,
    StoreUnavailable,
    SuspensionReason,
    Verdict,
)
from streams.worker import ports
from streams.worker.ownership import OwnedPartitions
from tests.doubles.memory_broker import (
    Effect,
    MemoryClient,
    MemoryFencedProducer,
    MemorySnapshotTopic,
)
from tests.simulation.faults import clean, flush, restore, trim
from tests.simulation.world import CURRENT, World, Wrong

logger = logging.getLogger("turnstile.worker")

SESSION = 3.0
"""Seconds after which the group drops a silent member."""
_STALE_AFTER = 10.0
"""Duration of a commit, in seconds, after which another worker may have published the answers."""
_LONGEST = 5.0
"""The longest pause, as a multiple of the mean: the simulation waits for all paused processes."""
_LOSSES = {
    SuspensionReason.OTHER_LOG,
    SuspensionReason.OTHER_PARTITIONS,
    SuspensionReason.LOG_ENDS_EARLY,
    SuspensionReason.LOG_REWRITTEN,
    SuspensionReason.HOLE,
}
_MORE = 20  # factor of the rates before the favourite effect
_UNAVAILABLE = {
    Effect.LOOK: TopicsUnavailable,
    Effect.OPEN: LogUnavailable,
    Effect.MEASURE: LogUnavailable,
    Effect.READ: LogUnavailable,
    Effect.PUBLISH: NotSent,
    Effect.BEGIN: NotSent,
    Effect.SEND: NotSent,
    Effect.COMMIT: NotSent,
    Effect.ACKNOWLEDGE: NotSent,
}


class Ended(BaseException):
    """Raised if the process ends; no ``except Exception`` catches it."""


class Process:
    """A worker process, from its start to its end."""

    def __init__(self, world: World, group: Any, name: str) -> None:
        self.world = world
        self.group = group
        self.name = name
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.ended = asyncio.Event()
        self.orders: asyncio.Queue[Any] = asyncio.Queue()  # from the consumer group
        self.owned: OwnedPartitions
        self._going = asyncio.Event()
        self._going.set()
        self.cut_off = False  # whether messages in flight are lost when it dies
        self._generation = 0  # of the fetches: raised when fetching starts again
        self._context = Context()
        self._context.run(CURRENT.set, self)
        self.last_commit: dict[
            int, float
        ] = {}  # duration of each partition's last commit, in seconds

    @property
    def is_dead(self) -> bool:
        return self.ended.is_set()

    @property
    def is_paused(self) -> bool:
        return not self._going.is_set()

    def start(self) -> None:
        self.world.loop.create_task(self._main(), context=self._context)

    def kill(self, why: str) -> None:
        """Kill the process at once; it has no effect from now on."""
        if self.is_dead:
            return
        self.world.note(self.name, f"dies: {why}")
        self.ended.set()
        self.cut_off = self.world.rng.random() < 0.5
        for task in list(self.tasks):
            task.cancel()
        self.group.leave(self, at_once=False)

    def pause(self, seconds: float) -> None:
        """Pause the process."""
        self.world.note(self.name, f"pauses for {seconds:.2f} s")
        self._going.clear()
        self.world.after(seconds, self.wake)
        self.world.after(SESSION, self.group.leave_if_paused, self)

    def wake(self) -> None:
        if not self._going.is_set():
            self.world.note(self.name, "continues")
            self._going.set()

    def end(self, reason: ports.Ending, why: str, error: BaseException | None = None) -> NoReturn:
        """The port ``End``."""
        self.kill(f"{reason}: {why}")
        raise Ended(reason, why)

    async def gate(self, effect: str) -> None:
        """Pass the gate before an effect."""
        world, settings = self.world, self.world.settings
        await self._held()
        more = _MORE if effect == settings.favourite else 1
        if world.happens(more * settings.crash):
            self.kill(f"before {effect}")
            await self._held()
        if world.happens(more * settings.pause):
            self.pause(min(world.rng.expovariate(1.0), _LONGEST) * settings.pause_seconds)
            await self._held()
        if delay := world.delay():
            await asyncio.sleep(delay)
            await self._held()
        world.note(self.name, effect)

    async def kafka_gate(self, effect: Effect) -> None:
        await self.gate("end the transaction" if effect is Effect.COMMIT else effect)
        if effect is Effect.READ and self.world.happens(self.world.settings.trimmed_reads):
            trim(self.world)
        if self.world.happens(self.world.settings.kafka_fails):
            raise _UNAVAILABLE[effect](f"no answer to {effect}")

    async def receive_answer(self) -> None:
        """Pass the gate after an effect."""
        if delay := self.world.delay():
            await asyncio.sleep(delay)
        await self._held()

    async def _held(self) -> None:
        while not self._going.is_set() or self.ended.is_set():
            if self.ended.is_set():
                await asyncio.Event().wait()
            await self._going.wait()

    async def _main(self) -> None:
        await self.gate("start")
        client = Client(self)
        store: Any = ProcessStore(self)
        self.owned = OwnedPartitions(
            ports.World(
                owner=self.name,
                prefix="turnstile.",
                store=store,
                look=client.look,
                read_log=client.read_log,
                publisher=client,
                odometer_producer_of=client.odometer_producer_of,
                snapshots_of=client.snapshots_of,
                snapshot_every=self.world.settings.snapshot_every,
                erasure_keys=self._erasure_keys(),
                end=self.end,
            )
        )
        for work, what in (
            (self.owned.keep_merged, "merging deltas"),
            (self.owned.keep_snapshots, "snapshots"),
            (lambda: self.owned.keep_alive(self._end_of), "the heartbeat"),
            (self.owned.keep_watch, "watching the topics"),
        ):
            self._start_task(work, what)
        self.group.join(self)
        await self._ending(self._follow_group, "the group")

    def _erasure_keys(self) -> str:
        """Return the erasure keys of the settings, which may lack the newest ones."""
        keys, world = self.world.erasure_keys, self.world
        newer = world.rng.randint(0, len(keys)) if world.happens(world.settings.old_keys) else 0
        return " ".join(keys[newer:])

    def _start_task(self, work: Callable[[], Awaitable[None]], what: str) -> None:
        task = asyncio.create_task(self._ending(work, what))
        self.tasks[task] = None

    async def _ending(self, work: Callable[[], Awaitable[None]], what: str) -> None:
        try:
            await work()
        except Exception as error:
            self.end(ports.Ending.FAILED, f"{what} failed: {error!r}", error)

    async def _follow_group(self) -> None:
        """Revoke, acquire and fetch partitions in a rebalance, as Faust does."""
        while True:
            order = await self.orders.get()
            await self.gate("receive an order of the group")
            if order is None:
                await self.owned.pause()
                await self.gate("join the group")
                self.group.join(self)
                continue
            if order[0] != self.group.generation:
                continue  # another rebalance has begun
            self._generation += 1
            positions = await self.owned.acquire(order[1])
            for partition, position in positions.items():
                fetch = partial(self._fetch, partition, position, self._generation)
                self._start_task(fetch, "the stream")

    async def _fetch(self, partition: int, position: int, generation: int) -> None:
        world = self.world
        while generation == self._generation:
            log = world.broker.norms(partition)
            if not log.start <= position <= log.end:
                self.end(
                    ports.Ending.FAILED,
                    f"offset {position} of partition {partition} is out of range",
                )
            if position == log.end or not self.owned.decides(partition):
                await world.news()
                await self._held()
                continue
            await self.gate(f"fetch {partition}/{position}")
            log = world.broker.norms(partition)
            end = min(log.end, position + world.rng.choice((1, 1, 2, 3, 8, 64)))
            fetched = [
                Record(offset, log.records[offset][1], log.leader_epochs[offset])
                for offset in range(position, end)
                if offset in log.records
            ]
            position = max(position, end)
            for record in fetched:
                overlooked = world.overlooked.pop((partition, record.offset), False)
                if overlooked or world.happens(world.settings.skip):
                    world.note(self.name, f"is not given {partition}/{record.offset}")
                elif generation == self._generation:
                    await self.owned.arrive(partition, record)

    def _end_of(self, partition: int) -> int:
        return self.world.broker.norms(partition).end


class Record(NamedTuple):
    """A fetched record of the log."""

    offset: int
    value: bytes | None
    leader_epoch: int
    timestamp: int = 0


class ProcessStore:
    """The port ``Store``: one process's connection to Redis, which is never reconnected."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._shared = process.world.store
        self._connection = self._shared.connection

    async def _do(self, verb: str, effect: str, *arguments: Any, **named: Any) -> Any:
        process, world = self._process, self._process.world
        await process.gate(effect)
        fails = world.happens(world.settings.store_fails)
        if self._connection != self._shared.connection or (fails and world.rng.random() < 0.5):
            raise StoreUnavailable(StoreFailure.NO_ANSWER, f"{effect}: the connection was lost")
        answer = await getattr(self._shared, verb)(*arguments, **named)
        if fails:
            raise StoreUnavailable(StoreFailure.NO_ANSWER, f"the answer to {effect} was lost")
        await (
            process.gate("receive the answer to the commit")
            if effect == "commit"
            else process.receive_answer()
        )
        if self._connection != self._shared.connection:
            raise StoreUnavailable(
                StoreFailure.NO_ANSWER, f"the connection was lost before the answer to {effect}"
            )
        return answer

    async def keep_suspension(self, partition: int, reason: Any, *about: Any) -> None:
        """Store why a partition is suspended.

        Its owner never suspends it for a loss of the log that did not happen. A former owner may
        lack records that were deleted since, and the next heartbeat of the owner corrects it. So
        may an owner whose state was rolled back, if records that a snapshot covers are deleted
        while it applies them again: the next acquisition restores the snapshot.
        """
        world, owner = self._process.world, self._shared.contents(partition).meta.get("owner")
        is_trimmed = world.broker.norms(partition).start > world.store.next_of(partition)
        is_loss = reason in _LOSSES and not (is_trimmed and reason is SuspensionReason.HOLE)
        if is_loss and world.catastrophe is None and owner == self._process.name:
            where = f"{self._process.name} suspends {partition}"
            world.failures.append(Wrong(f"{where} without a cause: {about}"))
        await self._do("keep_suspension", "keep_suspension", partition, reason, *about)

    async def write(self, guard: Guard, fields: Mapping[str, str], **entries: Any) -> Verdict:
        if entries.get("first") is None:
            kind = "forget" if fields.keys() == {"meta_digest"} else "merge"
            verdict: Verdict = await self._do("write", kind, guard, fields, **entries)
            return verdict
        began = self._process.world.loop.time()
        verdict = await self._do("write", "commit", guard, fields, **entries)
        self._process.last_commit[guard.partition] = self._process.world.loop.time() - began
        return verdict


def _verb(name: str) -> Any:
    async def verb(self: ProcessStore, *arguments: Any) -> Any:
        return await self._do(name, name, *arguments)

    return verb


for _name in vars(Store).keys() - vars(ProcessStore).keys():
    if not _name.startswith("_"):
        setattr(ProcessStore, _name, _verb(_name))


class Client(MemoryClient):
    """The ports ``Topics``, ``Log`` and ``Publisher``."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.broker, process.kafka_gate)
        self._process = process
        self._line = asyncio.Lock()  # one connection: messages arrive in order

    async def publish(
        self, partition: int, outputs: Sequence[Output]
    ) -> Sequence[Awaitable[object]]:
        """Queue outputs; each arrives separately, even after the process has died.

        A process that paused during a commit must not publish its answers.
        """
        if (took := self._process.last_commit.get(partition, 0.0)) > _STALE_AFTER:
            late = f"{self._process.name} publishes what it committed within {took:.1f} s"
            self._process.world.failures.append(Wrong(late))
        await self.before(Effect.PUBLISH)
        sent = self._process.world.start(self._send(partition, outputs))
        return [asyncio.ensure_future(self._confirmed(sent))]

    def odometer_producer_of(self, partition: int) -> FencedProducer:
        return FencedProducer(self, self._process, partition)

    def snapshots_of(self, partition: int) -> SnapshotTopic:
        return SnapshotTopic(self, self._process, partition)

    async def _confirmed(self, sent: asyncio.Task[None]) -> None:
        await asyncio.shield(sent)
        await self.before(Effect.ACKNOWLEDGE)

    async def _send(self, partition: int, outputs: Sequence[Output]) -> None:
        world = self._process.world
        async with self._line:
            for output in outputs:
                if delay := world.delay():
                    await asyncio.sleep(delay)
                if self._process.is_dead and self._process.cut_off:
                    await asyncio.Event().wait()
                world.publish(output.channel, partition, output.key, output.value)


class SnapshotTopic(MemorySnapshotTopic):
    """A partition of the topic snapshots; records arrive one by one."""

    def __init__(self, client: Client, process: Process, partition: int) -> None:
        super().__init__(client, partition)
        self._process = process

    async def send(self, records: Sequence[SnapshotRecord]) -> None:
        world = self._process.world
        for key, value in records:
            if world.rng.random() < 0.3:
                await self._before(Effect.SEND)
            self._check_epoch()
            self._write(value, key)
            if world.happens(world.settings.cleaned):
                clean(world, self._partition)
        await super().send([])
        world.note(self._process.name, f"writes {len(records)} records for a snapshot")
        if not world.snapshot_keys.get(self._partition, {MANIFEST}).isdisjoint(dict(records)):
            world.check_snapshot(self._partition)  # other records leave it as it is
        if records[-1][0] == MANIFEST and world.happens(world.settings.dies_with_redis):
            flush(world, [self._partition])
            self._process.kill("with Redis, after a snapshot")
            await self._process.receive_answer()


class FencedProducer(MemoryFencedProducer):
    """The producer of a partition's odometer records; they arrive one by one."""

    def __init__(self, client: Client, process: Process, partition: int) -> None:
        super().__init__(client, partition)
        self._process = process

    async def _send(self, outputs: Sequence[tuple[Origin, Sequence[Output]]]) -> None:
        world = self._process.world
        await self._before(Effect.SEND)
        self._check_epoch()
        for origin, output in ((origin, output) for origin, group in outputs for output in group):
            if world.rng.random() < 0.2:
                await self._before(Effect.SEND)
                self._check_epoch()
            self._append(origin, output)
            world.published(Channel.ODOMETER, self._partition, output.value)
        await asyncio.sleep(world.settings.transaction)
        await self._before(Effect.COMMIT)
        self._check_epoch()
        self._end_transaction()
        if world.happens(0.6):  # while records are being replayed
            restore(world, self._partition)
        await self._before(Effect.ACKNOWLEDGE)
