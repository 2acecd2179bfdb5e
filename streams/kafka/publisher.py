"""Publishes outputs to their topics, in order, and reports when the broker has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import aiokafka

from streams.config import Config
from streams.kafka.aiokafka_settings import connection_settings
from streams.kafka.authentic import RecordSigner
from streams.ledger.ledger import Channel, Output
from streams.records.json_outputs import to_json
from streams.records.signatures import Content

MAX_BATCH_BYTES = 512 * 1024
"""A producer sends one batch of a partition at a time, so small batches would wait for each
other."""


def published_form(config: Config) -> Callable[[bytes], bytes]:
    """Return the function from an output of a ledger to the value of its Kafka record."""
    return to_json if config.outputs == "json" else bytes


class KafkaPublisher:
    """One idempotent producer without transactions. Outputs of partition p go to partition p.

    An output may be published twice, and late: readers drop outputs that they have seen. Odometer
    records must not be late; ``streams.worker.odometer_publisher`` sends them.

    Args:
        signer: signs records; None if they are not signed.
        more: returns further headers of an output. They are not signed.
    """

    def __init__(
        self,
        config: Config,
        signer: RecordSigner | None = None,
        more: Callable[[int, Output], list[tuple[str, bytes]]] | None = None,
    ) -> None:
        self._topics = {channel: config.topic(channel.value) for channel in Channel}
        self._config = config
        self._signer = signer
        self._more = more
        self._published = published_form(config)
        self.producer: Any

    async def start(self) -> None:
        """Connect. The producer belongs to the event loop in which this runs."""
        self.producer = aiokafka.AIOKafkaProducer(
            **connection_settings(self._config),
            acks="all",
            enable_idempotence=True,
            max_batch_size=MAX_BATCH_BYTES,
        )
        await self.producer.start()

    async def stop(self) -> None:
        """Send what is queued, then disconnect."""
        await self.producer.stop()

    async def publish(
        self, partition: int, outputs: Sequence[Output]
    ) -> list[asyncio.Future[object]]:
        """Queue outputs in the order of each topic; a future ends when the broker has its record.

        Outputs of different topics have no order.
        """
        values = [self._published(output.value) for output in outputs]
        headers = self._headers(partition, outputs, values)
        return [
            await self.producer.send(
                self._topics[output.channel],
                value=values[at],
                key=output.key,
                partition=partition,
                headers=headers[at],
            )
            for at, output in enumerate(outputs)
        ]

    def _headers(
        self, partition: int, outputs: Sequence[Output], values: Sequence[bytes]
    ) -> Sequence[list[tuple[str, bytes]] | None]:
        """Return the headers of each output; the outputs of a topic are signed together."""
        headers: list[list[tuple[str, bytes]] | None] = [None] * len(outputs)
        if self._signer is not None:
            for channel, topic in self._topics.items():
                places = [at for at, output in enumerate(outputs) if output.channel is channel]
                contents = [Content(outputs[at].key, values[at]) for at in places]
                for at, signed in zip(
                    places, self._signer.headers(topic, partition, contents), strict=True
                ):
                    headers[at] = signed
        if self._more is not None:
            for at, output in enumerate(outputs):
                headers[at] = [*(headers[at] or ()), *self._more(partition, output)]
        return headers
