"""Creates kafka-python clients with this project's settings for login, timeouts and batches."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.consumer.fetcher import ConsumerRecord, Fetcher
from kafka.errors import CorruptRecordError, KafkaError, KafkaTimeoutError
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch

from streams.config import Config
from streams.kafka.admittance import check_admittance
from streams.kafka.authentic import RecordVerifier
from streams.kafka.batches import EventBatch, FetchedBatches, RecordBatch
from streams.kafka.results import NoBroker, TopicsUnavailable
from streams.kafka.security import explained, security
from streams.records import MAX_ANSWER_BYTES

_MAX_RECORD = MAX_ANSWER_BYTES + 1024 * 1024
_BROKER_WITHIN = 7.0
"""Seconds for which ``new_admin`` looks for a broker, to which the client adds up to three. It asks
the first question of most commands. The setting ``timeout`` is for decisions, and much longer."""
_FETCH_BYTES = 16 * 1024 * 1024
_FIRST_STRETCH, _LONGEST_STRETCH = 64, 8192  # offsets
_POLL_MS = 500
_UNMEASURED: Mapping[str, Any] = {"metrics_enabled": False}
"""The metrics of the clients are not used, and take a tenth of the time of a charge."""


def _connection(config: Config) -> dict[str, Any]:
    return {
        "bootstrap_servers": config.kafka.split(","),
        "bootstrap_timeout_ms": int(1000 * config.timeout),
        **security(config),
    }


def new_admin(config: Config) -> KafkaAdminClient:
    """Return a client that creates and describes topics. Every command creates this client first.

    Raises:
        NotAdmitted: the broker does not accept the login or the encryption.
        NoBroker: no broker answers.
    """
    check_admittance(config)
    within = replace(config, timeout=min(config.timeout, _BROKER_WITHIN))
    try:
        return KafkaAdminClient(**_connection(within))
    except KafkaTimeoutError as error:
        raise NoBroker(
            f"no Kafka broker answers at {config.kafka}. Start it (`turnstile up` starts one on "
            "this machine), or set TURNSTILE_KAFKA to its address"
        ) from error


@contextmanager
def administering(config: Config, purpose: str) -> Iterator[KafkaAdminClient]:
    """Open an admin client for a purpose, which the text of a ``TopicsUnavailable`` names."""
    try:
        with closing(new_admin(config)) as admin:
            yield admin
    except KafkaError as error:
        raise TopicsUnavailable(
            f"cannot {purpose} at {config.kafka}: {explained(error)}"
        ) from error


def new_reader(config: Config, *, of_events: bool = False, **settings: Any) -> KafkaConsumer:
    """Return a consumer without a group: it is assigned partitions and never commits.

    It reads batches with ``streams.kafka.batches``, whatever codecs kafka-python has. Other
    consumers of the program are not affected.

    ``of_events``: it reads a topic of events, in batches of many users.
    """
    settings = {"max_partition_fetch_bytes": _MAX_RECORD, **_UNMEASURED, **settings}
    consumer = KafkaConsumer(
        group_id=None, enable_auto_commit=False, **_connection(config), **settings
    )
    kind = _EventBatch if of_events else _Batch
    consumer._fetcher.PartitionRecords = partial(_PartitionRecords, kind)
    return consumer


def read_backwards(
    config: Config, topic: str, partition: int, verifier: RecordVerifier | None
) -> Generator[list[ConsumerRecord], None, None]:
    """Yield ever longer stretches of the committed records of a partition, the last one first.

    The verifier skips records without a trusted signature; None accepts all records.
    """
    place = TopicPartition(topic, partition)
    reader = new_reader(
        config,
        isolation_level="read_committed",
        max_partition_fetch_bytes=_FETCH_BYTES,
        fetch_max_bytes=_FETCH_BYTES,
    )
    with closing(reader) as consumer:
        consumer.assign([place])
        begin = consumer.beginning_offsets([place])[place]
        end, length = consumer.end_offsets([place])[place], _FIRST_STRETCH
        while end > begin:
            first = max(begin, end - length)
            consumer.seek(place, first)
            stretch: list[ConsumerRecord] = []
            # The position passes the ends of transactions and records of aborted ones, too.
            while consumer.position(place) < end:
                stretch += consumer.poll(timeout_ms=_POLL_MS).get(place, ())
            yield [
                record
                for record in stretch
                if record.offset < end
                and (
                    verifier is None
                    or verifier.admits(topic, partition, (record.key, record.value), record.headers)
                )
            ]
            end, length = first, min(_LONGEST_STRETCH, 4 * length)


class _Batch(RecordBatch):
    """A batch in the interface of kafka-python's fetcher."""

    magic = 2

    def has_producer_id(self) -> bool:
        """Return whether the producer is idempotent or transactional."""
        return bool(self.producer_id >= 0)

    def __iter__(self) -> Iterator[Any]:
        for record in super().__iter__():
            size = 1 + len(record.key or b"") + len(record.value or b"")
            yield DefaultRecord(size, *record[:-1])


class _EventBatch(_Batch, EventBatch):
    """The same for events."""


class _PartitionRecords(Fetcher.PartitionRecords):
    """The records of one fetch from one partition."""

    def __init__(
        self, kind: type[RecordBatch], offset: int, tp: Any, records: Any, **settings: Any
    ) -> None:
        batches = FetchedBatches(records._buffer, kind, DefaultRecordBatch, CorruptRecordError)
        super().__init__(offset, tp, batches, **settings)


def new_producer(config: Config, linger_ms: int = 0) -> KafkaProducer:
    """Return an idempotent producer. The control records of transactions would leave gaps."""
    return KafkaProducer(
        acks="all",
        enable_idempotence=True,
        linger_ms=linger_ms,
        max_request_size=_MAX_RECORD,
        **_UNMEASURED,
        **_connection(config),
    )
