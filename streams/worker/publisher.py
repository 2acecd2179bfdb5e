"""Sends outputs to their topics, in order, and says when the broker has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiokafka

from streams.config import Config
from streams.ledger import Channel, Output
from streams.schemas import MAX_REQUEST_BYTES

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
            max_request_size=_MAX_RECORD,
        )
        await self._producer.start()

    async def stop(self) -> None:
        """Send what is queued, then disconnect."""
        await self._producer.stop()

    async def publish(
        self, partition: int, outputs: Sequence[Output]
    ) -> list[asyncio.Future[object]]:
        """Queue outputs in order; each future ends when the broker has its record."""
        sent: list[asyncio.Future[object]] = []
        start = 0
        while start < len(outputs):
            # A run of odometer checkpoints goes out as ready-made batches: they are many.
            stop = start
            while stop < len(outputs) and outputs[stop].channel is Channel.ODOMETER:
                stop += 1
            if stop > start:
                sent += await self._publish_batches(partition, outputs[start:stop])
                start = stop
            else:
                output = outputs[start]
                topic = self._topics[output.channel]
                sent.append(
                    await self._producer.send(
                        topic, value=output.value, key=output.key, partition=partition
                    )
                )
                start += 1
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
