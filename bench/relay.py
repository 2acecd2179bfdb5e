"""The no-op baseline of latency between two topics: every record comes back as it is."""

from __future__ import annotations

import argparse
import asyncio

import aiokafka


async def relay(kafka: str, source: str, target: str, partitions: int) -> None:
    """Copy records from one topic to the same partition of another, for ever."""
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=kafka, acks="all", enable_idempotence=True
    )
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=kafka, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await producer.start()
    await consumer.start()
    consumer.assign([aiokafka.TopicPartition(source, number) for number in range(partitions)])
    async for record in consumer:
        await producer.send(target, value=record.value, partition=record.partition)


def main() -> None:
    """Run until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    options = parser.parse_args()
    asyncio.run(relay(options.kafka, options.source, options.target, options.partitions))


if __name__ == "__main__":
    main()
