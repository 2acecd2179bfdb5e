"""Who follows is told once that Kafka went, and once that it is back."""

from __future__ import annotations

import logging

import pytest
from kafka.errors import KafkaTimeoutError

from streams.sdk.kafka import ASK_AFTER, Absence


class Broker:
    """Kafka, as far as it answers, and the time that passes."""

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
            self.absence.silent()


def test_that_kafka_went_and_came_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "turnstile.sdk")
    broker = Broker()
    broker.silent(60.0)
    assert not caplog.messages
    for _ in range(2):
        broker.is_there = False
        broker.silent(60.0)
        broker.is_there = True
        broker.silent(60.0)
    gone, back = caplog.messages[:2]
    assert gone != back
    assert caplog.messages == [gone, back] * 2
    assert all("host:9092" in message for message in (gone, back))
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_record_says_that_kafka_is_back(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    broker.is_there = False
    broker.silent(60.0)
    assert len(caplog.messages) == 1
    broker.absence.heard()
    assert len(caplog.messages) == 2
    broker.absence.heard()
    assert len(caplog.messages) == 2


def test_kafka_is_not_asked_while_records_come_and_seldom_while_none_do() -> None:
    broker = Broker()
    for _ in range(100):
        broker.silent(ASK_AFTER / 2)
        broker.absence.heard()
    assert broker.asked == 0
    broker.silent(10 * ASK_AFTER)
    assert broker.asked <= 10
