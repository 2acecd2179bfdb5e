"""Runs with a minimum separation: no user takes part again before it has passed.

The auditor looks on: it remembers the last participation of every user, and knows no places.
"""

from typing import Any

import pytest
from msgspec import UNSET

from streams.records import Reason, RunOpened
from tests.unit.ledger.roster_logs import RosterLog


def separated(separation: int = 3, **policy: Any) -> RosterLog:
    log = RosterLog()
    log.create(**policy)
    log.open(min_separation=separation)
    return log


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
