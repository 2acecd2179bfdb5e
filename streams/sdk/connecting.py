"""What becomes of the errors of a Kafka client: none leaves the SDK as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka.errors import KafkaError

from streams.config import Config
from streams.sdk.errors import DecisionTimeout, ServiceUnavailable, TurnstileError


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
