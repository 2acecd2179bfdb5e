"""The snapshots of a partition in Kafka: written in transactions, read in another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from streams.config import Config
from streams.kafka.authentic import RecordSigner, RecordVerifier
from streams.kafka.fenced_producer import Transactions, queue_in_batches
from streams.kafka.results import STOP_WITHIN, LogUnavailable, NotSent
from streams.kafka.snapshot_reader import SnapshotsUnavailable, read_snapshot
from streams.kafka.topics import SNAPSHOTS
from streams.records.signatures import Content
from streams.store.snapshot import Record, Snapshot


class KafkaSnapshotTopic(Transactions):
    """One partition of the topic snapshots."""

    NAME = SNAPSHOTS

    def __init__(
        self,
        config: Config,
        partition: int,
        signer: RecordSigner | None = None,
        verifier: RecordVerifier | None = None,
    ) -> None:
        super().__init__(config, partition, signer, verifier)
        self._closed = asyncio.Event()

    async def read(self, with_contents: bool) -> Snapshot | None:
        """Read and verify the last snapshot in another thread."""
        try:
            return await asyncio.to_thread(
                read_snapshot, self._config, self._partition, self._verifier, with_contents
            )
        except SnapshotsUnavailable as error:
            raise LogUnavailable(str(error)) from error

    async def start(self) -> None:
        """Begin a new epoch, also after a failure."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stop(), STOP_WITHIN)
        self._failed = False
        self._closed = asyncio.Event()
        await super().start()

    async def send(self, records: Sequence[Record]) -> None:
        """Send records in one transaction; return when the broker has them."""
        contents = [Content(key, value) for key, value in records]
        place = self._topic, self._partition
        sending = asyncio.create_task(
            self._transact(lambda: queue_in_batches(self._producer, *place, contents, self._signer))
        )
        closing = asyncio.create_task(self._closed.wait())
        try:
            await asyncio.wait((sending, closing), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise NotSent(f"partition {self._partition} of {self._topic}: it was released")
            await sending
        finally:
            sending.cancel()
            closing.cancel()

    async def stop(self) -> None:
        """Disconnect; the next epoch aborts a transaction under way."""
        self._closed.set()
        await super().stop()
