"""Errors of Kafka become the SDK's own; one lost broker of several is no outage."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
)
from kafka.future import Future

from streams.config import Config
from streams.kafka.results import TopicsSeen, TopicsUnavailable, UnusableTopics
from streams.sdk import kafka_connection
from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout, PartitionsDisagree, ServiceUnavailable
from streams.sdk.kafka_connection import ASK_AFTER, Absence, KafkaConnection

NOWHERE = Config(kafka="127.0.0.1:1", timeout=0.2)


def test_repr_names_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert repr(Turnstile.in_memory(partitions=2)) == "<Turnstile in memory, 2 partitions>"
    seen = TopicsSeen(b"t" * 16, 3, None)
    monkeypatch.setattr(kafka_connection, "_find_topics", lambda _: seen)
    with Turnstile(config=Config(kafka="h:1,i:2", prefix="p.")) as turnstile:
        assert str(turnstile) == "<Turnstile at h:1,i:2, topics p.*, 3 partitions>"


def test_missing_broker_is_an_unavailable_service() -> None:
    with pytest.raises(ServiceUnavailable):
        KafkaConnection(NOWHERE)


@pytest.mark.parametrize(
    "error", [TopicsUnavailable("no topics"), TopicAuthorizationFailedError("norms")]
)
def test_missing_topics_are_an_unavailable_service(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_: Config) -> TopicsSeen:
        raise error

    monkeypatch.setattr(kafka_connection, "_find_topics", find)
    with pytest.raises(ServiceUnavailable):
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


def test_one_lost_broker_of_several_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = KafkaConnectionError("Connection refused")
    monkeypatch.setattr(kafka_connection, "_find_topics", answering(SEEN, lost, SEEN))
    KafkaConnection(Config(kafka="h:1,i:2", timeout=60.0)).check_partitions()


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (TopicsSeen(b"t" * 16, 4, None), PartitionsDisagree),
        (UnusableTopics("the topics differ"), ServiceUnavailable),
        (TopicAuthorizationFailedError("norms"), ServiceUnavailable),
    ],
)
def test_permanent_error_is_raised_at_once(
    answer: TopicsSeen | Exception,
    raised: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_connection, "_find_topics", answering(SEEN, answer))
    connection = KafkaConnection(Config(kafka="h:1,i:2", timeout=60.0))
    with pytest.raises(raised):
        connection.check_partitions()


class RefusingKafka:
    """A Kafka client whose records the broker refuses, now or when they are flushed."""

    def __init__(self, error: KafkaError) -> None:
        self._error, self._sent = error, Future()

    def send(self, *record: object, **options: object) -> Future:
        return self._sent

    def flush(self, timeout: float) -> None:
        if isinstance(self._error, KafkaTimeoutError):
            raise self._error
        self._sent.failure(self._error)

    def poll(self, timeout_ms: int) -> dict[str, list[object]]:
        return {}

    def nothing(self, *arguments: object) -> None:
        """Do nothing, as the other methods of a consumer and a producer."""

    assign = seek_to_end = position = partitions_for = close = nothing


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (KafkaTimeoutError("no acknowledgement"), DecisionTimeout),
        (TopicAuthorizationFailedError("norms"), ServiceUnavailable),
    ],
)
def test_norms_that_the_log_may_not_have_are_an_error(
    error: KafkaError, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_connection, "_find_topics", answering(SEEN))
    for name in ("new_producer", "new_reader"):
        monkeypatch.setattr(kafka_connection, name, lambda *_, **options: RefusingKafka(error))
    with Turnstile(config=NOWHERE) as turnstile, pytest.raises(raised):
        turnstile.send_norms("d", "r", 0, [1], [0.5])


class Broker:
    """A broker that may not answer, and a clock."""

    def __init__(self) -> None:
        self.is_there, self.asked, self.now = True, 0, 0.0
        self.absence = Absence("host:9092", self.ask, lambda: self.now)

    def ask(self) -> None:
        self.asked += 1
        if not self.is_there:
            raise KafkaTimeoutError("no answer")

    def silent(self, seconds: float) -> None:
        for _ in range(int(seconds * 5)):
            self.now += 0.2
            self.absence.note(has_arrived=False)


def test_absence_and_return_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "turnstile.sdk")
    broker = Broker()
    broker.silent(60.0)
    assert not caplog.messages
    for _ in range(2):
        broker.is_there = False
        broker.silent(60.0)
        broker.is_there = True
        broker.silent(60.0)
    broker.is_there = False
    broker.silent(60.0)
    assert len(caplog.records) == 5
    for _ in range(2):
        broker.absence.note(has_arrived=True)
        assert len(caplog.records) == 6
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_broker_is_asked_seldom() -> None:
    broker = Broker()
    for _ in range(100):
        broker.silent(ASK_AFTER / 2)
        broker.absence.note(has_arrived=True)
    assert broker.asked == 0
    broker.silent(10 * ASK_AFTER)
    assert broker.asked <= 10
