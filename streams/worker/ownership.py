"""Acquires and releases the partitions of a worker.

Kafka assigns partitions. To own one, the worker acquires ownership in Redis, which fences the
previous owner. The offset to continue from comes from Redis too; the consumer group's own commits
are ignored. The steps of an acquisition, which the code repeats:

1. Look up the topics: the id of norms, P, their settings.
2. Acquire ownership in Redis, whose state must belong to this topic with this P and this layout. If
   Redis has no state, a part of it, or less than the log, restore the last snapshot (``restore``).
3. Check that the log contains the offset to apply next, or ends there. This check follows step 2,
   because until then the previous owner may still write.
4. Check that the last applied record is the one in the log (``continuity``).
5. Load the state and verify that it is complete.
6. Publish the outbox again, then decide (``processor``).

A failed check suspends the partition (``store.misfit``). ``keep_watch`` checks the topics every few
seconds while partitions are owned, and ``keep_alive`` reports their progress.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from streams.kafka.results import TopicsSeen, TopicsUnavailable
from streams.ledger.ledger import PartitionError, UnknownState, ledger_of
from streams.store.layout import Damaged, Identity, Meta, is_whole
from streams.store.misfit import PartitionSuspended, Problem, Suspension, Suspensions, suspension_of
from streams.store.snapshot import Snapshot
from streams.store.store_port import Acquired, Glance, Guard, Verdict, decode_pulse, last_snapshot
from streams.store.writer import PartitionWriter
from streams.worker.continuity import check_continues, rewritten
from streams.worker.heartbeat import BEAT_EVERY
from streams.worker.ports import Ending, Log, StreamRecord, World, ending_of
from streams.worker.processor import Processor, ProcessorState
from streams.worker.restore import find_snapshot, restore

logger = logging.getLogger("turnstile.worker")

FIRST_MARK_AFTER = 3600.0
"""Seconds from the start of a worker until it first appends to the compacted topics."""
MARK_EVERY = 12 * 3600.0
"""Seconds from one append to the next: two fall into the time a segment may stay open
(``segment.ms``)."""
_MERGE_EVERY = 1.0  # seconds
_SNAPSHOT_EVERY = 1.0  # seconds between checks whether a snapshot is due
_WATCH_EVERY = 5.0
STUCK_AFTER = 60.0
"""Seconds for which records may wait in a running partition before the worker ends."""


@dataclass(frozen=True)
class PartitionView:
    """The present state of an assigned partition; a value that is not known is None."""

    partition: int
    state: str  # of the processor; "suspended" if the partition could not be owned
    problem: Problem | None = None  # why the partition is suspended, if it is
    next: int | None = None  # the offset to apply next
    end: int | None = None  # where the log ended when it was last seen
    waiting: float | None = None  # seconds for which records wait and none is applied


class OwnedPartitions:
    """The partitions of one worker. All methods run in one event loop.

    The caller has to end the worker if a method raises.

    Attributes:
        by_partition: the owned partitions.
        is_assigned: whether Kafka has assigned the partitions of this worker.
        count: P at the last acquisition; None before the first.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.by_partition: dict[int, Processor] = {}
        # Partitions that were assigned and could not be owned.
        self._suspended: dict[int, Suspension] = {}
        self._acquiring = asyncio.Lock()
        self.is_assigned = False
        self.count: int | None = None

    async def acquire(self, assigned: Collection[int]) -> dict[int, int]:
        """Own exactly these partitions; return the offsets to fetch next of those to be decided."""
        async with self._acquiring:
            for partition in sorted(self.by_partition.keys() - set(assigned)):
                await self._let_go(partition)
            self._suspended = {
                p: suspension for p, suspension in self._suspended.items() if p in assigned
            }
            self.is_assigned = True
            positions: dict[int, int] = {}
            if not assigned:
                return positions
            # Step 1.
            seen = await self._world.look()
            self.count = seen.partitions
            if seen.partitions <= max(assigned):
                self._world.end(
                    Ending.UNKNOWN_PARTITION,
                    f"partition {max(assigned)} is assigned, but the topic has {seen.partitions} "
                    "partitions",
                )
            bound = await self._bound_partitions(seen)
            async with self._world.read_log() as log:
                for partition in sorted(assigned):
                    position = await self._acquire_one(partition, seen, *bound, log)
                    if position is not None:
                        positions[partition] = position
            return positions

    def decides(self, partition: int) -> bool:
        """Return whether the worker decides this partition."""
        owned = self.by_partition.get(partition)
        return owned is not None and owned.state is not ProcessorState.SUSPENDED

    def has_room(self, partition: int) -> bool:
        """Return whether a decided partition can queue more records."""
        return self.by_partition[partition].inbox.has_room

    def views(self) -> list[PartitionView]:
        """Return the present state of every assigned partition."""
        held = [_view(partition, owned) for partition, owned in self.by_partition.items()]
        suspended = [
            PartitionView(partition, ProcessorState.SUSPENDED.value, suspension)
            for partition, suspension in self._suspended.items()
        ]
        return sorted(held + suspended, key=lambda view: view.partition)

    async def pause(self) -> None:
        """Stop deciding for a rebalance, after which another worker may own any partition."""
        async with self._acquiring:
            await asyncio.gather(*(owned.pause() for owned in self.by_partition.values()))

    async def arrive(self, partition: int, record: StreamRecord) -> None:
        """Queue a record for its partition; drop it if the partition is not owned."""
        owned = self.by_partition.get(partition)
        if owned is not None:
            await owned.inbox.arrive(record)

    async def keep_merged(self) -> None:
        """Merge deltas into pages while the worker lives."""
        while True:
            await asyncio.sleep(_MERGE_EVERY)
            for owned in list(self.by_partition.values()):
                if owned.merger.is_due():
                    await owned.merge()

    async def keep_snapshots(self) -> None:
        """Write snapshots while the worker lives."""
        while True:
            await asyncio.sleep(_SNAPSHOT_EVERY)
            for owned in list(self.by_partition.values()):
                if owned.snapshots.is_due():
                    await owned.snapshot()

    async def keep_cleanable(self) -> None:
        """Append to the compacted topics at long intervals while the worker lives.

        Kafka closes a segment only when a record is appended after it, and compacts closed
        segments only. In a partition without traffic the ids of erased users would stay
        permanently. The worker appends the end of a transaction, which no reader sees.
        """
        await asyncio.sleep(FIRST_MARK_AFTER)
        while True:
            for owned in list(self.by_partition.values()):
                await owned.mark()
            await asyncio.sleep(MARK_EVERY)

    async def keep_alive(self, end_of: Callable[[int], int | None]) -> None:
        """Report the progress of the partitions while the worker lives.

        ``end_of`` returns the end of a partition's log, or None if it is not known.
        """
        while True:
            await asyncio.gather(
                *(
                    owned.heartbeat.beat(end_of(partition))
                    for partition, owned in self.by_partition.items()
                    if owned.state is ProcessorState.RUNNING
                )
            )
            await asyncio.sleep(BEAT_EVERY)

    async def keep_watch(self) -> None:
        """Check the topics and the progress every few seconds while the worker lives."""
        while True:
            await asyncio.sleep(_WATCH_EVERY)
            self._end_if_stuck()
            try:
                seen = await self._world.look()
            except TopicsUnavailable as error:
                logger.warning("cannot read the settings of the topics: %s", error)
                continue
            async with self._acquiring:
                for owned in self.by_partition.values():
                    suspension = _trouble(owned, seen)
                    if suspension and owned.state is not ProcessorState.SUSPENDED:
                        await owned.suspend(suspension)

    def _end_if_stuck(self) -> None:
        """End the worker if a partition makes no progress: a new process opens new connections."""
        for partition, owned in self.by_partition.items():
            waiting = owned.heartbeat.waiting
            # In a rebalance a partition may pause for as long as the slowest member takes.
            if owned.state is ProcessorState.RUNNING and waiting > STUCK_AFTER:
                self._world.end(
                    Ending.STUCK,
                    f"partition {partition}: records wait from offset {owned.next} on, "
                    f"and none was applied for {waiting:.0f} seconds",
                )

    async def _bound_partitions(self, seen: TopicsSeen) -> tuple[str, bool]:
        """Return P of the stored states of this topic, as text, and whether an intact one says it.

        If all are damaged, one of them does: whether a partition was added must not be forgotten
        with a flipped bit, nor with the state that is built instead.
        """
        said = ""
        for partition in range(seen.partitions):
            found = await self._world.store.glance(partition)
            if found.state is None:
                # Only the flipped bit may say another P: with this one, the meta has its digest.
                if is_whole(found.meta | {"partitions": str(seen.partitions)}):
                    return str(seen.partitions), True
                said = said or found.meta.get("partitions", "")
            elif found.state.topic == seen.topic.hex():
                return str(found.state.partitions), True
        return said or str(seen.partitions), False

    async def _acquire_one(
        self, partition: int, seen: TopicsSeen, bound: str, is_proven: bool, log: Log
    ) -> int | None:
        held = self.by_partition.get(partition)
        if held is not None:
            await held.pause()
        # Step 2.
        acquired: Acquired | None = None
        if bound == str(seen.partitions):
            acquired = await self._world.store.acquire(
                partition, self._world.owner, seen.topic, seen.partitions
            )
        extent = await log.extent(partition)
        suspensions = Suspensions(
            self._world.prefix, partition, seen.topic, seen.partitions, *extent
        )
        try:
            if acquired is None:
                added = suspensions.other_partitions(bound)
                raise PartitionSuspended(
                    added if is_proven else suspensions.damaged("no meta is intact", added)
                )
            _check_identity(acquired, suspensions)
            if seen.problem:
                raise PartitionSuspended(suspensions.topics(seen.problem))
            try:
                meta = _meta_of(acquired)
                guard = Guard(partition, self._world.owner, acquired.version + 1)
                next_offset = meta.next if meta else 0
                found = await find_snapshot(self._world, next_offset, log, suspensions)
                if found is None:
                    # Steps 3 and 4.
                    await check_continues(meta, log, suspensions)
                    if held is not None and _is_unchanged(held, acquired):
                        return await held.resume(acquired.version + 1)
                return await self._take_over(suspensions, guard, found)
            except Damaged as damaged:
                return await self._recover(log, suspensions, str(damaged))
        except PartitionSuspended as suspended:
            await self._let_go(partition)
            suspension = self._suspended[partition] = suspended.suspension
            logger.critical("partition %d is suspended: %s", partition, suspension)
            await self._world.store.keep_suspension(
                partition, suspension.reason, suspension.problem, suspension.remedy
            )
            return None

    async def _recover(self, log: Log, suspensions: Suspensions, damage: str) -> int:
        """Replace an incomplete state in Redis, if that loses nothing.

        The last snapshot and the log after it have to yield the whole state, and the log has to
        contain everything that Redis still proves to have been applied.

        Raises:
            PartitionSuspended: they do not, or the replacement is damaged as well.
        """
        world, partition = self._world, suspensions.partition
        left = await world.store.glance(partition)
        await _compare_what_is_left(left, log, suspensions)
        try:
            found = await find_snapshot(world, 0, log, suspensions)
            if found is None:
                await check_continues(None, log, suspensions)
        except PartitionSuspended as obstacle:
            raise PartitionSuspended(suspensions.damaged(damage, obstacle.suspension)) from obstacle
        logger.error(
            "partition %d: the state in Redis is incomplete (%s); the worker discards the rest of "
            "it and rebuilds the state from the log%s",
            partition,
            damage,
            f" after the snapshot at offset {found.manifest.meta.next}" if found else "",
        )
        log_of_it = suspensions.topic, suspensions.partitions
        acquired = await world.store.acquire(partition, world.owner, *log_of_it, left.meta)
        if acquired.verdict is not Verdict.OK:
            world.end(
                ending_of(acquired.verdict),
                f"partition {partition}: replacing the state was rejected: {acquired.verdict}",
            )
        try:
            return await self._take_over(suspensions, Guard(partition, world.owner, 1), found)
        except Damaged as again:
            raise PartitionSuspended(suspensions.damaged(str(again))) from again

    async def _take_over(
        self, suspensions: Suspensions, guard: Guard, snapshot: Snapshot | None
    ) -> int:
        """Restore a snapshot if one is given, load the state, and start to decide.

        Raises:
            Damaged: the state is incomplete.
            PartitionSuspended: the ledger cannot continue from it.
        """
        partition = suspensions.partition
        await self._let_go(partition)
        if snapshot is not None:
            await restore(self._world, guard, snapshot, suspensions)
        # Step 5.
        self._suspended.pop(partition, None)
        stored = await self._world.store.load(partition)
        if stored is None or stored.meta.owner != self._world.owner:
            other = stored.meta.owner if stored else "an emptied Redis"
            self._world.end(
                Ending.FENCED,
                f"partition {partition}: fenced by {other} while loading the state",
            )
        try:
            ledger = ledger_of(
                stored,
                partition,
                suspensions.partitions,
                suspensions.topic,
                stored.meta.chain,
                self._world.erasure_keys,
            )
        except PartitionError as error:
            raise PartitionSuspended(suspension_of(error)) from error
        except UnknownState as unknown:
            raise PartitionSuspended(suspensions.other_layout(str(unknown))) from unknown
        # Step 6.
        writer = PartitionWriter(self._world.store, partition, self._world.owner, stored)
        processor = Processor(self._world, ledger, stored, writer, suspensions)
        # Until this owner has read the topic: the restored snapshot, or the last one reported.
        shown = last_snapshot(stored.pulse)
        processor.snapshots.reached = snapshot.manifest.meta.next if snapshot else shown
        self.by_partition[partition] = processor
        processor.start()
        await processor.heartbeat.beat(None)
        logger.info("partition %d is owned and continues at offset %d", partition, stored.next)
        return stored.next

    async def _let_go(self, partition: int) -> None:
        owned = self.by_partition.pop(partition, None)
        if owned is not None:
            await owned.close()


def _view(partition: int, processor: Processor) -> PartitionView:
    return PartitionView(
        partition,
        state=processor.state.value,
        problem=processor.suspension,
        next=processor.next,
        end=processor.heartbeat.end,
        waiting=processor.heartbeat.waiting,
    )


def _check_identity(acquired: Acquired, suspensions: Suspensions) -> None:
    """Raise ``PartitionSuspended`` unless the state is of this log, and written by workers."""
    if acquired.verdict is Verdict.FOREIGN:
        raise PartitionSuspended(suspensions.foreign())
    if acquired.verdict is Verdict.MISFIT:
        with suppress(Damaged):  # ``_meta_of`` reports it, after the topics have been checked
            found = suspensions.misfit(Identity.of(acquired.before))
            assert found, "the store compares the same three fields"
            raise PartitionSuspended(found)


def _meta_of(acquired: Acquired) -> Meta | None:
    """Return the meta before the acquisition, None without one, or raise ``Damaged``."""
    if acquired.verdict is not Verdict.OK:
        raise Damaged("a key or a field is missing, has lost entries, or is not what was written")
    return Meta.of(acquired.before) if acquired.before else None


def _said(damaged: Mapping[str, str]) -> int:
    """Return up to which offset a damaged meta says that records were applied; 0 if nothing.

    One of its two numbers may be the damaged one, and a number that is too large would suspend the
    partition, so the smaller one counts.
    """
    said = [damaged.get("next", ""), damaged.get("last", "")]
    return min(int(said[0]), int(said[1]) + 1) if all(map(str.isdecimal, said)) else 0


async def _compare_what_is_left(left: Glance, log: Log, suspensions: Suspensions) -> None:
    """Check that the log contains everything that a damaged state still proves to have been
    applied.

    Raises:
        PartitionSuspended: it does not. Only Redis knows what the missing records spent.
    """
    pulse, meta = decode_pulse(left.pulse), left.state
    reached = max(meta.next if meta else _said(left.meta), pulse.next if pulse else 0)
    if reached > suspensions.log_end:
        raise PartitionSuspended(suspensions.log_ends_early(reached))
    if meta and (suspension := await rewritten(meta.chain, meta.leader_epoch, log, suspensions)):
        raise PartitionSuspended(suspension)


def _is_unchanged(held: Processor, acquired: Acquired) -> bool:
    """Return whether the state in memory is still the state in Redis."""
    return (
        held.can_resume
        and acquired.before.get("owner") == held.writer.owner
        and acquired.version == held.writer.version
    )


def _trouble(owned: Processor, seen: TopicsSeen) -> Suspension | None:
    """Return why an owned partition has to be suspended, if it has to."""
    known = owned.suspensions
    now = replace(known, topic=seen.topic, partitions=seen.partitions)
    return now.misfit(known.identity) or (now.topics(seen.problem) if seen.problem else None)
