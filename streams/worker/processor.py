"""Decides one owned partition: apply records of the log, store the state, publish the outputs.

    acquire -> load -> republish the outbox -> [ batch -> apply -> commit -> publish ]*

The steps, which the code repeats:

1. Take the records that have arrived, in order (``inbox``). Offsets without a record are skipped
   if the log proves that they hold nothing to apply. Records of another leader epoch are
   taken if the log proves that no earlier record was replaced (``continuity``). Otherwise the
   partition is suspended.
2. Apply them in memory. A batch ends when it is large enough, when its commit would write enough,
   or where a leader epoch ends.
3. Commit state, outputs, hash chain and next offset to Redis, in one atomic write.
4. Publish the outputs (``outbox``): decisions at once, odometer records in transactions.
5. Delete each outbox entry once the broker has it: with the next commit or, if no commit follows
   soon, by a write of its own.

While one batch is being committed, the next one is applied; its own commit waits for the first.
Between steps 2 and 3 the memory is ahead of Redis. If a commit fails, the worker exits and the
memory is lost with it. The lock is free only while memory and Redis agree. It keeps the background
merge from writing uncommitted state, and the heartbeat from running during a commit.

    RUNNING          --pause---->  PAUSED     a rebalance: only work under way continues
    PAUSED           --resume--->  RUNNING    no other worker owned the partition in between
    RUNNING, PAUSED  --suspend-->  SUSPENDED  log, topics or state do not fit
    any              --close---->  CLOSED     another worker owns the partition, or will
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from streams.kafka.results import Missing, Origin
from streams.ledger.ledger import Ledger, Output, PartitionError
from streams.records import encode
from streams.records.digests import HashChain
from streams.store.misfit import Suspension, Suspensions, suspension_of
from streams.store.store_port import Verdict
from streams.store.stored_state import StoredState
from streams.store.writer import PartitionWriter
from streams.worker.continuity import is_in, rewritten
from streams.worker.heartbeat import Heartbeat
from streams.worker.inbox import Inbox, size_of
from streams.worker.merge import Merger
from streams.worker.odometer_publisher import OdometerPublisher
from streams.worker.outbox import Outbox, outbox_entries_of
from streams.worker.ports import Ending, StreamRecord, World, ending_of
from streams.worker.snapshot_writer import SnapshotWriter

logger = logging.getLogger("turnstile.worker")

BATCH_RECORDS = 64
BATCH_BYTES = 4 * 1024 * 1024
WRITE_BYTES = 32 * 1024 * 1024
"""A batch ends when its commit would write this much: a record may write far more than its size."""
PUBLISH_WITHIN = 10.0
"""Seconds from the begin of a commit to the publishing of its batch. A process that was paused for
longer has been replaced by now, and its outputs would be stale."""
OVERLAP_RECORDS = 32
"""The next batch is applied during a commit only if this many records have arrived."""
YIELD_EVERY = 8
"""Records that are applied before the event loop runs other tasks."""
OVERLAPPING_BATCHES = 8
"""After this many batches the lock is released, so that a merge or a pause can begin."""
FORGET_AFTER = 0.5
"""Seconds without a record after which published outbox entries are deleted by their own write."""
PAUSE_WITHIN = 2.0
"""Seconds that a pause waits for outputs that are under way."""


class ProcessorState(Enum):
    """The state of a processor; the module docstring has the transitions."""

    RUNNING = "running"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    CLOSED = "closed"


_FROM = {
    ProcessorState.RUNNING: {ProcessorState.PAUSED},
    ProcessorState.PAUSED: {ProcessorState.RUNNING},
    ProcessorState.SUSPENDED: {ProcessorState.RUNNING, ProcessorState.PAUSED},
    ProcessorState.CLOSED: set(ProcessorState),
}
"""The states from which each state can be reached."""


@dataclass(frozen=True)
class AppliedBatch:
    """Records that are applied in memory and not yet committed to Redis."""

    first: int  # the offset that Redis expects next
    next: int
    chain: HashChain
    leader_epoch: int  # of the last record in the chain
    records: list[StreamRecord]
    outputs: list[Output]
    changes: bytes


class Processor:
    """The only writer of one partition while its ownership lasts."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        stored: StoredState,
        writer: PartitionWriter,
        suspensions: Suspensions,
    ) -> None:
        partition = writer.partition
        self._odometers = OdometerPublisher(
            partition, world.odometer_producer_of(partition), writer.is_held, self._is_in_log
        )
        self._world = world
        self._time = asyncio.get_running_loop().time
        self.next = stored.next  # the first offset that Redis has not seen
        self.moved_at = self._time()  # the time of the last commit or pause
        self.state = ProcessorState.RUNNING
        self.suspension: Suspension | None = None  # why the partition is suspended, if it is
        self.ledger = ledger
        self.writer = writer
        self.inbox = Inbox(stored.next)
        self._leader_epoch = stored.meta.leader_epoch  # of the last record applied
        self.suspensions = suspensions
        self.merger = Merger(self)
        self.snapshots = SnapshotWriter(
            self, self.merger, world.snapshots_of(partition), world.snapshot_every
        )
        self.heartbeat = Heartbeat(self, self.snapshots)
        self._rewriting = asyncio.Lock()  # pages are rewritten, by a merge or for a snapshot
        self.outbox = Outbox(
            partition,
            ledger.state.topic,
            stored.outbox,
            world.publisher,
            self._odometers,
            self._cannot_publish,
        )
        self._lock = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None

    @property
    def can_resume(self) -> bool:
        """True if the processor is paused by a rebalance and can continue."""
        return self.state is ProcessorState.PAUSED and not self.outbox.broken

    def start(self) -> None:
        """Republish outputs that the previous owner may not have published, then take records."""
        self.outbox.start()
        self._running = asyncio.create_task(self._run())
        self._running.add_done_callback(self._ended)

    async def pause(self) -> None:
        """Take no more records until ``resume``, after work under way has ended."""
        async with self._lock:
            self._move(ProcessorState.PAUSED)
            self.inbox.close()
        await self.outbox.settle(PAUSE_WITHIN)

    async def resume(self, version: int) -> int:
        """Take records again, unless another owned the partition; return the offset to fetch."""
        async with self._lock:
            self.writer.version = version
            self.moved_at = self._time()  # the pause is no time without progress
            self._move(ProcessorState.RUNNING)
            self.inbox.begin_at(self.next)
            return self.next

    async def close(self) -> None:
        """Take no more records, permanently."""
        await self.pause()
        self._move(ProcessorState.CLOSED)
        if self._running:
            self._running.cancel()
        await self.outbox.close()
        await self.snapshots.stop()

    async def suspend(self, suspension: Suspension) -> None:
        """Suspend the partition, for a reason that outlasts this process."""
        async with self._lock:
            await self._suspend(suspension)

    async def merge(self) -> None:
        """Merge deltas into pages, unless a snapshot is about to do so."""
        if not self._rewriting.locked():
            async with self._rewriting:
                await self.merger.run()

    async def snapshot(self) -> None:
        """Write a snapshot of the partition to the topic snapshots."""
        async with self._rewriting:
            await self.snapshots.run()

    async def mark(self) -> None:
        """Append an invisible record to the compacted topics, if the processor is running."""
        if self.state is ProcessorState.RUNNING:
            self._odometers.mark()
            async with self._rewriting:
                await self.snapshots.mark()

    async def pass_tail(self, end: int) -> None:
        """Skip to the end of the log, if it holds nothing to apply."""
        if self._lock.locked():
            return  # a batch is being processed
        async with self._lock:
            first = self.inbox.position
            if self.state is ProcessorState.RUNNING and await self._skips_tail(first, end):
                changes = encode(self.ledger.state.take_delta())
                chain, leader_epoch = self.ledger.chain, self._leader_epoch
                await self._commit(AppliedBatch(first, end, chain, leader_epoch, [], [], changes))

    @asynccontextmanager
    async def settled(self) -> AsyncIterator[bool]:
        """Hold the lock, under which memory and Redis agree; yield whether the owner may write."""
        async with self._lock:
            yield self.state is ProcessorState.RUNNING

    def expect_ok(self, verdict: Verdict, write: str) -> None:
        """End the worker if a write was rejected: Redis is not in the state that the owner left."""
        if verdict is not Verdict.OK:
            self._end(ending_of(verdict), f"{write} at offset {self.next} was rejected: {verdict}")

    async def _obstacle(self, waiting: StreamRecord) -> Suspension | None:
        """Return why a record must not be applied, if it must not."""
        chain, gap = self.ledger.chain, self.inbox.gap
        if chain.last >= 0 and waiting.leader_epoch != self._leader_epoch:
            async with self._world.read_log() as log:
                # A deposed leader may still serve the log as it was.
                shown = await log.record(self.writer.partition, waiting.offset)
                if shown is None or shown.leader_epoch != waiting.leader_epoch:
                    self._end(
                        Ending.OTHER_LEADER_EPOCH,
                        f"the record at offset {waiting.offset} was delivered with leader epoch "
                        f"{waiting.leader_epoch}, and the log has "
                        f"{shown.leader_epoch if shown else 'no record there'}",
                    )
                suspension = await rewritten(chain, self._leader_epoch, log, self.suspensions)
            if suspension:
                return suspension
        return None if gap is None else await self._skip_gap(gap)

    async def _skip_gap(self, found: int) -> Suspension | None:
        """Skip the offsets before the first waiting record; return why they cannot be skipped."""
        expected = self.inbox.position
        missing = await self._missing(expected, found)
        if missing is Missing.RECORDS:  # a new process fetches them again
            self._end(
                Ending.NOT_DELIVERED,
                f"the record at offset {found} arrived where offset {expected} was expected",
            )
        if missing is Missing.HOLE:
            return self.suspensions.hole(expected, found)
        self._pass_to(found)
        return None

    async def _skips_tail(self, first: int, end: int) -> bool:
        """Skip to the end of the log, if no record waits; return whether it did."""
        if len(self.inbox) or first >= end:
            return False
        missing = await self._missing(first, end)
        if len(self.inbox) or missing is not Missing.NOTHING_TO_APPLY:
            return False
        self._pass_to(end)
        return True

    def _pass_to(self, offset: int) -> None:
        logger.info(
            "partition %d: skipping offsets %d to %d, which hold nothing to apply, such as control "
            "records of transactions",
            self.writer.partition,
            self.inbox.position,
            offset - 1,
        )
        self.inbox.pass_to(offset)

    async def _is_in_log(self, offset: int, origin: Origin) -> bool:
        """Return whether the log still contains the record that led to a published output."""
        if origin.topic != self.ledger.state.topic:
            return False
        async with self._world.read_log() as log:
            return await is_in(log, self.writer.partition, offset, origin.leader_epoch)

    async def _missing(self, first: int, end: int) -> Missing:
        async with self._world.read_log() as log:
            return await log.missing(self.writer.partition, first, end)

    async def _run(self) -> None:
        await self.outbox.republish()
        while True:
            arrived = await self.inbox.wait(FORGET_AFTER)
            async with self._lock:
                if self.state is not ProcessorState.RUNNING:
                    continue
                try:
                    await (self._process_arrived() if arrived else self._forget())
                except Exception as error:
                    # End before the lock is released: the memory may be ahead of Redis.
                    self._end(Ending.FAILED, str(error), error)

    async def _process_arrived(self) -> None:
        committing: asyncio.Task[None] | None = None
        for _ in range(OVERLAPPING_BATCHES):
            waiting, first = self.inbox.first, self.inbox.position
            if waiting is None:
                break
            if suspension := await self._obstacle(waiting):
                await self._suspend(suspension)
                break
            try:
                batch = await self._apply_batch(first, waiting.leader_epoch, committing)
            except PartitionError as error:
                # The applied part of this batch is never committed, and nothing more is applied.
                await self._suspend(suspension_of(error))
                break
            if committing:
                await committing
                committing = None
            if len(self.inbox) < OVERLAP_RECORDS:
                await self._commit(batch)  # more records arrive meanwhile: large batches cost less
            else:
                committing = asyncio.create_task(self._commit(batch))
        if committing:
            await committing

    async def _apply_batch(
        self, first: int, leader_epoch: int, committing: asyncio.Task[None] | None
    ) -> AppliedBatch:
        # Steps 1 and 2.
        records: list[StreamRecord] = []
        outputs: list[Output] = []
        read = 0
        while (record := self.inbox.take(leader_epoch)) is not None:
            if len(records) % YIELD_EVERY == 0 and (records or committing):
                await asyncio.sleep(0)  # let the commit of the previous batch continue
            outputs += self.ledger.apply(record.offset, record.value)
            records.append(record)
            read += size_of(record)
            if (
                len(records) >= BATCH_RECORDS
                or read >= BATCH_BYTES
                or self.ledger.state.unwritten_bytes >= WRITE_BYTES
            ):
                break
        self._leader_epoch = leader_epoch
        changes = encode(self.ledger.state.take_delta())
        reached, chain = self.inbox.position, self.ledger.chain
        return AppliedBatch(first, reached, chain, leader_epoch, records, outputs, changes)

    async def _commit(self, batch: AppliedBatch) -> None:
        # Step 3.
        outbox_entries = outbox_entries_of(batch.first, batch.leader_epoch, batch.outputs)
        began = self._time()
        verdict = await self.writer.commit(
            batch.first,
            batch.next,
            batch.chain,
            batch.leader_epoch,
            batch.changes,
            {outbox_entry.name: outbox_entry.packed for outbox_entry in outbox_entries},
            self.outbox.take_published(),
        )
        self.expect_ok(verdict, "commit")
        self.next = batch.next
        self.moved_at = self._time()
        took = self.moved_at - began
        self._world.committed(self.writer.partition, batch.records, batch.outputs, took)
        # Step 4.
        if took > PUBLISH_WITHIN:
            self._end(
                Ending.SLOW_COMMIT,
                f"the commit of a batch took longer than {PUBLISH_WITHIN:.0f} seconds, so another "
                "worker may own the partition",
            )
        for outbox_entry in outbox_entries:
            await self.outbox.publish(outbox_entry)

    async def _forget(self) -> None:
        # Step 5, if no commit does it.
        if published := self.outbox.take_published():
            self.expect_ok(await self.writer.forget(published), "deleting published outputs")

    async def _suspend(self, suspension: Suspension) -> None:
        if not self._move(ProcessorState.SUSPENDED):
            return
        self.inbox.close()
        self.suspension = suspension
        logger.critical("partition %d is suspended: %s", self.writer.partition, suspension)
        await self._world.store.keep_suspension(
            self.writer.partition, suspension.reason, suspension.problem, suspension.remedy
        )

    def _move(self, to: ProcessorState) -> bool:
        """Change the state if the transition is allowed; return whether it changed."""
        may = self.state in _FROM[to]
        if may:
            self.state = to
        return may

    def _cannot_publish(self, error: BaseException) -> None:
        # After a rebalance the next owner publishes the outputs that this one could not publish.
        if self.state is ProcessorState.RUNNING:
            self._end(Ending.FAILED, str(error), error)
        logger.warning(
            "partition %d: publishing failed after the partition was paused here: %r",
            self.writer.partition,
            error,
        )

    def _end(self, reason: Ending, why: str, error: BaseException | None = None) -> NoReturn:
        self._world.end(reason, f"partition {self.writer.partition}: {why}", error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._end(Ending.FAILED, str(error), error)
