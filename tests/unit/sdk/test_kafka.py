"""A missing broker and a broker without the topics are told apart; one lost broker is no outage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka.errors import KafkaConnectionError, TopicAuthorizationFailedError

from streams.config import Config
from streams.kafka.results import TopicsSeen, TopicsUnavailable, UnusableTopics
from streams.sdk import kafka
from streams.sdk.client import Turnstile
from streams.sdk.errors import PartitionsDisagree, ServiceUnavailable
from streams.sdk.kafka import KafkaConnection

NOWHERE = Config(kafka="127.0.0.1:1", timeout=0.2)


def test_what_is_printed_of_a_turnstile_says_where_the_service_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert repr(Turnstile.in_memory(partitions=2)) == "<Turnstile in memory, 2 partitions>"
    seen = TopicsSeen(b"t" * 16, 3, None)
    monkeypatch.setattr(kafka, "_find_topics", lambda _: seen)
    with Turnstile(config=Config(kafka="h:1,i:2", prefix="p.")) as turnstile:
        assert str(turnstile) == "<Turnstile at h:1,i:2, topics p.*, 3 partitions>"


def test_a_broker_that_is_not_there_is_said_not_to_be() -> None:
    with pytest.raises(ServiceUnavailable, match=r"^no Kafka broker at 127\.0\.0\.1:1: .*address"):
        KafkaConnection(NOWHERE)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (TopicsUnavailable("no such topics: turnstile.norms"), r"no such topics: .* a worker runn"),
        (TopicAuthorizationFailedError("norms"), "TopicAuthorizationFailedError"),
    ],
)
def test_a_broker_without_the_topics_is_said_to_be_one(
    error: Exception, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_: Config) -> TopicsSeen:
        raise error

    monkeypatch.setattr(kafka, "_find_topics", find)
    message = rf"^Kafka at 127\.0\.0\.1:1 does not offer the topics turnstile\.\*: .*{what}"
    with pytest.raises(ServiceUnavailable, match=message):
        KafkaConnection(NOWHERE)


def answering(*answers: TopicsSeen | Exception) -> Callable[[Config], TopicsSeen]:
    """Stand for brokers that give these answers, one for each question."""
    left = iter(answers)

    def find(_: Config) -> TopicsSeen:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return find


SEEN = TopicsSeen(b"t" * 16, 3, None)


def test_one_lost_broker_of_several_does_not_refuse_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = KafkaConnectionError("Connection refused")
    monkeypatch.setattr(kafka, "_find_topics", answering(SEEN, lost, SEEN))
    KafkaConnection(Config(kafka="h:1,i:2", timeout=60.0)).check_partitions()


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (TopicsSeen(b"t" * 16, 4, None), PartitionsDisagree),
        (UnusableTopics("the topics differ"), ServiceUnavailable),
        (TopicAuthorizationFailedError("norms"), ServiceUnavailable),
    ],
)
def test_what_waiting_cannot_change_is_raised_at_the_first_answer(
    answer: TopicsSeen | Exception,
    raised: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka, "_find_topics", answering(SEEN, answer))
    connection = KafkaConnection(Config(kafka="h:1,i:2", timeout=60.0))
    with pytest.raises(raised):
        connection.check_partitions()
