"""What is seen of the topics, by whoever looks."""

from __future__ import annotations

from dataclasses import dataclass


class TopicsUnavailable(Exception):
    """Kafka did not answer, or the topics there cannot be used."""


class UnusableTopics(TopicsUnavailable):
    """The topics there cannot be used as they are: an operator has to change them."""


@dataclass(frozen=True)
class TopicsSeen:
    """What Kafka says of the topics now.

    Attributes:
        topic: the 16 bytes of the id of norms; zeros if there is no such topic, or no ids.
        partitions: P, the number of partitions of norms.
        problem: why the topics cannot be used, with what to do; None if they can.
    """

    topic: bytes
    partitions: int
    problem: str | None


def log_name(norms: str, topic: bytes) -> str:
    """Return the name of a log in metrics, which no other log has.

    Two services may use the same prefix on two Kafka clusters, and a topic may be created again.

    Args:
        norms: the full name of the topic norms.
        topic: its id, of which the name has the first 48 bits.
    """
    return f"{norms}@{topic.hex()[:12]}"
