"""Which partitions a worker owns, and how it comes to own them.

Kafka says which partitions are assigned; owning one takes a claim in Redis, which fences whoever
owned it before, and the offset to continue from comes from Redis too. The consumer group's own
commits are ignored. The steps of a claim, which the code repeats:

1. What the topics are: the id of norms, P, their settings.
2. Claim in Redis: it keeps state of this topic with this P, in this layout.
   If it keeps nothing, a part, or less than the log, the last checkpoint is restored (``rebuild``).
3. The log begins no later, and ends no earlier, than the offset to apply next. It is looked at
   after the claim: until then the owner before may go on, and Redis with it.
4. The last record that was applied is the one in the log (``continuity``).
5. Load the state and verify that it is whole.
6. Publish the outbox again, then decide (``processor``).

Anything else that does not fit suspends the partition (``stops``). While partitions are owned,
``keep_watch`` compares the topics every few seconds, and ``keep_alive`` shows how far they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from streams.ledger.ledger import Impasse, UnknownState, ledger_of
from streams.store.holding import Holding
from streams.store.image import Image
from streams.store.layout import Damaged, Meta
from streams.store.port import Claimed, Glance, Guard, Verdict
from streams.store.vital_signs import decode_pulse, last_checkpoint
from streams.topics.seen import TopicsSeen, TopicsUnavailable
from streams.worker.continuity import rewritten
from streams.worker.heartbeat import BEAT_EVERY, Heartbeat
from streams.worker.ports import Extent, Log, LogRecord, World
from streams.worker.processor import Processor, State
from streams.worker.rebuild import find_checkpoint, restore
from streams.worker.stops import Stop, Stops, stop_at

logger = logging.getLogger("turnstile.worker")

FIRST_MARK_AFTER = 3600.0
"""Seconds from the start of a worker until it appends to the compacted topics."""
MARK_EVERY = 12 * 3600.0
"""Seconds from one time to the next: twice while a segment may stay open (``segment.ms``)."""
_COMPACT_EVERY = 1.0  # seconds
_IMAGE_EVERY = 1.0  # at which it is looked whether one is due
_WATCH_EVERY = 5.0


class Stopped(Exception):
    """A claim after which nothing is decided."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(str(stop))
        self.stop = stop


@dataclass(frozen=True)
class _Claim:
    """What the steps of one claim share."""

    partition: int
    seen: TopicsSeen
    extent: Extent
    log: Log
    stops: Stops


@dataclass(frozen=True)
class Owned:
    """A partition that the worker owns."""

    processor: Processor
    heartbeat: Heartbeat
    stops: Stops
    topic: bytes
    partitions: int


@dataclass(frozen=True)
class PartitionView:
    """A partition that was given to this worker, as it is now; what is not known is None."""

    partition: int
    state: str  # of the processor; one that could not be claimed is stopped
    problem: str | None = None  # why nothing is decided, and what to do
    next: int | None = None  # the offset to apply next
    end: int | None = None  # where the log ended when it was last seen
    waiting: float | None = None  # seconds for which records wait and none is applied


class Partitions:
    """The partitions of one worker. All methods run in one event loop.

    Whatever they raise has to end the worker: who calls them sees to that.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._owned: dict[int, Owned] = {}
        self._stopped: dict[int, Stop] = {}  # those that were assigned and could not be owned
        self._claiming = asyncio.Lock()
        self.is_assigned = False  # whether the group has said which partitions are this worker's
        self.count: int | None = None  # P, as it was when they were claimed last

    async def claim(self, assigned: Collection[int]) -> dict[int, int]:
        """Own exactly these partitions.

        Returns:
            The offset to fetch next, of every partition that can be decided.
        """
        async with self._claiming:
            for partition in sorted(self._owned.keys() - set(assigned)):
                await self._let_go(partition)
            self._stopped = {p: stop for p, stop in self._stopped.items() if p in assigned}
            self.is_assigned = True
            positions: dict[int, int] = {}
            if not assigned:
                return positions
            # Step 1.
            seen = await self._world.topics.look()
            self.count = seen.partitions
            if seen.partitions <= max(assigned):
                self._world.end(
                    f"partition {max(assigned)} is assigned, and Kafka shows {seen.partitions}"
                )
            bound = await self._bound_partitions(seen)
            async with self._world.read_log() as log:
                for partition in sorted(assigned):
                    position = await self._claim_one(partition, seen, bound, log)
                    if position is not None:
                        positions[partition] = position
            return positions

    def decides(self, partition: int) -> bool:
        """Whether records of this partition are wanted."""
        owned = self._owned.get(partition)
        return owned is not None and owned.processor.state is not State.STOPPED

    def has_room(self, partition: int) -> bool:
        """Whether more records of a partition that is decided can wait."""
        return self._owned[partition].processor.intake.has_room

    def views(self) -> list[PartitionView]:
        """Every partition that was given to this worker, as it is now."""
        held = [
            _view(partition, owned.processor, owned.heartbeat)
            for partition, owned in self._owned.items()
        ]
        stopped = [
            PartitionView(partition, State.STOPPED.value, str(stop))
            for partition, stop in self._stopped.items()
        ]
        return sorted(held + stopped, key=lambda view: view.partition)

    async def suspend(self) -> None:
        """Decide nothing more: a rebalance begins, and somebody else may claim any partition."""
        async with self._claiming:
            await asyncio.gather(*(owned.processor.suspend() for owned in self._owned.values()))

    async def arrive(self, partition: int, record: LogRecord) -> None:
        """Hand a record to its partition; records of partitions not owned are left alone."""
        owned = self._owned.get(partition)
        if owned is not None:
            await owned.processor.intake.arrive(record)

    async def keep_compacted(self) -> None:
        """Move changes into pages, for as long as the worker lives."""
        while True:
            await asyncio.sleep(_COMPACT_EVERY)
            for owned in list(self._owned.values()):
                if owned.processor.compaction.is_due():
                    await owned.processor.compact()

    async def keep_imaged(self) -> None:
        """Write images, for as long as the worker lives."""
        while True:
            await asyncio.sleep(_IMAGE_EVERY)
            for owned in list(self._owned.values()):
                if owned.processor.imaging.is_due(owned.processor.next):
                    await owned.processor.image()

    async def keep_cleanable(self) -> None:
        """Append to the compacted topics now and then, for as long as the worker lives.

        Kafka closes a segment only when a record is appended behind it, and compacts closed
        segments only. In a partition without traffic the ids of erased users would stay for good.
        What is appended is the end of a transaction, which no reader sees.
        """
        await asyncio.sleep(FIRST_MARK_AFTER)
        while True:
            for owned in list(self._owned.values()):
                await owned.processor.mark()
            await asyncio.sleep(MARK_EVERY)

    async def keep_alive(self, end_of: Callable[[int], int | None]) -> None:
        """Show how far the partitions are, for as long as the worker lives.

        Args:
            end_of: where the log of a partition ends, as far as is known.
        """
        while True:
            await asyncio.gather(
                *(
                    owned.heartbeat.beat(end_of(partition))
                    for partition, owned in self._owned.items()
                    if owned.processor.state is State.RUNNING
                )
            )
            await asyncio.sleep(BEAT_EVERY)

    async def keep_watch(self) -> None:
        """Look at the topics again and again, for as long as the worker lives."""
        while True:
            await asyncio.sleep(_WATCH_EVERY)
            try:
                seen = await self._world.topics.look()
            except TopicsUnavailable as error:
                logger.warning("the topics cannot be seen: %s", error)
                continue
            async with self._claiming:
                for owned in self._owned.values():
                    stop = _trouble(owned, seen)
                    if stop and owned.processor.state is not State.STOPPED:
                        await owned.processor.halt(stop)

    async def _bound_partitions(self, seen: TopicsSeen) -> int:
        """P of the state of this topic: partitions that were added have none of their own."""
        meta = (await self._world.store.glance(0)).meta
        known = meta.get("topic") == seen.topic.hex() and meta.get("partitions", "").isdecimal()
        return int(meta["partitions"]) if known else seen.partitions

    async def _claim_one(
        self, partition: int, seen: TopicsSeen, bound: int, log: Log
    ) -> int | None:
        held = self._owned.get(partition)
        if held is not None:
            await held.processor.suspend()
        # Step 2.
        claimed: Claimed | None = None
        if bound == seen.partitions:
            claimed = await self._world.store.claim(
                partition, self._world.owner, seen.topic, seen.partitions
            )
        extent = await log.extent(partition)
        stops = Stops(self._world.prefix, partition, extent.start)
        claim = _Claim(partition, seen, extent, log, stops)
        try:
            if claimed is None:
                raise Stopped(stops.other_partitions(bound, seen.partitions))
            _check_identity(claimed, seen, stops)
            if seen.problem:
                raise Stopped(stops.topics(seen.problem))
            try:
                meta = _meta_of(claimed)
                guard = Guard(partition, self._world.owner, claimed.version + 1)
                next_offset = meta.next if meta else 0
                found = await find_checkpoint(self._world, next_offset, seen, extent, log, stops)
                if isinstance(found, Stop):
                    raise Stopped(found)
                if found is None:
                    await _compare(meta, extent, log, stops)
                    if held is not None and _is_unchanged(held.processor, claimed):
                        return await held.processor.resume(claimed.version + 1)
                return await self._take_over(claim, guard, found)
            except Damaged as damaged:
                return await self._recover(claim, str(damaged))
        except Stopped as stopped:
            await self._let_go(partition)
            stop = self._stopped[partition] = stopped.stop
            logger.critical("partition %d stops: %s", partition, stop)
            await self._world.store.keep_stop(partition, stop.reason, stop.problem, stop.remedy)
            return None

    async def _recover(self, claim: _Claim, damage: str) -> int:
        """Replace a state of which Redis lost a part, if nothing is lost by that.

        The checkpoint and the log after it have to give all of the state, and the log has to
        contain everything that Redis still proves to have been applied.

        Raises:
            Stopped: they do not, or the replacement is damaged as well.
        """
        world, partition, stops = self._world, claim.partition, claim.stops
        left = await world.store.glance(partition)
        await _compare_what_is_left(left, claim)
        found = await find_checkpoint(world, 0, claim.seen, claim.extent, claim.log, stops)
        if found is None and claim.extent.start:
            found = stops.log_begins_late(0)
        if isinstance(found, Stop):
            raise Stopped(stops.damaged(damage, found))
        logger.error(
            "partition %d: the state in Redis is incomplete (%s); discarding the rest of it, and "
            "building the state from the log%s",
            partition,
            damage,
            f" after the checkpoint at offset {found.manifest.next}" if found else "",
        )
        verdict = await world.store.discard(partition, left.meta)
        if verdict is Verdict.OK:
            verdict = (
                await world.store.claim(
                    partition, world.owner, claim.seen.topic, claim.seen.partitions
                )
            ).verdict
        if verdict is not Verdict.OK:
            world.end(f"partition {partition}: replacing its state is {verdict}")
        try:
            return await self._take_over(claim, Guard(partition, world.owner, 1), found)
        except Damaged as again:
            raise Stopped(stops.damaged(str(again))) from again

    async def _take_over(self, claim: _Claim, guard: Guard, checkpoint: Image | None) -> int:
        """Load the state, after a checkpoint has replaced it if one is given, and decide.

        Raises:
            Damaged: the state is incomplete.
            Stopped: the ledger cannot continue from it.
        """
        partition, seen, stops = claim.partition, claim.seen, claim.stops
        await self._let_go(partition)
        if checkpoint is not None:
            await restore(self._world, guard, checkpoint, stops)
        # Step 5.
        self._stopped.pop(partition, None)
        snapshot = await self._world.store.load(partition)
        if snapshot is None or snapshot.meta.owner != self._world.owner:
            other = snapshot.meta.owner if snapshot else "a Redis that was emptied"
            self._world.end(f"partition {partition}: fenced by {other} while loading")
        try:
            ledger = ledger_of(
                snapshot,
                partition,
                seen.partitions,
                seen.topic,
                snapshot.meta.chain,
                self._world.erasure_keys,
                self._world.operator_keys,
            )
        except Impasse as impasse:
            raise Stopped(stop_at(impasse)) from impasse
        except UnknownState as unknown:
            raise Stopped(stops.other_layout(str(unknown))) from unknown
        # Step 6.
        holding = Holding(self._world.store, partition, self._world.owner, snapshot)
        processor = Processor(self._world, ledger, snapshot, holding, stops)
        # Until this owner has read the topic: the image that was put back, or what others showed.
        shown = last_checkpoint(snapshot.pulse)
        processor.imaging.reached = checkpoint.manifest.next if checkpoint else shown
        self._owned[partition] = Owned(
            processor, Heartbeat(processor), stops, seen.topic, seen.partitions
        )
        processor.start()
        await self._owned[partition].heartbeat.beat(None)
        logger.info("partition %d: owned, continues at offset %d", partition, snapshot.next)
        return snapshot.next

    async def _let_go(self, partition: int) -> None:
        owned = self._owned.pop(partition, None)
        if owned is not None:
            await owned.processor.close()


def _view(partition: int, processor: Processor, heartbeat: Heartbeat) -> PartitionView:
    return PartitionView(
        partition,
        state=processor.state.value,
        problem=None if processor.stop is None else str(processor.stop),
        next=processor.next,
        end=heartbeat.end,
        waiting=heartbeat.waiting,
    )


def _check_identity(claimed: Claimed, seen: TopicsSeen, stops: Stops) -> None:
    """Check that what Redis keeps belongs to this log and was written by workers.

    Raises:
        Stopped: it does not, or it was not.
    """
    before = claimed.before
    match claimed.verdict:
        case Verdict.FOREIGN:
            raise Stopped(stops.foreign())
        case Verdict.OTHER_LAYOUT:
            raise Stopped(stops.other_layout(before.get("layout", "none")))
        case Verdict.OTHER_LOG:
            raise Stopped(stops.other_log(before["topic"], seen.topic.hex()))
        case Verdict.OTHER_PARTITIONS:
            raise Stopped(stops.other_partitions(int(before["partitions"]), seen.partitions))


def _meta_of(claimed: Claimed) -> Meta | None:
    """Return the meta before the claim; None if there was nothing.

    Raises:
        Damaged: a part of the state is missing.
    """
    if claimed.verdict is Verdict.DAMAGED:
        raise Damaged("a key is missing, or has other entries than were written")
    return Meta.of(claimed.before) if claimed.before else None


async def _compare_what_is_left(left: Glance, claim: _Claim) -> None:
    """Check that the log contains all that a damaged state still proves to have been applied.

    Raises:
        Stopped: it does not: only Redis knows what the missing records spent.
    """
    pulse, meta = None, None
    with suppress(msgspec.DecodeError):  # another release wrote it
        pulse = decode_pulse(left.pulse)
    with suppress(Damaged):
        meta = Meta.of(left.meta)
    reached = max(meta.next if meta else 0, pulse.next if pulse else 0)
    if reached > claim.extent.end:
        raise Stopped(claim.stops.log_ends_early(reached, claim.extent.end))
    if meta and (stop := await rewritten(meta.chain, meta.leader_epoch, claim.log, claim.stops)):
        raise Stopped(stop)


async def _compare(meta: Meta | None, extent: Extent, log: Log, stops: Stops) -> None:
    """Check that the log is the one that was applied.

    Raises:
        Stopped: it is another one.
    """
    # Step 3.
    next_offset = meta.next if meta else 0
    if next_offset > extent.end:
        raise Stopped(stops.log_ends_early(next_offset, extent.end))
    if next_offset < extent.start:
        raise Stopped(stops.log_begins_late(next_offset))
    # Step 4.
    if meta and (stop := await rewritten(meta.chain, meta.leader_epoch, log, stops)):
        raise Stopped(stop)


def _is_unchanged(held: Processor, claimed: Claimed) -> bool:
    """Whether the state in memory is the state in Redis: nobody else was there."""
    return (
        held.can_resume
        and claimed.before.get("owner") == held.holding.owner
        and claimed.version == held.holding.version
    )


def _trouble(owned: Owned, seen: TopicsSeen) -> Stop | None:
    """Why a partition that is owned must not be decided any longer."""
    if seen.topic != owned.topic:
        return owned.stops.other_log(owned.topic.hex(), seen.topic.hex())
    if seen.partitions != owned.partitions:
        return owned.stops.other_partitions(owned.partitions, seen.partitions)
    return owned.stops.topics(seen.problem) if seen.problem else None
