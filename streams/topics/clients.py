"""kafka-python clients with this project's settings: who they are and how long they wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from streams.config import Config
from streams.schemas import MAX_REQUEST_BYTES
from streams.topics.admittance import check_admittance
from streams.topics.security import security

_MAX_RECORD = MAX_REQUEST_BYTES + 1024 * 1024
_UNMEASURED: Mapping[str, Any] = {"metrics_enabled": False}
"""What clients measure of themselves nobody reads, and it takes a tenth of the time of a charge."""


def _connection(config: Config) -> dict[str, Any]:
    return {
        "bootstrap_servers": config.kafka.split(","),
        "bootstrap_timeout_ms": int(1000 * config.timeout),
        **security(config),
    }


def new_admin(config: Config) -> KafkaAdminClient:
    """A client that creates and describes topics: the first that anybody makes.

    Raises:
        NotAdmitted: who it is, or how it comes, does not suit the broker.
    """
    check_admittance(config)
    return KafkaAdminClient(**_connection(config))


def new_reader(config: Config, **settings: Any) -> KafkaConsumer:
    """A consumer outside any group: it is assigned partitions and never commits."""
    settings = {"max_partition_fetch_bytes": _MAX_RECORD, **_UNMEASURED, **settings}
    return KafkaConsumer(group_id=None, enable_auto_commit=False, **_connection(config), **settings)


def new_producer(config: Config, linger_ms: int = 0) -> KafkaProducer:
    """An idempotent producer, without transactions: their markers would leave offset gaps.

    Args:
        config: where Kafka is.
        linger_ms: for how long a record waits for others.
    """
    return KafkaProducer(
        acks="all",
        enable_idempotence=True,
        linger_ms=linger_ms,
        max_request_size=_MAX_RECORD,
        **_UNMEASURED,
        **_connection(config),
    )
