"""Reads the content of the portal: the topics odometer and halts, and the policies of datasets.

Until both topics have been read to the end that they had at the start, the portal shows no number,
because the rest of a topic may report more spending.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from functools import partial
from typing import Final

from kafka import KafkaConsumer, TopicPartition

from streams.config import Config
from streams.kafka.authentic import verifier_of
from streams.kafka.kafka_clients import new_admin, new_reader
from streams.kafka.topics import find_topics
from streams.ledger.outputs import Channel
from streams.operations.status import DatasetStatus, datasets_of, read_glances
from streams.sdk.kafka_connection import ANSWERS_WITHIN, believing, reaching_kafka
from streams.web.sources import NOT_YET, Source, SourceThreads
from streams.web.user_records import RecordDatabase

_CHECK_INTERVAL: Final = 5.0  # seconds
_POLL_MS: Final = 200


class RecordReader(SourceThreads):
    """Reads from ``start`` to ``close``.

    Attributes:
        records: of all users.
        datasets: the known datasets by name.
        as_of: all records before this time were read, in seconds since 1970; None until then.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.records = RecordDatabase()
        self.datasets: dict[str, DatasetStatus] = {}
        self._kafka, self._redis = (Source(name, is_logged=True) for name in ("Kafka", "Redis"))
        self.as_of: float | None = None

    def start(self) -> None:
        """Start reading."""
        self.run(partial(self.repeat, self._kafka, self._read))

    def close(self) -> None:
        """Stop reading, and delete what was read."""
        super().close()
        self.records.close()

    @property
    def is_away(self) -> bool:
        """Return whether Kafka did not answer the last question."""
        return self._kafka.problem not in (None, NOT_YET)

    def _read(self) -> None:
        """Read the topics from their beginning until ``close``."""
        with ExitStack() as opened:
            opened.enter_context(reaching_kafka(self.config))
            with closing(new_admin(self.config)) as admin:
                topics = find_topics(admin, self.config)
            is_believed = believing(verifier_of(self.config, topics.topic))
            channels = {
                TopicPartition(self.config.topic(channel.value), partition): channel
                for channel in (Channel.ODOMETER, Channel.HALTS)
                for partition in range(topics.partitions)
            }
            # If an offset no longer exists, raise, and read everything again instead of skipping.
            consumer = new_reader(self.config, auto_offset_reset="none")
            opened.callback(consumer.close)
            consumer.assign(list(channels))
            starts = consumer.beginning_offsets(list(channels))
            for place, start in starts.items():
                consumer.seek(place, start)
            self.records.clear()
            ends: dict[TopicPartition, int] | None = None
            asked = 0.0
            while not self.closed.is_set():
                now = time.time()
                if now > asked + _CHECK_INTERVAL:
                    found = self._redis.ask(partial(read_glances, self.config, topics.partitions))
                    self.datasets |= datasets_of(found or ())
                    # A poll does not report that the brokers are away, and this question does.
                    ends = self._kafka.ask(partial(self._ends_of, consumer))
                    asked = now if ends else asked
                for place, records in consumer.poll(timeout_ms=_POLL_MS).items():
                    self.records.add(channels[place], records, is_believed)
                if ends:
                    total = sum(ends[place] - starts[place] for place in ends)
                    left = sum(max(0, ends[place] - consumer.position(place)) for place in ends)
                    if self.records.done < 1.0:
                        self.records.done = 1.0 - left / total if left else 1.0
                    self.as_of = self.as_of if left else asked

    def _ends_of(self, consumer: KafkaConsumer) -> dict[TopicPartition, int]:
        with reaching_kafka(self.config):
            places = list(consumer.assignment())
            ends: dict[TopicPartition, int] = consumer.end_offsets(
                places, timeout_ms=int(1000 * ANSWERS_WITHIN)
            )
            return ends
