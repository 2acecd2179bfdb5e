"""Who cannot be reached is told from who has not what is needed."""

from __future__ import annotations

import pytest
from kafka.errors import TopicAuthorizationFailedError

from streams.config import Config
from streams.sdk import kafka_connection
from streams.sdk.client import Turnstile
from streams.sdk.errors import ServiceUnavailable
from streams.sdk.kafka_connection import KafkaConnection
from streams.topics.seen import TopicsSeen, TopicsUnavailable

NOWHERE = Config(kafka="127.0.0.1:1", timeout=0.2)


def test_what_is_printed_of_a_turnstile_says_where_the_service_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert repr(Turnstile.in_memory(partitions=2)) == "<Turnstile in memory, 2 partitions>"
    seen = TopicsSeen(b"t" * 16, 3, None)
    monkeypatch.setattr(kafka_connection, "_find_topics", lambda _: seen)
    with Turnstile(config=Config(kafka="h:1,i:2", prefix="p.")) as turnstile:
        assert str(turnstile) == "<Turnstile at h:1,i:2, topics p.*, 3 partitions>"


def test_a_broker_that_is_not_there_is_said_not_to_be() -> None:
    with pytest.raises(ServiceUnavailable, match=r"^no Kafka broker at 127\.0\.0\.1:1: .*address"):
        KafkaConnection(NOWHERE)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (TopicsUnavailable("no such topics: turnstile.norms"), r"no such topics: .* a worker runn"),
        (TopicAuthorizationFailedError("norms"), "this user may not"),
    ],
)
def test_a_broker_without_the_topics_is_said_to_be_one(
    error: Exception, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_: Config) -> TopicsSeen:
        raise error

    monkeypatch.setattr(kafka_connection, "_find_topics", find)
    message = rf"^Kafka at 127\.0\.0\.1:1 does not offer the topics turnstile\.\*: .*{what}"
    with pytest.raises(ServiceUnavailable, match=message):
        KafkaConnection(NOWHERE)
