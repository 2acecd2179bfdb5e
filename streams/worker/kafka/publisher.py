"""Sends outputs to their topics, in order, and says when the broker has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiokafka

from streams.config import Config
from streams.ledger.ledger import Channel, Output
from streams.schemas import MAX_REQUEST_BYTES

MAX_BATCH_BYTES = 512 * 1024
"""A producer has one batch of a partition under way: small ones would wait for each other."""

_MAX_RECORD = MAX_REQUEST_BYTES + 1024 * 1024


class KafkaPublisher:
    """One idempotent, non-transactional producer. Outputs of partition p go to partition p.

    What it sends may come twice, and late: readers drop what they have seen. Checkpoints of the
    odometer must not come late, see ``checkpoints``.
    """

    def __init__(self, config: Config) -> None:
        self._topics = {channel: config.topic(channel.value) for channel in Channel}
        self._kafka = config.kafka
        self.producer: Any

    async def start(self) -> None:
        """Connect. The producer belongs to the event loop in which this runs."""
        self.producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._kafka,
            acks="all",
            enable_idempotence=True,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=_MAX_RECORD,
        )
        await self.producer.start()

    async def stop(self) -> None:
        """Send what is queued, then disconnect."""
        await self.producer.stop()

    async def publish(
        self, partition: int, outputs: Sequence[Output]
    ) -> list[asyncio.Future[object]]:
        """Queue outputs in the order of each topic; a future ends when the broker has its record.

        There is no order between topics.
        """
        return [
            await self.producer.send(
                self._topics[output.channel],
                value=output.value,
                key=output.key,
                partition=partition,
            )
            for output in outputs
        ]
