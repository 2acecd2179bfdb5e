"""What a run is in one partition: attempts that the partition numbers, and runs that end."""

import msgspec
import pytest

from streams.records import Decision, Reason, Rejected, RunClosed, RunOpened
from tests.unit.ledger.audited import AuditedLog


@pytest.fixture
def log() -> AuditedLog:
    log = AuditedLog()
    log.create()
    return log


def test_partition_numbers_the_next_attempt(log):
    assert log.open(attempt=0, request="first").attempt == 1
    assert isinstance(log.charge(0, [1], [1.0], attempt=1), Decision)
    second = log.open(attempt=0, request="second")
    assert (second.attempt, second.last_step) == (2, 0)
    assert log.charge(1, [1], [1.0], attempt=1).reason is Reason.OLDER_ATTEMPT
    assert isinstance(log.charge(1, [1], [1.0], attempt=2), Decision)


def test_asking_for_the_next_attempt_again_gets_the_same_answer(log):
    first = log.open(attempt=0, request="mine")
    again = log.open(attempt=0, request="mine")
    assert msgspec.structs.replace(again, offset=first.offset) == first
    assert log.open(attempt=0, request="another").attempt == 2
    assert log.open(attempt=1, request="mine").reason is Reason.OLDER_ATTEMPT


def test_lagging_partition_takes_over_the_attempt_by_its_token(log):
    """As a sender does that got attempt 9 elsewhere."""
    assert log.open(attempt=0, request="mine").attempt == 1
    assert log.open(attempt=9, request="mine").attempt == 9
    assert log.open(attempt=0, request="mine").attempt == 9  # sent twice by a producer
    assert log.open(attempt=0, request="another").attempt == 10


@pytest.mark.parametrize("last", [2**53, 2**62])
def test_highest_attempt_does_not_end_a_run(log, last):
    assert log.open(attempt=last).attempt == last
    for following in (last + 1, last + 2):
        assert log.open(attempt=0, request=str(following)).attempt == following
        step = following - last - 1
        assert isinstance(log.charge(step, [1], [1.0], attempt=following), Decision)
    assert isinstance(log.close(attempt=last + 2), RunClosed)


def test_a_closed_run_can_neither_be_charged_nor_opened_again(log):
    log.open()
    log.charge(0, [1], [1.0])
    closed = log.close()
    assert (closed.attempt, closed.last_step) == (1, 0)
    spent = log.spent()
    for answer in (
        log.charge(0, [1], [1.0]),  # the stored decision is gone
        log.charge(1, [1], [1.0]),
        log.charge(1, [1], [1.0]),
        log.open(attempt=0, request="new"),
        log.open(attempt=1),
        log.open(attempt=2),
        log.open(attempt=2),
    ):
        assert isinstance(answer, Rejected)
        assert answer.reason is Reason.RUN_CLOSED
    assert log.spent() == spent
    assert isinstance(log.open(run="another", attempt=0), RunOpened)


CLOSES = [
    ({"dataset": "other"}, Reason.UNKNOWN_DATASET),
    ({"run": "other"}, Reason.UNKNOWN_RUN),
    ({"attempt": 3}, Reason.UNKNOWN_RUN),
    ({"attempt": 1}, Reason.OLDER_ATTEMPT),
]


@pytest.mark.parametrize("is_closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize(("change", "reason"), CLOSES, ids=str)
def test_only_the_current_attempt_can_close_a_run(log, change, reason, is_closed):
    log.open(attempt=2)
    if is_closed:
        log.close(attempt=2)
    refused = log.close(**{"attempt": 2, **change})
    assert refused.reason is reason
    assert refused.request == "token"
    assert log.ledger.state.runs["d", "r"].closed == is_closed


def test_reject_names_the_sender_of_the_request(log):
    log.open(attempt=3)
    uneven = log.charge(0, b"1234567", [], attempt=3)
    assert uneven.reason is Reason.MALFORMED
    assert (uneven.run, uneven.attempt, uneven.step) == ("r", 3, 0)
    assert uneven.current_attempt == 3
    closing = log.close(attempt=1, request="mine")
    assert (closing.run, closing.attempt, closing.request) == ("r", 1, "mine")
    withdrawing = log.withdraw(request="mine")
    assert (withdrawing.dataset, withdrawing.run, withdrawing.request) == ("d", None, "mine")


def test_confirming_an_attempt_changes_nothing(log):
    log.open(attempt=1, request="first")
    asked = {"attempt": 1, "confirms": "first"}
    assert log.open(request="q1", **asked).request == "q1"
    assert log.open(request="q2", attempt=1, confirms="other").reason is Reason.OLDER_ATTEMPT
    assert log.open(request="q3", attempt=2, confirms="first").reason is Reason.UNKNOWN_RUN
    assert log.open(run="s", request="q4", **asked).reason is Reason.UNKNOWN_RUN
    # The attempt is still the one that was opened first: opening it again is the same opening.
    assert log.open(attempt=1, request="first").attempt == 1
    log.open(attempt=2, request="second")
    assert log.open(request="q5", **asked).reason is Reason.OLDER_ATTEMPT
    log.close(attempt=2)
    assert log.open(request="q6", attempt=2, confirms="second").reason is Reason.RUN_CLOSED
