"""Writes to Kafka in transactions: one producer with its own transactional id per topic partition.

The header ``norms`` of an odometer record states its origin: the topic id of norms, 16 bytes, and
the leader epoch of the record that led to it, 4 bytes, big-endian. A tombstone has no value, so
its header also has the offset of that record, 8 bytes. A worker that signs odometer records trusts
only signed ones.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, ClassVar

import aiokafka
import kafka.errors
from aiokafka.errors import KafkaError

from streams.config import Config
from streams.kafka.aiokafka_settings import connection_settings
from streams.kafka.authentic import RecordSigner, RecordVerifier, header, origin_header
from streams.kafka.kafka_clients import read_backwards
from streams.kafka.publisher import MAX_BATCH_BYTES, published_form
from streams.kafka.results import NotSent, Origin, Sent
from streams.kafka.topics import ODOMETER
from streams.ledger.ledger import Output
from streams.records import tombstone, tombstone_offset
from streams.records.json_outputs import to_msgpack
from streams.records.signatures import ORIGIN, Content

_ORIGIN = struct.Struct(">16si")
_OFFSET = struct.Struct(">q")


class Transactions:
    """Writes to one partition of the topic ``NAME``. Kafka fences the earlier epochs of its id.

    Without a signer nothing is signed; without a verifier all records are trusted.
    """

    NAME: ClassVar[str]

    def __init__(
        self,
        config: Config,
        partition: int,
        signer: RecordSigner | None = None,
        verifier: RecordVerifier | None = None,
    ) -> None:
        self._topic = config.topic(self.NAME)
        self._config = config
        self._partition = partition
        self._signer = signer
        self._verifier = verifier
        self._producer: Any = None
        self._failed = False

    async def start(self) -> None:
        """Begin a new epoch, which fences every earlier one, or raise ``NotSent``."""
        self._producer = aiokafka.AIOKafkaProducer(
            **connection_settings(self._config),
            transactional_id=f"{self._topic}-{self._partition}",
            max_batch_size=MAX_BATCH_BYTES,
        )
        try:
            await self._producer.start()
        except KafkaError as error:
            raise self._not_sent(error) from error

    async def stop(self) -> None:
        """Disconnect; do nothing if the producer was never started."""
        if self._producer is not None:
            await self._producer.stop()
            _hush(self._producer)

    async def _transact(self, queue: Callable[[], Awaitable[Sequence[Awaitable[object]]]]) -> None:
        """Send what ``queue`` queues in one transaction; return when the broker has it."""
        if self._failed:
            raise NotSent(f"partition {self._partition} of {self._topic}: an earlier send failed")
        try:
            await self._producer.begin_transaction()
            await asyncio.gather(*await queue())
            await self._producer.commit_transaction()
        except KafkaError as error:
            raise self._not_sent(error) from error

    def _not_sent(self, error: Exception) -> NotSent:
        self._failed = True
        _hush(self._producer)
        return NotSent(f"partition {self._partition} of {self._topic}: {error!r}")


class KafkaFencedProducer(Transactions):
    """The producer of one partition's odometer records."""

    NAME = ODOMETER

    async def last(self) -> Sent | None:
        """Return the last committed record, see ``FencedProducer``."""
        try:
            return await asyncio.to_thread(self._last)
        except kafka.errors.KafkaError as error:
            raise self._not_sent(error) from error

    def _last(self) -> Sent | None:
        with closing(
            read_backwards(self._config, self._topic, self._partition, self._verifier)
        ) as stretches:
            return _sent(next((record for stretch in stretches for record in stretch[::-1]), None))

    async def send(self, outputs: Sequence[tuple[Origin, Sequence[Output]]]) -> None:
        """Send records in one transaction; return when the broker has them."""
        contents = contents_of(outputs, published_form(self._config))
        place = self._topic, self._partition
        await self._transact(
            lambda: queue_in_batches(self._producer, *place, contents, self._signer)
        )


def _hush(producer: Any) -> None:
    """Retrieve the errors that aiokafka stores in a fenced producer.

    Otherwise Python would log each of them with a traceback when it is collected.
    """
    accumulator = producer._message_accumulator
    batches = [*accumulator._pending_batches, *chain(*accumulator._batches.values())]
    waiters = [producer._txn_manager._transaction_waiter, *(b._drain_waiter for b in batches)]
    for waiter in waiters:
        if waiter is not None and waiter.done() and not waiter.cancelled():
            waiter.exception()


async def queue_in_batches(
    producer: Any,
    topic: str,
    partition: int,
    contents: Sequence[Content],
    signer: RecordSigner | None = None,
) -> list[asyncio.Future[object]]:
    """Queue many small records as complete batches, which is cheaper than one at a time."""
    if signer is None:
        headers = [origin_header(content) for content in contents]
    else:
        headers = signer.headers(topic, partition, contents)
    sent: list[asyncio.Future[object]] = []
    batch = producer.create_batch()
    for content, given in zip(contents, headers, strict=True):
        record = {"key": content.key, "value": content.value, "headers": given}
        if batch.append(**record, timestamp=None) is None:
            sent.append(await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            batch.append(**record, timestamp=None)
    sent.append(await producer.send_batch(batch, topic, partition=partition))
    return sent


def contents_of(
    outputs: Sequence[tuple[Origin, Sequence[Output]]], published: Callable[[bytes], bytes]
) -> list[Content]:
    """Return outputs as Kafka stores them."""
    return [
        _content(output, packed, published)
        for origin, group in outputs
        for packed in [_ORIGIN.pack(*origin)]
        for output in group
    ]


def _content(output: Output, origin: bytes, published: Callable[[bytes], bytes]) -> Content:
    """Return an output as Kafka stores it."""
    offset = tombstone_offset(output.value)
    if offset is None:
        return Content(output.key, published(output.value), origin)
    return Content(output.key, None, origin + _OFFSET.pack(offset))


def _sent(record: Any) -> Sent | None:
    """Return a record as an odometer record with its origin, or None if it states no origin."""
    packed = header(record.headers, ORIGIN) if record else None
    if packed is None:
        return None
    if record.value is None and len(packed) == _ORIGIN.size + _OFFSET.size:
        origin, (offset,) = packed[: _ORIGIN.size], _OFFSET.unpack_from(packed, _ORIGIN.size)
        return Sent(Origin(*_ORIGIN.unpack(origin)), tombstone(offset)) if offset >= 0 else None
    if len(packed) != _ORIGIN.size:
        return None
    return Sent(Origin(*_ORIGIN.unpack(packed)), to_msgpack(record.value or b""))
