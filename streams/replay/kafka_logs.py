"""The old and the new log of a repartition, in Kafka."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kafka.errors import KafkaError

from streams.config import Config
from streams.kafka.authentic import record_signer_of, verifier_of
from streams.kafka.clients import new_producer
from streams.kafka.fenced_producer import KafkaFencedProducer
from streams.kafka.results import LogUnavailable, NotSent
from streams.kafka.security import explained
from streams.kafka.seen import TopicsUnavailable
from streams.kafka.snapshot_topic import KafkaSnapshotTopic
from streams.kafka.topics import NORMS, Topics
from streams.ledger.repartition import Imported
from streams.records.signatures import RequestSigner
from streams.replay.archive import Archive, UnreadableService
from streams.replay.repartition import Logs, install
from streams.replay.service import KafkaArchive


class KafkaLogs(Logs):
    """Both logs are on one Kafka cluster.

    Args:
        config: of the old service.
        prefix: of the new one.

    Raises:
        UnreadableService: no broker, or no old log.
        ConfigurationError: a key cannot be used.
    """

    def __init__(self, config: Config, prefix: str) -> None:
        self.old: Archive = KafkaArchive(config)
        self._config = config
        self._new = replace(config, prefix=prefix)
        self._key = RequestSigner(config.request_key) if config.request_key else None

    def new(self) -> Archive | None:
        """Return the topics of the new log; None if they do not exist."""
        try:
            with Topics(self._new) as topics:
                exists = topics.look().partitions > 0
        except TopicsUnavailable as error:
            raise UnreadableService(str(error)) from error
        return KafkaArchive(self._new) if exists else None

    def create(self, partitions: int) -> Archive:
        """Create the topics of the new log, as far as they do not exist."""
        try:
            with Topics(replace(self._new, partitions=partitions)) as topics:
                topics.ensure()
        except TopicsUnavailable as error:
            raise UnreadableService(str(error)) from error
        return KafkaArchive(self._new)

    def begin(self, partition: int, record: bytes) -> None:
        """Append a record to a partition of the new log."""
        self._append(self._new, partition, record)

    def retire(self, partition: int, record: bytes) -> None:
        """Append a request to a partition of the old log, signed if there is a key for it."""
        if self._key is not None:
            record = self._key.sign(self.old.topic, partition, record)
        self._append(self._config, partition, record)

    def install(self, partition: int, state: Imported) -> None:
        """Write the odometer records and the snapshot of a partition, signed as a worker does."""
        log = state.ledger.state.topic
        signing = record_signer_of(self._new, log), verifier_of(self._new, log)
        place = self._new, partition, *signing
        try:
            asyncio.run(install(state, KafkaFencedProducer(*place), KafkaSnapshotTopic(*place)))
        except (LogUnavailable, NotSent) as error:
            raise UnreadableService(f"Kafka at {self._new.kafka}: {error}") from error

    def _append(self, config: Config, partition: int, record: bytes) -> None:
        topic = config.topic(NORMS)
        try:
            producer = new_producer(config)
            try:
                producer.send(topic, value=record, partition=partition).get(config.timeout)
            finally:
                producer.close()
        except KafkaError as error:
            problem = f"partition {partition} of {topic}: {explained(error)}"
            raise UnreadableService(problem) from error
