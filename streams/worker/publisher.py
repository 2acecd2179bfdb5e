"""Sends outputs to their topics, in order, and says when the broker has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiokafka

from streams.config import Config
from streams.ledger import Channel, Output
from streams.schemas import MAX_REQUEST_BYTES

_BATCH_BYTES = 512 * 1024
"""A producer has one batch of a partition under way: small ones would wait for each other."""

_MAX_RECORD = MAX_REQUEST_BYTES + 1024 * 1024


class Publisher:
    """One idempotent, non-transactional producer. Outputs of partition p go to partition p."""

    def __init__(self, config: Config) -> None:
        self._topics = {channel: config.topic(channel.value) for channel in Channel}
        self._kafka = config.kafka
        self._producer: aiokafka.AIOKafkaProducer

    async def start(self) -> None:
        """Connect. The producer belongs to the event loop in which this runs."""
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._kafka,
            acks="all",
            enable_idempotence=True,
            max_batch_size=_BATCH_BYTES,
            max_request_size=_MAX_RECORD,
        )
        await self._producer.start()

    async def stop(self) -> None:
        """Send what is queued, then disconnect."""
        await self._producer.stop()

    async def publish(
        self, partition: int, outputs: Sequence[Output]
    ) -> list[asyncio.Future[object]]:
        """Queue outputs in the order of each topic; a future ends when the broker has its record.

        Odometer checkpoints are many, so they go out as ready-made batches. There is no order
        between topics.
        """
        checkpoints = [output for output in outputs if output.channel is Channel.ODOMETER]
        sent: list[asyncio.Future[object]] = []
        for output in outputs:
            if output.channel is not Channel.ODOMETER:
                topic = self._topics[output.channel]
                sent.append(
                    await self._producer.send(
                        topic, value=output.value, key=output.key, partition=partition
                    )
                )
        if checkpoints:
            sent += await self._publish_batches(partition, checkpoints)
        return sent

    async def _publish_batches(
        self, partition: int, outputs: Sequence[Output]
    ) -> list[asyncio.Future[object]]:
        topic = self._topics[Channel.ODOMETER]
        sent: list[asyncio.Future[object]] = []
        batch = self._producer.create_batch()
        for output in outputs:
            if batch.append(key=output.key, value=output.value, timestamp=None) is None:
                sent.append(await self._producer.send_batch(batch, topic, partition=partition))
                batch = self._producer.create_batch()
                batch.append(key=output.key, value=output.value, timestamp=None)
        sent.append(await self._producer.send_batch(batch, topic, partition=partition))
        return sent
