"""What a run is in one partition: attempts that the partition numbers, and runs that end."""

import pytest

from streams.records import Decision, Reason, RunClosed
from tests.unit.ledger.audited import AuditedLog


@pytest.fixture
def log() -> AuditedLog:
    log = AuditedLog()
    log.create()
    return log


@pytest.mark.parametrize("last", [2**53, 2**62])
def test_highest_attempt_does_not_end_a_run(log, last):
    assert log.open(attempt=last).attempt == last
    for following in (last + 1, last + 2):
        assert log.open(attempt=0, request=str(following)).attempt == following
        step = following - last - 1
        assert isinstance(log.charge(step, [1], [1.0], attempt=following), Decision)
    assert isinstance(log.close(attempt=last + 2), RunClosed)


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
