"""Writes checkpoints to Kafka: a producer with a transactional id a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError

from streams.config import Config
from streams.ledger.ledger import Output
from streams.topics.topics import ODOMETER
from streams.worker.kafka.publisher import MAX_BATCH_BYTES
from streams.worker.ports import NotSent


class KafkaFencedProducer:
    """The producer of one partition's checkpoints. Kafka fences the epochs of its id."""

    def __init__(self, config: Config, partition: int) -> None:
        self._topic = config.topic(ODOMETER)
        self._kafka = config.kafka
        self._partition = partition
        self._producer: Any = None
        self._failed = False

    async def start(self) -> None:
        """Begin a new epoch, which shuts out every earlier one."""
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._kafka,
            transactional_id=f"{self._topic}-{self._partition}",
            max_batch_size=MAX_BATCH_BYTES,
        )
        try:
            await self._producer.start()
        except KafkaError as error:
            raise self._not_sent(error) from error

    async def send(self, outputs: Sequence[Output]) -> None:
        """Send records in one transaction; returns when the broker has them."""
        if self._failed:
            raise NotSent(f"partition {self._partition} of {self._topic}: an earlier send failed")
        try:
            await self._producer.begin_transaction()
            await asyncio.gather(
                *await send_in_batches(self._producer, self._topic, self._partition, outputs)
            )
            await self._producer.commit_transaction()
        except KafkaError as error:
            raise self._not_sent(error) from error

    async def stop(self) -> None:
        """Disconnect; nothing happens if it was never started."""
        if self._producer is not None:
            await self._producer.stop()

    def _not_sent(self, error: KafkaError) -> NotSent:
        self._failed = True
        return NotSent(f"partition {self._partition} of {self._topic}: {error!r}")


async def send_in_batches(
    producer: Any, topic: str, partition: int, outputs: Sequence[Output]
) -> list[asyncio.Future[object]]:
    """Queue many small outputs as ready-made batches, which costs less than one by one."""
    sent: list[asyncio.Future[object]] = []
    batch = producer.create_batch()
    for output in outputs:
        if batch.append(key=output.key, value=output.value, timestamp=None) is None:
            sent.append(await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            batch.append(key=output.key, value=output.value, timestamp=None)
    sent.append(await producer.send_batch(batch, topic, partition=partition))
    return sent
