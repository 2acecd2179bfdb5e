"""All that was published under one prefix, read from the broker."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient

from streams.config import Config
from streams.kafka.security import security
from streams.records.json_outputs import to_msgpack

OUTPUTS = ("halts", "rejects", "odometer")
TOPICS = ("norms", *OUTPUTS)


class Log:
    """All records of the topics of one prefix, read so far."""

    def __init__(self, config: Config) -> None:
        self.records: dict[str, list[tuple[int, int, bytes | None]]] = {t: [] for t in TOPICS}
        self._values: set[tuple[str, int, bytes | None]] = set()
        self._names = {config.topic(topic): topic for topic in TOPICS}
        self._norms = config.topic("norms")
        self._servers = config.kafka.split(",")
        self._security = security(config)
        self._consumer = KafkaConsumer(
            bootstrap_servers=self._servers,
            group_id=None,
            enable_auto_commit=False,
            max_partition_fetch_bytes=16 * 1024 * 1024,
            fetch_max_bytes=64 * 1024 * 1024,
            **self._security,
        )
        self._places = [
            TopicPartition(name, partition)
            for name in self._names
            for partition in sorted(self._consumer.partitions_for_topic(name))
        ]
        self._consumer.assign(self._places)
        self._consumer.seek_to_beginning(*self._places)

    def refresh(self, topics: Collection[str] = TOPICS) -> None:
        """Read these topics up to the ends that they have now."""
        others = [place for place in self._places if self._names[place.topic] not in topics]
        ends = {place: end for place, end in self.ends().items() if place not in others}
        self._consumer.pause(*others)
        while any(self._consumer.position(place) < end for place, end in ends.items()):
            for place, records in self._consumer.poll(timeout_ms=200).items():
                topic = self._names[place.topic]
                # Outputs as the ledger made them; `test_json_outputs` compares the published JSON.
                made = to_msgpack if topic != "norms" else bytes
                for record in records:
                    value = record.value and made(record.value)
                    self.records[topic].append((place.partition, record.offset, value))
                    self._values.add((topic, place.partition, value))
        self._consumer.resume(*others)

    def has(self, topic: str, partition: int, value: bytes) -> bool:
        """Whether such a record has been read."""
        return (topic, partition, value) in self._values

    def ends(self) -> dict[TopicPartition, int]:
        """The offset after the last record, of every partition."""
        return self._consumer.end_offsets(self._places)

    def topic_id(self) -> bytes:
        """What Kafka knows `norms` by; another topic of this name has another one."""
        admin = KafkaAdminClient(bootstrap_servers=self._servers, **self._security)
        try:
            (described,) = admin.describe_topics([self._norms])
        finally:
            admin.close()
        return UUID(str(described["topic_id"])).bytes

    def norms_ends(self) -> dict[int, int]:
        """The same of `norms`, by partition."""
        ends = self.ends().items()
        return {place.partition: end for place, end in ends if self._names[place.topic] == "norms"}

    def close(self) -> None:
        self._consumer.close()
