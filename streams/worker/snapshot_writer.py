"""Writes snapshots of one partition, so that Redis can be lost and the log can be trimmed.

``streams.store.snapshot`` defines a snapshot and explains why there is always a complete one. The
steps of the owner, which the code repeats:

1. Begin: start an epoch, which fences every older writer. Check that the partition is still owned,
   and read the listing of the last snapshot.
2. Merge deltas into pages, so that the pages are new and the deltas few.
3. While memory and Redis agree, read the state without its pages, and the hashes of the pages.
4. Send the pages that the last snapshot does not have. The worker reads them from Redis and checks
   their hashes. No merge takes place meanwhile.
5. Send the remaining chunks and, when the broker has all of them, the manifest.
6. Empty the slots that are no longer needed.

Invariants: a snapshot is the state that Redis had at one time, so it is as good as a copy of
Redis from that time. Within one log the offsets of snapshots rise: a state that is not ahead of
the last snapshot is not written. No decision waits for a snapshot; one that cannot be written is
tried again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

from streams.kafka.results import STOP_WITHIN, LogUnavailable, NotSent
from streams.store.snapshot import (
    Record,
    Snapshot,
    SnapshotBuilder,
    UnusableSnapshot,
    changed_since,
)
from streams.store.store_port import Unpaged, Verdict
from streams.worker.merge import Merger
from streams.worker.ports import Owner, SnapshotTopic

logger = logging.getLogger("turnstile.worker")

FIRST_AFTER = 60.0
"""Seconds from the acquisition of a partition to its first snapshot, at most."""
TIME_SHARE = 0.05
"""The largest share of time that a partition spends on writing snapshots."""
READ_PAGES = 16
"""The number of pages that one command reads from Redis."""
SEND_BYTES = 2 * 1024 * 1024
"""A transaction of at least this size takes no further chunk."""


class NotWritten(Exception):
    """Raised if a snapshot is given up because the partition is no longer decided here."""


class SnapshotWriter:
    """Writes the snapshots of one partition while its ownership lasts.

    Attributes:
        reached: the offset at which the last snapshot continues; None if there is none, or if it is
            not known.
    """

    def __init__(self, owner: Owner, merger: Merger, topic: SnapshotTopic, every: float) -> None:
        """Prepare to write a snapshot every so many seconds; 0: none is written."""
        self.reached: int | None = None
        self._owner, self._writer = owner, owner.writer
        self._merger, self._topic = merger, topic
        self._every = every
        self._time = asyncio.get_running_loop().time
        self._due_at = self._time() + min(every, FIRST_AFTER)
        self._begun = False
        self._last: Snapshot | None = None

    def is_due(self) -> bool:
        """Return whether a snapshot should be written now."""
        is_behind = not self._begun or self._is_behind(self._owner.next)
        return bool(self._every) and self._time() >= self._due_at and is_behind

    def _is_behind(self, position: int) -> bool:
        state = self._owner.ledger.state
        return changed_since(self._last, position, state.topic, state.partitions)

    async def run(self) -> None:
        """Write a snapshot, if the state has advanced."""
        began = self._time()
        with self._trying("cannot write a snapshot, the worker will try again"):
            await self._write()
        now = self._time()
        self._due_at = now + max(self._every, (now - began) / TIME_SHARE)

    async def mark(self) -> None:
        """Append an invisible record to the topic (``OwnedPartitions.keep_cleanable``)."""
        if not self._every:
            return
        problem = "cannot append to the topic snapshots, so Kafka keeps old records longer"
        with self._trying(problem):
            await self._begin()
            await self._topic.send([])

    @contextmanager
    def _trying(self, problem: str) -> Iterator[None]:
        """Begin again the next time, if what is tried fails."""
        try:
            yield
        except (NotWritten, NotSent, LogUnavailable) as error:
            self._begun = False
            if not isinstance(error, NotWritten):
                logger.warning("partition %d: %s: %s", self._writer.partition, problem, error)

    async def stop(self) -> None:
        """Disconnect; the last snapshot stays valid."""
        self._begun = False
        with suppress(TimeoutError):
            await asyncio.wait_for(self._topic.stop(), STOP_WITHIN)

    async def _write(self) -> None:
        await self._begin()
        # Step 2.
        await self._merger.run()
        # Step 3.
        async with self._may_write():
            unpaged, hashes = await self._writer.unpaged(), self._writer.hashes
            if isinstance(unpaged, Verdict):
                self._owner.expect_ok(unpaged, "a snapshot")
                return
        reached = int(unpaged.fields["next"])
        if not self._is_behind(reached):
            return
        # Step 4.
        began = self._time()
        builder = SnapshotBuilder(self._last)
        names = builder.keep(hashes)
        for first in range(0, len(names), READ_PAGES):
            wanted = {name: hashes[name] for name in names[first : first + READ_PAGES]}
            pages = (await self._pages(wanted)).items()
            await self._send([record for page in pages for record in builder.add(*page)])
        await self._finish(builder, unpaged)
        logger.info(
            "partition %d: wrote the snapshot at offset %d: %d of %d pages are new, in %.1f s",
            self._writer.partition,
            reached,
            len(names),
            len(hashes),
            self._time() - began,
        )

    async def _begin(self) -> None:
        if self._begun:
            return
        # Step 1. In this order, as in ``OdometerPublisher``: a worker that wakes up too late has
        # fenced its successor, and must not write anything.
        await self._topic.start()
        if not await self._writer.is_held():
            raise NotWritten
        try:
            self._last = await self._topic.read(with_contents=False)
        except UnusableSnapshot as unusable:
            logger.warning(
                "partition %d: the last snapshot is incomplete, the worker writes another: %s",
                self._writer.partition,
                unusable,
            )
            self._last = None
        self.reached = self._last.manifest.meta.next if self._last else None
        self._begun = True

    async def _pages(self, hashes: dict[str, int]) -> dict[str, bytes]:
        """Return the pages with these hashes."""
        pages = await self._writer.pages(hashes)
        if pages is not None:
            return pages
        async with self._may_write():
            found = await self._writer.unpaged()
            verdict = found if isinstance(found, Verdict) else Verdict.DAMAGED
            self._owner.expect_ok(verdict, "reading pages for a snapshot")
        raise NotWritten

    async def _finish(self, builder: SnapshotBuilder, unpaged: Unpaged) -> None:
        # Step 5.
        records, manifest, snapshot = builder.finish(unpaged)
        await self._send(records)
        async with self._may_write():
            pass  # a new owner writes its own snapshots
        await self._topic.send([manifest])
        self.reached = snapshot.manifest.meta.next
        # Step 6.
        await self._send(builder.emptied(snapshot))
        self._last = snapshot

    async def _send(self, records: Sequence[Record]) -> None:
        """Send records in transactions."""
        sending: list[Record] = []
        size = 0
        for record in records:
            sending.append(record)
            size += len(record[0]) + len(record[1] or b"")
            if size >= SEND_BYTES:
                await self._topic.send(sending)
                sending, size = [], 0
        if sending:
            await self._topic.send(sending)

    @asynccontextmanager
    async def _may_write(self) -> AsyncIterator[None]:
        """Hold the lock under which memory and Redis agree, or raise ``NotWritten``."""
        async with self._owner.settled() as may_write:
            if not may_write:
                raise NotWritten
            yield
