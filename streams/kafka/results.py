"""Values and errors of reading and writing Kafka, without any client.

The ports of the worker (``streams.worker.ports``) use these types, and so do the implementations of
those ports in this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from streams.config import Unavailable

STOP_WITHIN = 1.0
"""Seconds to disconnect: a broker that does not answer must not delay a rebalance."""


class LogUnavailable(Unavailable):
    """Kafka does not answer."""


class NotSent(Exception):
    """The broker did not accept records: it is unreachable, or a later epoch has begun."""


class Missing(Enum):
    """The content of the log at offsets at which no record arrived."""

    NOTHING_TO_APPLY = "control records, or batches that are not read"
    RECORDS = "records that were not delivered"
    HOLE = "nothing"


class Extent(NamedTuple):
    """The offsets at which a partition of a topic begins and ends."""

    start: int  # the offset of the first record
    end: int  # the offset after the last one


class StoredRecord(NamedTuple):
    """A record as the log stores it."""

    value: bytes | None
    leader_epoch: int  # counts the elections of the partition's leader; -1: not known


class Origin(NamedTuple):
    """The log, and the leader epoch in it, of the record that led to odometer records."""

    topic: bytes  # the id of norms
    leader_epoch: int


class Sent(NamedTuple):
    """An odometer record as the topic stores it."""

    origin: Origin
    value: bytes


class TopicsUnavailable(Unavailable):
    """Kafka did not answer, or its topics cannot be used."""


class NoBroker(TopicsUnavailable):
    """No broker answers."""


class UnusableTopics(TopicsUnavailable):
    """The topics cannot be used as they are: an operator has to change them."""


@dataclass(frozen=True)
class TopicsSeen:
    """The state of the topics at one moment."""

    topic: bytes  # the 16 bytes of the topic id of norms; zeros if there is no such topic or no id
    partitions: int  # P, the number of partitions of norms
    problem: str | None  # why the topics cannot be used, and what to do; None if they can


def log_name(norms: str, topic: bytes) -> str:
    """Return the name of a log in metrics, which is unique.

    Two services may use the same prefix on two Kafka clusters, and a topic may be created again. So
    the name contains the first 48 bits of the id of the topic norms.
    """
    return f"{norms}@{topic.hex()[:12]}"
