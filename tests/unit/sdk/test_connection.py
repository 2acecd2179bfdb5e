"""Waiting for the replies of partitions, and what becomes of errors of the Kafka client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from kafka.errors import (
    BrokerNotAvailableError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    TopicAuthorizationFailedError,
)

from streams.config import Config
from streams.ledger.outputs import Channel, Output
from streams.records import (
    Charge,
    CloseRun,
    DatasetWithdrawn,
    OpenRun,
    Reason,
    Rejected,
    RunOpened,
    WithdrawDataset,
    encode,
)
from streams.sdk.connection import Deadline, PendingRequest, key_of, step_key
from streams.sdk.errors import (
    DecisionTimeout,
    Fenced,
    InvalidRequest,
    RequestRejected,
    ServiceUnavailable,
    TurnstileError,
    refusal_of,
)
from streams.sdk.kafka_connection import publishing_error, reaching_kafka
from streams.sdk.memory_connection import MemoryConnection
from tests.unit.ledger.ledgers import Log

NOW = Deadline.after(0.0)


def answer(partition: int) -> DatasetWithdrawn:
    return DatasetWithdrawn(dataset="d", request="t", partition=partition, offset=0)


SENT = {0: b"to 0", 1: b"to 1"}


def refusal(partition: int, record: bytes | None = None) -> Rejected:
    return Rejected(
        partition=partition,
        offset=0,
        reason=Reason.OLDER_ATTEMPT,
        detail="so it is",
        record=SENT[partition] if record is None else record,
        current_attempt=7,
    )


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, 1e300])
def test_invalid_timeout_is_rejected(seconds: float) -> None:
    with pytest.raises(InvalidRequest):
        Deadline.after(seconds)


def test_all_partitions_must_answer() -> None:
    waiting = PendingRequest("t", SENT, NOW)
    waiting.receive(answer(0))
    waiting.receive(answer(5))  # no caller waits for it
    with pytest.raises(DecisionTimeout):
        waiting.result(NOW)
    waiting.receive(answer(1))
    assert waiting.result(NOW) == {0: answer(0), 1: answer(1)}


def test_rejection_beats_an_answer_of_the_same_partition() -> None:
    waiting = PendingRequest("t", {0: SENT[0]}, NOW)
    waiting.receive(answer(0))
    waiting.receive(refusal(0))
    with pytest.raises(Fenced):
        waiting.result(NOW)
    survey = PendingRequest("t", {0: SENT[0]}, NOW, to_the_end=True)
    survey.receive(answer(0))
    survey.receive(refusal(0))
    assert survey.result(NOW) == {0: answer(0)}


def test_rejection_ends_the_wait_except_in_a_survey() -> None:
    waiting = PendingRequest("t", SENT, NOW)
    waiting.receive(refusal(0))
    with pytest.raises(Fenced) as fenced:
        waiting.result(NOW)
    assert fenced.value.current_attempt == 7
    survey = PendingRequest("t", SENT, NOW, to_the_end=True)
    survey.receive(refusal(0))
    with pytest.raises(DecisionTimeout):
        survey.result(NOW)
    survey.receive(answer(1))
    replies = survey.result(NOW)
    assert isinstance(replies[0], Fenced)
    assert replies[1] == answer(1)


def test_rejection_of_another_request_is_ignored() -> None:
    waiting = PendingRequest("t", {0: SENT[0]}, NOW)
    waiting.receive(refusal(0, record=b"sent before, for the same step"))
    waiting.receive(refusal(1))  # no caller waits for it
    waiting.receive(answer(0))
    assert waiting.result(NOW) == {0: answer(0)}


REQUESTS = [
    (OpenRun(dataset="d", run="r", attempt=0, request="t"), "t"),
    (CloseRun(dataset="d", run="r", attempt=1, request="t"), "t"),
    (WithdrawDataset(dataset="d", request="t"), "t"),
    (
        Charge(dataset="d", run="r", attempt=3, step=5, users=[], norms=[]),
        step_key("d", "r", 3, 5),
    ),
]


@pytest.mark.parametrize(("request_", "key"), REQUESTS, ids=lambda value: type(value).__name__)
def test_sender_of_an_unreadable_request_is_found(request_: Any, key: object) -> None:
    unnamed = Rejected(
        partition=0,
        offset=0,
        reason=Reason.UNSUPPORTED_VERSION,
        detail="the record has version 2; this worker reads version 1",
        record=encode(request_),
    )
    assert key_of(unnamed) == key
    assert refusal_of(unnamed).reason is Reason.UNSUPPORTED_VERSION


def test_rejected_junk_has_no_sender() -> None:
    junk = Rejected(partition=0, offset=0, reason=Reason.MALFORMED, detail="", record=b"\xc1")
    assert key_of(junk) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KafkaTimeoutError("slow"), DecisionTimeout),
        (NotEnoughReplicasError("few"), DecisionTimeout),
        (MessageSizeTooLargeError("large"), ServiceUnavailable),
        (TopicAuthorizationFailedError("no"), ServiceUnavailable),
    ],
    ids=lambda value: type(value).__name__,
)
def test_retriable_publishing_error_is_a_timeout(
    error: KafkaError, kind: type[TurnstileError]
) -> None:
    raised = publishing_error(error)
    assert isinstance(raised, kind)
    assert raised.__cause__ is error


def test_kafka_errors_become_sdk_errors() -> None:
    with pytest.raises(ServiceUnavailable), reaching_kafka(Config()):
        raise BrokerNotAvailableError("gone")


class Republishing(MemoryConnection):
    """A connection whose workers publish their rejections again before every answer."""

    rejections: list[bytes]

    def _answer(self, partition: int, outputs: Sequence[Output]) -> None:
        for value in self.rejections:
            self._deliver(Channel.REJECTS, partition, value)
        self.rejections += [o.value for o in outputs if o.channel is Channel.REJECTS]
        super()._answer(partition, outputs)

    def publish_all(self, requests: list[bytes]) -> None:
        for request in requests:
            self._apply(0, request)


def test_repeated_rejection_does_not_end_a_later_request() -> None:
    connection = Republishing(1, 30.0)
    connection.rejections = []
    request = {0: OpenRun(dataset="d", run="r", attempt=1, request="token")}
    for _ in range(2):
        with pytest.raises(RequestRejected):
            connection.ask(request, RunOpened, connection.deadline(None))
    log = Log()
    log.create()
    connection.publish_all(log.records)
    assert connection.ask(request, RunOpened, connection.deadline(None))[0].attempt == 1
