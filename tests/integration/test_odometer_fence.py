"""Compaction keeps the newest odometer record of a user, also of repeated and aborted ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiokafka
import msgspec
import pytest
from aiokafka.errors import KafkaError
from kafka import KafkaConsumer, TopicPartition

from streams.config import Config
from streams.kafka.fenced_producer import KafkaFencedProducer
from streams.kafka.results import Origin
from streams.kafka.topics import ODOMETER, SETTINGS, ensure_topics
from streams.ledger.ledger import Channel, Output
from streams.local import KafkaBroker
from streams.records import OdometerRecord, encode, odometer_key
from streams.records.json_outputs import to_msgpack
from streams.worker.odometer_publisher import OdometerPublisher
from tests.waiting import HANGS_AFTER

pytestmark = pytest.mark.fault

ORIGIN = Origin(b"topic of 16 byte", 0)


def odometer(offset: int, user: int = 1) -> Output:
    value = OdometerRecord(
        dataset="d", user=user, partition=0, offset=offset, bound=[float(offset)]
    )
    return Output(Channel.ODOMETER, odometer_key("d", user), encode(value))


class Publishes:
    """The odometer producer of a worker that believes it is the owner."""

    def __init__(self, config: Config) -> None:
        self.producer = KafkaFencedProducer(config, 0)
        self.odometers = OdometerPublisher(0, self.producer, self._is_held, self._is_in_log)
        self.running = asyncio.create_task(self.odometers.run())

    async def send(self, *offsets: int) -> None:
        outputs = [odometer(offset) for offset in offsets]
        sent = await self.odometers.publish(offsets[0], ORIGIN, outputs)
        await asyncio.wait((sent, self.running), return_when=asyncio.FIRST_COMPLETED)
        if self.running.done():
            self.running.result()

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.wait_for(self.odometers.stop(), HANGS_AFTER)

    async def _is_in_log(self, offset: int, origin: Origin) -> bool:
        return origin == ORIGIN

    async def _is_held(self) -> bool:
        return True


def offsets_written(config: Config) -> list[int]:
    """Return the offsets in user 1's odometer records, in the order of the topic."""
    place = TopicPartition(config.topic(ODOMETER), 0)
    consumer = KafkaConsumer(bootstrap_servers=config.kafka, group_id=None)
    try:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        found = []
        while consumer.position(place) < end:
            for record in consumer.poll(timeout_ms=200).get(place, []):
                found.append(
                    msgspec.msgpack.decode(to_msgpack(record.value), type=OdometerRecord).offset
                )
        return found
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def eager_cleaner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Start a broker that compacts as soon as possible."""
    settings = {"log.cleaner.backoff.ms": "100"}
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), settings=settings) as broker:
        yield broker


def test_compaction_keeps_the_newest_of_repeated_and_aborted_odometer_records(
    eager_cleaner: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End a worker within a transaction; its records are aborted and sent again."""
    at_once = {"segment.ms": "200", "min.cleanable.dirty.ratio": "0.0"}
    monkeypatch.setitem(SETTINGS, ODOMETER, {**SETTINGS[ODOMETER], **at_once})
    config = Config(kafka=eager_cleaner.address, prefix="cleaned.", partitions=1)
    ensure_topics(config)

    async def scenario() -> None:
        older = Publishes(config)
        await older.send(1, 2)
        paused: list[aiokafka.AIOKafkaProducer] = []

        async def pause(producer: aiokafka.AIOKafkaProducer) -> None:
            paused.append(producer)
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:  # the worker is paused just before the commit
            patch.setattr(aiokafka.AIOKafkaProducer, "commit_transaction", pause)
            await older.odometers.publish(3, ORIGIN, [odometer(3)])
            while not paused:
                await asyncio.sleep(0.01)
        while 3 not in await asyncio.to_thread(offsets_written, config):
            await asyncio.sleep(0.05)
        newer = Publishes(config)
        await newer.send(3)
        await newer.send(4)
        with pytest.raises(KafkaError):
            await paused[0].commit_transaction()
        await older.stop()
        await newer.stop()
        later = Publishes(config)
        async with asyncio.timeout(HANGS_AFTER):
            # A segment is compacted once a later one has begun.
            while set(found := await asyncio.to_thread(offsets_written, config)) != {4}:
                assert found[-1] == 4
                await later.send(4)
        await later.stop()

    asyncio.run(scenario())
