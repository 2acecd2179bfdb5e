"""Which partitions this process owns, and how it comes to own them.

Kafka says which partitions are assigned; owning one takes a claim in Redis, which fences whoever
owned it before, and the offset to continue from comes from Redis too. The consumer group's own
commits are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from uuid import uuid4

from streams.redis_store import RedisStore
from streams.worker.exits import end_process
from streams.worker.processor import Event, Processor
from streams.worker.publisher import Publisher

logger = logging.getLogger("turnstile.worker")

_FOLD_EVERY = 1.0  # seconds


class Partitions:
    """The partitions of this process. All methods run in one event loop."""

    def __init__(self, partitions: int, store: RedisStore, publisher: Publisher) -> None:
        self._partitions = partitions
        self._store = store
        self._publisher = publisher
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:12]}"
        self._owned: dict[int, Processor] = {}
        self._claiming = asyncio.Lock()

    async def claim(self, log: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Own exactly these partitions.

        Args:
            log: partition -> (offset of the first record, offset after the last one).

        Returns:
            The offset to fetch next, of every partition that can be decided.
        """
        async with self._claiming:
            for partition in self._owned.keys() - log.keys():
                await self._owned.pop(partition).stop()
            positions: dict[int, int] = {}
            for partition, (start, end) in sorted(log.items()):
                position = await self._claim_one(partition, start, end)
                if position is not None:
                    positions[partition] = position
            return positions

    async def suspend(self) -> None:
        """Decide nothing more: a rebalance begins, and somebody else may claim any partition."""
        async with self._claiming:
            for processor in self._owned.values():
                await processor.suspend()

    async def arrive(self, partition: int, event: Event) -> None:
        """Hand a record to its partition; records of partitions not owned are left alone."""
        processor = self._owned.get(partition)
        if processor is not None:
            await processor.arrive(event)

    async def keep_folded(self) -> None:
        """Fold deltas into pages, for as long as the process runs."""
        while True:
            await asyncio.sleep(_FOLD_EVERY)
            for processor in list(self._owned.values()):
                if processor.wants_fold():
                    await processor.fold()

    async def _claim_one(self, partition: int, start: int, end: int) -> int | None:
        next_offset, before = await self._store.claim(partition, self._owner)
        held = self._owned.get(partition)
        if held is not None:
            position = await held.resume()
            if before == self._owner and next_offset == position:
                return position  # nobody else was here: the state in memory is the state
            await self._owned.pop(partition).stop()
        complaint = _complaint(next_offset, start, end)
        if complaint:
            logger.critical("partition %d stops: %s", partition, complaint)
            return None
        snapshot = await self._store.load(partition)
        if snapshot.owner != self._owner:
            end_process(f"partition {partition}: fenced by {snapshot.owner} while loading")
        processor = Processor.load(
            partition, self._partitions, snapshot, self._owner, self._store, self._publisher
        )
        self._owned[partition] = processor
        processor.start()
        logger.info("partition %d: owned, continues at offset %d", partition, snapshot.next)
        return snapshot.next


def _complaint(next_offset: int, start: int, end: int) -> str | None:
    """Why the log and Redis do not fit together, and what an operator can do about it."""
    if next_offset > end:
        return (
            f"Redis continues at offset {next_offset}, but the log ends at {end}: Kafka lost "
            "records that were decided. Restore the log, or start over under another prefix"
        )
    if next_offset < start:
        return (
            f"Redis continues at offset {next_offset}, but the log begins at {start}: what lies "
            "between is lost. Restore Redis from a newer copy, or start over under another prefix"
        )
    return None
