"""A broker under test, as a worker reaches it, and a hand that does what other clients do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import aiokafka
from kafka import TopicPartition

from streams.config import Config
from streams.kafka.fenced_producer import KafkaFencedProducer, queue_in_batches
from streams.kafka.kafka_clients import new_admin
from streams.kafka.results import Origin, TopicsSeen
from streams.kafka.snapshot_producer import KafkaSnapshotTopic
from streams.kafka.topics import NORMS, ODOMETER, SNAPSHOTS
from streams.ledger.ledger import Channel, Output
from streams.records.signatures import Content
from streams.store.snapshot import Record as SnapshotRecord
from streams.worker.ports import FencedProducer, Log, Publisher, SnapshotTopic
from tests.doubles.memory_broker import MemoryBroker, MemoryClient

PARTITIONS = 3

Record = tuple[bytes | None, bytes | None]


@dataclass
class MemoryHand:
    """Write as other producers and as operators do, and read as any reader does."""

    broker: MemoryBroker

    async def append(self, partition: int, *values: bytes | None) -> None:
        """Write records to norms."""
        for value in values:
            self.broker.norms(partition).append(value)

    async def append_in_transaction(self, partition: int, value: bytes, commits: bool) -> None:
        """Write a record to norms, and the marker that ends its transaction."""
        await self.append(partition, value)
        self.broker.norms(partition).mark()

    async def delete_before(self, partition: int, offset: int) -> None:
        """Let the log of a partition begin later."""
        self.broker.norms(partition).delete_before(offset)

    async def abort_odometers(self, partition: int, *values: bytes) -> None:
        """Send odometer records as an owner does that dies before it commits them."""
        dies = MemoryClient(self.broker).odometer_producer_of(partition)
        await dies.start()
        for value in values:
            dies._append(Origin(bytes(16), 0), Output(Channel.ODOMETER, b"user", value))

    async def abort_snapshot(self, partition: int, records: Sequence[SnapshotRecord]) -> None:
        """Send a snapshot as an owner does that dies before it commits the transaction."""
        dies = MemoryClient(self.broker).snapshots_of(partition)
        await dies.start()
        for key, value in records:
            dies._write(value, key)

    async def published(self, channel: Channel, partition: int) -> list[Record]:
        """Key and value of all records of a topic."""
        return list(self.broker.outputs(channel, partition).records.values())

    async def end_of(self, topic: str, partition: int) -> int:
        """The offset of the next record of a topic."""
        return self.broker.of(topic, partition).end


@dataclass
class KafkaHand:
    config: Config

    async def append(self, partition: int, *values: bytes | None) -> None:
        topic = self.config.topic(NORMS)
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=self.config.kafka) as producer:
            for value in values:
                await producer.send_and_wait(topic, value, b"key", partition)

    async def append_in_transaction(self, partition: int, value: bytes, commits: bool) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.config.kafka, transactional_id=f"{self.config.prefix}other"
        )
        topic = self.config.topic(NORMS)
        place = aiokafka.TopicPartition(topic, partition)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.config.kafka)
        async with producer, consumer:
            await producer.begin_transaction()
            sent = await producer.send_and_wait(topic, value, b"key", partition)
            await (producer.commit_transaction() if commits else producer.abort_transaction())
            # The broker answers before it has written the marker.
            while (await consumer.end_offsets([place]))[place] < sent.offset + 2:
                await asyncio.sleep(0)

    async def delete_before(self, partition: int, offset: int) -> None:
        def delete() -> None:
            admin = new_admin(self.config)
            admin.delete_records({TopicPartition(self.config.topic(NORMS), partition): offset})
            admin.close()

        await asyncio.to_thread(delete)

    async def abort_odometers(self, partition: int, *values: bytes) -> None:
        dies = KafkaFencedProducer(self.config, partition)
        await dies.start()
        producer, topic = dies._producer, self.config.topic(ODOMETER)
        contents = [Content(b"user", value, origin=bytes(20)) for value in values]
        await producer.begin_transaction()
        await asyncio.gather(*await queue_in_batches(producer, topic, partition, contents))
        await producer.abort_transaction()
        await dies.stop()

    async def abort_snapshot(self, partition: int, records: Sequence[SnapshotRecord]) -> None:
        dies = KafkaSnapshotTopic(self.config, partition)
        await dies.start()
        producer, topic = dies._producer, self.config.topic(SNAPSHOTS)
        contents = [Content(key, value) for key, value in records]
        await producer.begin_transaction()
        await asyncio.gather(*await queue_in_batches(producer, topic, partition, contents))
        await producer.abort_transaction()
        await dies.stop()

    async def published(self, channel: Channel, partition: int) -> list[Record]:
        place = aiokafka.TopicPartition(self.config.topic(channel.value), partition)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.config.kafka)
        async with consumer:
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            end = (await consumer.end_offsets([place]))[place]
            found: list[Record] = []
            while await consumer.position(place) < end:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [(record.key, record.value) for record in records]
            return found

    async def end_of(self, topic: str, partition: int) -> int:
        place = aiokafka.TopicPartition(self.config.topic(topic), partition)
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=self.config.kafka) as consumer:
            return (await consumer.end_offsets([place]))[place]


@dataclass
class Bench:
    """A broker on which nothing was written yet."""

    look: Callable[[], Awaitable[TopicsSeen]]
    read_log: Callable[[], AbstractAsyncContextManager[Log]]
    publisher: Publisher
    odometer_producer_of: Callable[[int], FencedProducer]
    snapshots_of: Callable[[int], SnapshotTopic]
    hand: MemoryHand | KafkaHand

    async def publish(self, partition: int, outputs: Sequence[Output]) -> None:
        """Publish, and wait until the broker has them."""
        await asyncio.gather(*await self.publisher.publish(partition, outputs))


Scenario = Callable[[Bench], Awaitable[None]]
