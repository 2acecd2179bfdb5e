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
