"""The snapshots of a partition in Kafka: written in transactions, read backwards from the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from streams.config import Config, Unavailable
from streams.kafka.authentic import RecordSigner, RecordVerifier
from streams.kafka.fenced_producer import Transactions, queue_in_batches
from streams.kafka.kafka_clients import new_reader
from streams.kafka.results import STOP_WITHIN, LogUnavailable, NotSent
from streams.kafka.topics import SNAPSHOTS
from streams.records.signatures import Content
from streams.store.snapshot import Record, Snapshot, UnusableSnapshot, find_last

_FIRST_STRETCH, _LONGEST_STRETCH = 64, 8192  # offsets
_ATTEMPTS = 3
_FETCH_BYTES = 16 * 1024 * 1024
_POLL_MS = 500


class SnapshotsUnavailable(Unavailable):
    """Kafka does not answer."""


def read_snapshot(
    config: Config, partition: int, verifier: RecordVerifier | None, with_contents: bool = True
) -> Snapshot | None:
    """Return the last snapshot of a partition, verified; None if no snapshot was ever written.

    Kafka may compact the snapshot away while it is read, because a newer one was written. Then the
    newer one is read.

    Args:
        config: the settings with the brokers.
        partition: the number of the partition.
        verifier: skips records without a worker's signature; None accepts all records.
        with_contents: whether to read the chunks, or only the manifest.

    Raises:
        UnusableSnapshot: the snapshot is incomplete or damaged.
        SnapshotsUnavailable: Kafka does not answer.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return _read(config, partition, verifier, with_contents)
        except UnusableSnapshot:
            if attempt == _ATTEMPTS - 1:
                raise
        except KafkaError as error:
            topic = config.topic(SNAPSHOTS)
            raise SnapshotsUnavailable(
                f"cannot read partition {partition} of {topic}: {error!r}"
            ) from error
    raise AssertionError("an attempt returns or raises")


def _read(
    config: Config, partition: int, verifier: RecordVerifier | None, with_contents: bool
) -> Snapshot | None:
    place = TopicPartition(config.topic(SNAPSHOTS), partition)
    consumer = new_reader(
        config,
        isolation_level="read_committed",
        max_partition_fetch_bytes=_FETCH_BYTES,
        fetch_max_bytes=_FETCH_BYTES,
    )
    try:
        consumer.assign([place])
        return find_last(_stretches(consumer, place, verifier), with_contents)
    finally:
        consumer.close()


def _stretches(
    consumer: KafkaConsumer, place: TopicPartition, verifier: RecordVerifier | None
) -> Iterator[Iterator[Record]]:
    """Yield ever longer stretches of the accepted records, the last one first."""
    begin = consumer.beginning_offsets([place])[place]
    end, length = consumer.end_offsets([place])[place], _FIRST_STRETCH
    while end > begin:
        first = max(begin, end - length)
        yield _stretch(consumer, place, first, end, verifier)
        end, length = first, min(_LONGEST_STRETCH, 4 * length)


def _stretch(
    consumer: KafkaConsumer,
    place: TopicPartition,
    first: int,
    end: int,
    verifier: RecordVerifier | None,
) -> Iterator[Record]:
    """Yield the accepted records from an offset to another, in order."""
    consumer.seek(place, first)
    while consumer.position(place) < end:
        for record in consumer.poll(timeout_ms=_POLL_MS).get(place, ()):
            content = record.key, record.value
            if record.offset < end and (
                verifier is None
                or verifier.admits(place.topic, place.partition, content, record.headers)
            ):
                yield record.key or b"", record.value


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
