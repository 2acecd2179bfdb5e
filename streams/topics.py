"""The topics: how many partitions, how long they keep, how large a record may be."""

from __future__ import annotations

from contextlib import suppress

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError

from streams.config import Config
from streams.kafka_clients import new_admin
from streams.schemas import MAX_REQUEST_BYTES

_OVERHEAD = 64 * 1024  # a record batch's own fields, and the fields around the original bytes
_DAY_MS = 24 * 60 * 60 * 1000

NORMS, HALTS, ODOMETER, REJECTS = "norms", "halts", "odometer", "rejects"

SETTINGS: dict[str, dict[str, str]] = {
    # The log is the truth: nothing may be deleted from it.
    NORMS: {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(MAX_REQUEST_BYTES + _OVERHEAD),
    },
    HALTS: {
        "cleanup.policy": "delete",
        "retention.ms": str(7 * _DAY_MS),
        "max.message.bytes": str(MAX_REQUEST_BYTES + _OVERHEAD),
    },
    ODOMETER: {"cleanup.policy": "compact"},
    REJECTS: {
        "cleanup.policy": "delete",
        "retention.ms": str(30 * _DAY_MS),
        "max.message.bytes": str(MAX_REQUEST_BYTES + 2 * _OVERHEAD),
    },
}


class TopicsUnavailable(Exception):
    """Kafka did not answer, or the topics there cannot be used."""


def ensure_topics(config: Config) -> int:
    """Create the topics that do not exist yet; returns P, the number of partitions they have.

    Safe to call from many processes at once.

    Raises:
        TopicsUnavailable: no broker, or topics whose partition counts differ.
    """
    try:
        admin = new_admin(config)
    except KafkaError as error:
        raise TopicsUnavailable(f"no Kafka broker at {config.kafka}: {error}") from error
    try:
        for name, settings in SETTINGS.items():
            options = {
                "num_partitions": config.partitions,
                "replication_factor": config.replication,
                "configs": settings,
            }
            with suppress(TopicAlreadyExistsError):
                admin.create_topics({config.topic(name): options}, wait_for_metadata=True)
        return partition_count(admin, config)
    except KafkaError as error:
        raise TopicsUnavailable(f"cannot create the topics at {config.kafka}: {error}") from error
    finally:
        admin.close()


def partition_count(admin: KafkaAdminClient, config: Config) -> int:
    """P, which norms, halts and rejects share.

    Raises:
        TopicsUnavailable: they do not exist yet, or they differ: a user's partition would be
            ambiguous.
    """
    names = [config.topic(name) for name in (NORMS, HALTS, REJECTS)]
    counts = {entry["name"]: len(entry["partitions"]) for entry in admin.describe_topics(names)}
    if not all(counts.get(name) for name in names):
        missing = sorted(name for name in names if not counts.get(name))
        raise TopicsUnavailable(f"no such topics: {', '.join(missing)}")
    if len(set(counts.values())) != 1:
        raise TopicsUnavailable(
            f"the topics differ in their number of partitions: {counts}; "
            "partitions must never be added: start over under another prefix"
        )
    return int(counts[names[0]])
