"""The snapshots of a partition in Kafka: written in transactions, read backwards from the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing, suppress

from kafka.errors import KafkaError

from streams.config import Config, Unavailable
from streams.kafka.authentic import RecordVerifier
from streams.kafka.fenced_producer import Transactions, queue_in_batches
from streams.kafka.kafka_clients import read_backwards
from streams.kafka.results import STOP_WITHIN, LogUnavailable, NotSent
from streams.kafka.topics import SNAPSHOTS
from streams.records.signatures import Content
from streams.store.snapshot import Record, Snapshot, UnusableSnapshot, find_last

_ATTEMPTS = 3


class SnapshotsUnavailable(Unavailable):
    """Kafka does not answer."""


def read_snapshot(
    config: Config, partition: int, verifier: RecordVerifier | None, with_contents: bool = True
) -> Snapshot | None:
    """Return the last snapshot of a partition, verified; None if no snapshot was ever written.

    Kafka may compact the snapshot away while it is read, because a newer one was written. Then the
    newer one is read.

    Args:
        verifier: skips records without a worker's signature; None accepts all records.
        with_contents: whether to read the chunks, or only the manifest.

    Raises:
        UnusableSnapshot: the snapshot is incomplete or damaged.
        SnapshotsUnavailable: Kafka does not answer.
    """
    for attempt in range(_ATTEMPTS):
        try:
            with closing(
                read_backwards(config, config.topic(SNAPSHOTS), partition, verifier)
            ) as stretches:
                records = ([(r.key or b"", r.value) for r in stretch] for stretch in stretches)
                return find_last(records, with_contents)
        except UnusableSnapshot:
            if attempt == _ATTEMPTS - 1:
                raise
        except KafkaError as error:
            topic = config.topic(SNAPSHOTS)
            raise SnapshotsUnavailable(
                f"cannot read partition {partition} of {topic}: {error!r}"
            ) from error
    raise AssertionError("an attempt returns or raises")


class KafkaSnapshotTopic(Transactions):
    """One partition of the topic snapshots."""

    NAME = SNAPSHOTS

    _sending: asyncio.Task[None] | None = None
    _is_released = False

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
