"""Writes the snapshots of a partition to Kafka, in transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from streams.kafka.fenced_producer import Transactions, queue_in_batches
from streams.kafka.results import STOP_WITHIN, NotSent
from streams.kafka.snapshot_topic import read_snapshot
from streams.kafka.topics import SNAPSHOTS
from streams.records.signatures import Content
from streams.store.snapshot import Record, Snapshot


class KafkaSnapshotTopic(Transactions):
    """One partition of the topic snapshots."""

    NAME = SNAPSHOTS

    _sending: asyncio.Task[None] | None = None
    _is_released = False

    async def read(self, with_contents: bool) -> Snapshot | None:
        """Read and verify the last snapshot in another thread."""
        return await asyncio.to_thread(
            read_snapshot, self._config, self._partition, self._verifier, with_contents
        )

    async def start(self) -> None:
        """Begin a new epoch, also after a failure."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stop(), STOP_WITHIN)
        self._failed = self._is_released = False
        await super().start()

    async def send(self, records: Sequence[Record]) -> None:
        """Send records in one transaction; return when the broker has them."""
        contents = [Content(key, value) for key, value in records]
        place = self._topic, self._partition
        self._sending = asyncio.create_task(
            self._transact(lambda: queue_in_batches(self._producer, *place, contents, self._signer))
        )
        try:
            await self._sending
        except asyncio.CancelledError:
            if not self._is_released:
                raise
            raise NotSent(
                f"partition {self._partition} of {self._topic}: it was released"
            ) from None

    async def stop(self) -> None:
        """Disconnect; the next epoch aborts a transaction under way."""
        # A partition is released while its snapshot is sent: without this, the writer would wait.
        self._is_released = True
        if self._sending is not None:
            self._sending.cancel()
        await super().stop()
