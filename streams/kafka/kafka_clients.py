"""Creates kafka-python clients with this project's settings for login, timeouts and batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError, KafkaError, KafkaTimeoutError
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch

from streams.config import Config
from streams.kafka.admittance import check_admittance
from streams.kafka.batches import CorruptBatch, EventBatch, FetchedBatches, RecordBatch
from streams.kafka.results import NoBroker, TopicsUnavailable
from streams.kafka.security import explained, security
from streams.records import MAX_ANSWER_BYTES

_MAX_RECORD = MAX_ANSWER_BYTES + 1024 * 1024
_BROKER_WITHIN = 7.0
"""Seconds for which ``new_admin`` looks for a broker, to which the client adds up to three. It asks
the first question of most commands. The setting ``timeout`` is for decisions, and much longer."""
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
    """Open an admin client for a purpose, which the text of an error names.

    Raises:
        TopicsUnavailable: no broker answers, or this user lacks the right.
    """
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

    Args:
        config: the settings, with the address of Kafka.
        of_events: whether it reads a topic of events, in batches of many users.
        settings: of the client.
    """
    settings = {"max_partition_fetch_bytes": _MAX_RECORD, **_UNMEASURED, **settings}
    consumer = KafkaConsumer(
        group_id=None, enable_auto_commit=False, **_connection(config), **settings
    )
    consumer._fetcher.PartitionRecords = _PartitionEvents if of_events else _PartitionRecords
    return consumer


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

    batch: type[RecordBatch] = _Batch

    def __init__(self, fetch_offset: int, tp: Any, records: Any, **settings: Any) -> None:
        batches = FetchedBatches(records._buffer, partial(_batch_of, self.batch))
        super().__init__(fetch_offset, tp, batches, **settings)


class _PartitionEvents(_PartitionRecords):
    """The events of one fetch from one partition."""

    batch = _EventBatch


def _batch_of(kind: type[RecordBatch], raw: memoryview) -> Any:
    try:
        batch = kind(raw)
    except CorruptBatch as corrupt:
        raise CorruptRecordError(str(corrupt)) from corrupt
    return DefaultRecordBatch(raw) if batch.is_control_batch else batch


def new_producer(config: Config, linger_ms: int = 0) -> KafkaProducer:
    """Return an idempotent producer without transactions, whose control records would leave gaps.

    Args:
        config: the settings, with the address of Kafka.
        linger_ms: milliseconds for which a record waits for others.
    """
    return KafkaProducer(
        acks="all",
        enable_idempotence=True,
        linger_ms=linger_ms,
        max_request_size=_MAX_RECORD,
        **_UNMEASURED,
        **_connection(config),
    )
