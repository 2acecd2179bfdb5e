"""Runs with a minimum separation: no user takes part again before it has passed.

The auditor looks on: it remembers the last participation of every user, and knows no places.
"""

from typing import Any

import numpy as np
import pytest
from msgspec import UNSET

from streams.records import TOO_SOON, Decision, Reason, RunOpened
from streams.records.users import UserIds
from tests.unit.ledger.ledgers import admitted, exhausted, halted_for
from tests.unit.ledger.roster_logs import RosterLog


def separated(separation: int = 3, **policy: Any) -> RosterLog:
    log = RosterLog()
    log.create(**policy)
    log.open(min_separation=separation)
    return log


def too_soon(decision: Decision) -> list[bool]:
    return halted_for(decision, TOO_SOON)


def test_participants_are_halted_until_the_separation_has_passed():
    log = separated(3)
    first = log.charge(0, [1, 2, 3], [1.0, 0.0, 1.0])
    assert (admitted(first), too_soon(first)) == ([True] * 3, [False] * 3)
    spent = log.spent()
    for step in (1, 2):
        decision = log.charge(step, [3, 1], [1.0, 1e-300])
        assert (admitted(decision), too_soon(decision)) == ([False] * 2, [True] * 2)
        assert exhausted(decision) == [False] * 2
        assert UserIds.unpack(decision.halted).tolist() == [3, 1]
        assert log.spent() == spent
    assert admitted(log.charge(3, [1, 2, 3], [1.0, 1.0, 1.0])) == [True] * 3


OPENINGS = [
    # what was opened and charged before, how it is opened then, what the run keeps or the reason
    (3, False, 3, 3),
    (3, False, None, 3),
    (3, False, 4, 4),
    (None, False, 4, 4),
    (3, True, 3, 3),
    (3, True, None, 3),
    (3, True, 4, Reason.SEPARATION_CHANGED),
    (3, True, 2, Reason.SEPARATION_CHANGED),
    (None, True, 2, Reason.SEPARATION_CHANGED),
    (None, True, None, UNSET),
]


@pytest.mark.parametrize(("before", "charged", "asked", "expected"), OPENINGS)
def test_a_separation_is_fixed_with_the_first_step(before, charged, asked, expected):
    log = RosterLog()
    log.create()
    log.open(min_separation=before or UNSET)
    if charged:
        log.charge(0, [1], [1.0])
    opened = log.open(attempt=0, request="later", min_separation=asked or UNSET)
    if isinstance(expected, Reason):
        assert opened.reason is expected
        assert log.ledger.state.runs["d", "r"].attempt == 1
    else:
        assert isinstance(opened, RunOpened)
        assert opened.min_separation == expected


def test_attempt_has_one_separation_and_a_roster_none():
    log = separated(3)
    log.charge(0, [], [])
    assert log.open(min_separation=4).reason is Reason.SEPARATION_CHANGED
    log.open(run="fresh", min_separation=3)
    assert log.open(run="fresh", min_separation=4).reason is Reason.SEPARATION_CHANGED
    assert log.open(run="fresh").min_separation == 3
    log.open(run="rostered")
    log.enrol([1], run="rostered")
    refused = log.open(run="rostered", attempt=2, min_separation=3)
    assert refused.reason is Reason.SEPARATION_CHANGED
    assert log.enrol([1], run="fresh").reason is Reason.NO_ROSTERS


def test_nothing_is_kept_of_a_run_that_is_closed():
    log = separated(3)
    for step in range(4):
        log.charge(step, [step], [1.0])
    names = {"separation:d/r", "participants:d/r/0", "participants:d/r/1"}
    pages = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
    assert {name for name in pages if name.startswith(("sep", "part"))} == {
        "partitions",
        *names,
    }
    log.close()
    assert {
        n for n in log.ledger.state.unmerged() if log.ledger.state.take_page(n) is None
    } == names
    assert not log.ledger.state.participants.must_wait(("d", "r"), np.arange(4)).any()
