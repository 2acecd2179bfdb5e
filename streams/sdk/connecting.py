"""Whether the topics are there and are what they were, and what becomes of a Kafka client's errors:
none leaves the SDK as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep

from kafka.errors import KafkaError

from streams.config import Config
from streams.sdk.errors import (
    DecisionTimeout,
    PartitionsDisagree,
    ServiceUnavailable,
    TurnstileError,
)
from streams.topics.clients import new_admin
from streams.topics.seen import TopicsUnavailable
from streams.topics.topics import partition_count

_TOPICS_POLL = 0.2


@contextmanager
def reaching_kafka(config: Config) -> Iterator[None]:
    """Turn what goes wrong with the broker into the SDK's own error.

    Raises:
        ServiceUnavailable: instead of any KafkaError.
    """
    try:
        yield
    except KafkaError as error:
        raise ServiceUnavailable(
            f"Kafka at {config.kafka} does not answer: {error}. Is the broker up?"
        ) from error


def publishing_error(error: KafkaError) -> TurnstileError:
    """The error of a request that may not have been published."""
    if error.retriable:
        raised: TurnstileError = DecisionTimeout(
            f"could not publish to Kafka in time: {error}. Ask exactly the same again: it is "
            "decided once. Until then release nothing"
        )
    else:
        raised = ServiceUnavailable(
            f"Kafka does not take what is published: {error}. Release nothing; when that is "
            "mended, open another Turnstile and the run again"
        )
    raised.__cause__ = error
    return raised


def wait_for_topics(config: Config) -> int:
    """P, as soon as there is a broker with the topics.

    Raises:
        ServiceUnavailable: not within ``config.timeout``.
    """
    deadline = monotonic() + config.timeout
    while True:
        try:
            return _count_partitions(config)
        except (KafkaError, TopicsUnavailable) as error:
            if monotonic() > deadline:
                raise ServiceUnavailable(
                    f"Kafka at {config.kafka} does not offer the topics {config.prefix}*: {error}. "
                    "Is the broker up and a worker running?"
                ) from error
            sleep(_TOPICS_POLL)


def check_partitions(config: Config, expected: int) -> None:
    """Check that P is what it was: in partitions that were added nothing of their users is known.

    Raises:
        PartitionsDisagree: it is not.
        ServiceUnavailable: no broker, or no topics.
    """
    with reaching_kafka(config):
        try:
            partitions = _count_partitions(config)
        except TopicsUnavailable as error:
            raise ServiceUnavailable(str(error)) from error
    if partitions != expected:
        raise PartitionsDisagree(
            f"the topics have {partitions} partitions, and had {expected} when this Turnstile was "
            "opened: partitions must never be added, because users would be looked for where "
            "nothing of theirs is known",
            None,
        )


def _count_partitions(config: Config) -> int:
    admin = new_admin(config)
    try:
        return partition_count(admin, config)
    finally:
        admin.close()
