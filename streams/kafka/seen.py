"""The observed state of the topics."""

from __future__ import annotations

from dataclasses import dataclass


class TopicsUnavailable(Exception):
    """Kafka did not answer, or its topics cannot be used."""


class UnusableTopics(TopicsUnavailable):
    """The topics cannot be used as they are: an operator has to change them."""


@dataclass(frozen=True)
class TopicsSeen:
    """The state of the topics at one moment.

    Attributes:
        topic: the 16 bytes of the topic id of norms; zeros if there is no such topic or no id.
        partitions: P, the number of partitions of norms.
        problem: why the topics cannot be used, and what to do; None if they can.
    """

    topic: bytes
    partitions: int
    problem: str | None


def log_name(norms: str, topic: bytes) -> str:
    """Return the name of a log in metrics, which is unique.

    Two services may use the same prefix on two Kafka clusters, and a topic may be created again.

    Args:
        norms: the full name of the topic norms.
        topic: its id; the name contains its first 48 bits.
    """
    return f"{norms}@{topic.hex()[:12]}"
