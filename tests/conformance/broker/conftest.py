"""Every scenario runs on every broker. Kafka is started for the tests marked `process`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from uuid import uuid4

import pytest

from streams.config import Config
from streams.kafka.fenced_producer import KafkaFencedProducer
from streams.kafka.log import KafkaLog
from streams.kafka.publisher import KafkaPublisher
from streams.kafka.snapshot_producer import KafkaSnapshotTopic
from streams.kafka.topics import Topics
from streams.local import LocalStack
from tests.conformance.broker.bench import PARTITIONS, Bench, KafkaHand, MemoryHand, Scenario
from tests.doubles.memory_broker import MemoryBroker, MemoryClient

BROKERS = ("memory", pytest.param("kafka", marks=pytest.mark.process))


@pytest.fixture(scope="session")
def kafka(servers: LocalStack) -> str:
    return servers.kafka


@pytest.fixture(params=BROKERS)
def bench(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Return what runs a test on topics on which nothing was written yet."""
    if request.param == "memory":
        return on_memory
    address = request.getfixturevalue("kafka")
    return lambda scenario: on_kafka(address, scenario)


def on_memory(scenario: Scenario) -> None:
    broker = MemoryBroker(PARTITIONS)
    client = MemoryClient(broker)

    async def begun() -> None:
        ports = client.look, client.read_log, client
        of_partitions = client.odometer_producer_of, client.snapshots_of
        bench = Bench(*ports, *of_partitions, MemoryHand(broker))
        await scenario(bench)

    asyncio.run(begun())


def on_kafka(address: str, scenario: Scenario) -> None:
    # The outputs of these tests are any bytes, which have no JSON.
    place = {"prefix": f"t{uuid4().hex[:8]}.", "partitions": PARTITIONS, "outputs": "msgpack"}
    config = Config(kafka=address, **place)
    publisher = KafkaPublisher(config)

    async def connected() -> None:
        await publisher.start()
        try:
            await scenario(
                Bench(
                    partial(asyncio.to_thread, topics.look),
                    lambda: KafkaLog(config),
                    publisher,
                    lambda partition: KafkaFencedProducer(config, partition),
                    lambda partition: KafkaSnapshotTopic(config, partition),
                    KafkaHand(config),
                )
            )
        finally:
            await publisher.stop()

    with Topics(config) as topics:
        topics.ensure()
        asyncio.run(connected())
