"""One owned partition: from records of the log to a state in Redis to published answers.

    claim -> load -> republish the outbox -> [ batch -> fold in memory -> commit -> publish ]*

The steps, which the code repeats:

1. Take what has arrived, leaving out what was applied before.
2. Fold it in memory.
3. Commit state, outputs and the next offset to Redis, in one atomic write.
4. Publish the outputs.
5. Drop them from the outbox once the broker has them.

While one batch is being committed the next is folded; its own commit waits for the one before.
Between 2 and 3 the memory is ahead of Redis. If a commit does not succeed, the process ends and
the memory with it. The lock, which is free only when memory and Redis agree, keeps the background
fold from writing uncommitted state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import msgspec

from streams.ledger import Ledger, Output, ledger_of
from streams.redis_store import RedisStore, Snapshot, Verdict
from streams.schemas import encode
from streams.worker.exits import end_process
from streams.worker.publisher import Publisher

logger = logging.getLogger("turnstile.worker")

BATCH_RECORDS = 64
BATCH_BYTES = 4 * 1024 * 1024
ARRIVED_BYTES = 4 * BATCH_BYTES
"""Records that wait here hold up the stream, and so the fetching, when there are more of them."""
FOLD_BYTES = 16 * 1024 * 1024
"""Deltas are folded into pages when there are this many bytes of them, and ..."""
FOLD_RATIO = 2
"""... this many times the size of the pages, so that folding stays cheaper than committing."""
BYTES_PER_USER = 32
FOLD_DELTAS = 4096
"""Or when there are this many, however small: each is read when the partition is claimed."""
PUBLISH_WITHIN = 10.0
"""Seconds a commit may take until its batch is published: a process paused for longer is replaced
by now, and what it would publish then is stale."""
UNPUBLISHED_BATCHES = 8
OVERLAP_RECORDS = 32
"""So many must have arrived to be folded before the commit that is under way ends."""
YIELD_EVERY = 8
"""Records that are folded before the event loop has its turn."""
OVERLAPPING_BATCHES = 8
"""After so many, memory and Redis are let agree, so that a fold or a suspension has its turn."""
FORGET_AFTER = 0.5
"""Seconds without a record after which the outbox is cleared by a write of its own."""


class Event(Protocol):
    """What this module needs of a record of the log."""

    offset: int
    value: bytes | None

    def done(self) -> None:
        """Say that the record is applied."""


@dataclass
class Backlog:
    """Deltas in Redis that are not folded yet."""

    count: int = 0
    size: int = 0


@dataclass(frozen=True)
class Folded:
    """A batch that memory holds and Redis does not."""

    batch: list[Event]
    outputs: list[Output]
    delta: bytes

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self.batch[0].offset


class Processor:
    """The only writer of one partition for as long as its claim lasts."""

    def __init__(
        self,
        ledger: Ledger,
        snapshot: Snapshot,
        owner: str,
        store: RedisStore,
        publisher: Publisher,
    ) -> None:
        self.next = self._claimed_at = snapshot.next  # the first record that Redis has not seen
        self._taken = snapshot.next  # the first one that no batch has taken
        self.halted: str | None = None  # why nothing is decided here any more
        self.ledger = ledger
        self.owner = owner
        self._partition = ledger.partition
        self._store = store
        self._publisher = publisher
        self._lock = asyncio.Lock()
        self._suspended = False
        self._arrived: deque[Event] = deque()
        self._arrived_bytes = 0
        self._fetch = 0  # counts the times that fetching begins anew
        self._room = asyncio.Event()
        self._wake = asyncio.Event()
        self._published: list[int] = []
        self._publishing = asyncio.Semaphore(UNPUBLISHED_BATCHES)
        self._backlog = Backlog(len(snapshot.deltas), sum(map(len, snapshot.deltas)))
        self._tasks: set[asyncio.Task[None]] = set()
        self._outbox = snapshot.outbox

    @classmethod
    def load(
        cls,
        partition: int,
        partitions: int,
        snapshot: Snapshot,
        owner: str,
        store: RedisStore,
        publisher: Publisher,
    ) -> Processor:
        """Build the state of a claimed partition from what Redis holds."""
        ledger = ledger_of(snapshot, partition, partitions)
        return cls(ledger, snapshot, owner, store, publisher)

    def start(self) -> None:
        """Republish what the owner before may not have published, then take records."""
        self._spawn(self._run())

    async def suspend(self) -> None:
        """Take no more records until ``resume``; a batch that is under way ends first."""
        async with self._lock:
            self._suspended = True
            self._drop_arrived()

    async def resume(self) -> int:
        """Take records again; returns the offset from which they have to be fetched."""
        async with self._lock:
            self._suspended = False
            self._drop_arrived()
            return self.next

    async def stop(self) -> None:
        """Take no more records, ever."""
        await self.suspend()
        for task in self._tasks:
            task.cancel()

    async def arrive(self, event: Event) -> None:
        """Queue a record of this partition, as soon as there is room."""
        fetch = self._fetch
        while self._arrived_bytes >= ARRIVED_BYTES and fetch == self._fetch:
            self._room.clear()
            await self._room.wait()
        if self.halted or self._suspended or fetch != self._fetch:
            return  # it will be fetched again, by whoever decides it
        self._arrived.append(event)
        self._arrived_bytes += _size(event)
        self._wake.set()

    def wants_fold(self) -> bool:
        """Whether folding the deltas is worth it by now."""
        users = sum(len(accounts) for accounts in self.ledger.datasets.values())
        too_large = self._backlog.size > max(FOLD_BYTES, FOLD_RATIO * BYTES_PER_USER * users)
        return too_large or self._backlog.count > FOLD_DELTAS

    async def fold(self) -> None:
        """Write what changed as pages, page by page, then drop the deltas that led to it."""
        async with self._lock:
            covered = Backlog(self._backlog.count, self._backlog.size)
            names = self.ledger.unfolded()
        for name in names:
            async with self._lock:
                if self._suspended:
                    return  # half a fold is harmless: the deltas are still there
                value = self.ledger.fold(name)
                field = {} if value is None else {name: value}
                verdict = await self._store.fold(self._partition, self.owner, self.next, field)
            self._expect_ok(verdict, "fold")
        async with self._lock:
            if self._suspended:
                return
            verdict = await self._store.fold(
                self._partition, self.owner, self.next, {}, drop=covered.count
            )
            self._expect_ok(verdict, "trim")
            self._backlog.count -= covered.count
            self._backlog.size -= covered.size

    async def _run(self) -> None:
        for first, packed in self._outbox:
            await self._publish(first, msgspec.msgpack.decode(packed, type=list[Output]))
        self._outbox = []
        while True:
            if not self._arrived:
                await self._wait_for_records()
            async with self._lock:
                try:
                    await self._process_arrived()
                except Exception as error:
                    # Here, before the lock is free: the memory may be ahead of Redis.
                    end_process(f"partition {self._partition}: {error}", error)

    async def _wait_for_records(self) -> None:
        self._wake.clear()
        try:
            await asyncio.wait_for(self._wake.wait(), FORGET_AFTER)
        except TimeoutError:
            # Step 5, when no commit came along to do it.
            if self._published:
                published, self._published = self._published, []
                await self._store.forget_published(self._partition, published)

    def _drop_arrived(self) -> None:
        self._arrived.clear()
        self._arrived_bytes = 0
        self._fetch += 1
        self._room.set()

    def _take_batch(self) -> list[Event]:
        # Step 1.
        batch: list[Event] = []
        size = 0
        self._room.set()
        while self._arrived and len(batch) < BATCH_RECORDS and size < BATCH_BYTES:
            event = self._arrived.popleft()
            self._arrived_bytes -= _size(event)
            if event.offset < self._taken:
                continue
            if event.offset > self._taken:
                self._drop_arrived()
                self._missing(self._taken, event.offset)
                break
            self._taken += 1
            batch.append(event)
            size += _size(event)
        return batch

    def _missing(self, expected: int, found: int) -> None:
        if self._taken != self._claimed_at:
            end_process(f"partition {self._partition}: {found} came where {expected} was expected")
        # It is the log that has a hole, so starting again would not help.
        self.halted = (
            f"the log continues at offset {found}, but {expected} has to be applied next: records "
            "were deleted, compacted or written by a transactional producer. Nothing is decided "
            "here until an operator restores them or starts over under another prefix"
        )
        logger.critical("partition %d stops: %s", self._partition, self.halted)

    async def _process_arrived(self) -> None:
        committing: asyncio.Task[None] | None = None
        for _ in range(OVERLAPPING_BATCHES):
            if committing and len(self._arrived) < OVERLAP_RECORDS:
                await committing  # meanwhile more arrives: few large batches cost less
            batch = self._take_batch()
            if not batch:
                break
            folded = await self._fold_batch(batch)
            if committing:
                await committing
            committing = asyncio.create_task(self._commit(folded))
        if committing:
            await committing

    async def _fold_batch(self, batch: list[Event]) -> Folded:
        # Step 2.
        outputs: list[Output] = []
        for position, event in enumerate(batch):
            if position % YIELD_EVERY == 0:
                await asyncio.sleep(0)  # the commit of the batch before goes on
            outputs += self.ledger.apply(event.offset, event.value)
        return Folded(batch, outputs, encode(self.ledger.take_delta()))

    async def _commit(self, folded: Folded) -> None:
        # Step 3.
        began = monotonic()
        published, self._published = self._published, []
        verdict = await self._store.commit(
            self._partition,
            self.owner,
            folded.first,
            folded.first + len(folded.batch),
            folded.delta,
            encode(folded.outputs),
            published,
        )
        self._expect_ok(verdict, "commit")
        self.next = folded.first + len(folded.batch)
        self._backlog.count += 1
        self._backlog.size += len(folded.delta)
        for event in folded.batch:
            event.done()
        # Step 4.
        if monotonic() - began > PUBLISH_WITHIN:
            end_process(f"partition {self._partition}: paused while a batch was committed")
        await self._publish(folded.first, folded.outputs)

    async def _publish(self, first: int, outputs: list[Output]) -> None:
        await self._publishing.acquire()
        sent = await self._publisher.publish(self._partition, outputs)
        self._spawn(self._confirm(first, sent))

    async def _confirm(self, first: int, sent: list[asyncio.Future[object]]) -> None:
        try:
            await asyncio.gather(*sent)
        finally:
            self._publishing.release()
        # Step 5, with the next commit or after a while without one.
        self._published.append(first)

    def _expect_ok(self, verdict: Verdict, write: str) -> None:
        if verdict is not Verdict.OK:
            end_process(f"partition {self._partition}: {write} at {self.next} is {verdict}")

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            end_process(f"partition {self._partition}: {error}", error)


def _size(event: Event) -> int:
    return len(event.value or b"")
