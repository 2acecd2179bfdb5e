"""A dataset that moved says where to, as far as that can be seen."""

from __future__ import annotations

import argparse

import pytest

from streams.cli.move import _show
from streams.cli.moved import state_of, where_it_moved
from streams.offline.mover import Moved
from streams.offline.moves import Departure, Landing
from streams.operations.status import DatasetStatus
from streams.schemas import Origin, Policy

THERE = "a1" * 16
POLICY = Policy(dataset="d", partitions=1, measure="zcdp", budget=[8], odometer_step=[1])


@pytest.mark.parametrize(
    ("closed", "moved_to", "prefixes", "state"),
    [
        (False, "", {}, "open"),
        (True, "", {}, "closed"),
        (True, THERE, {THERE: "wide."}, "moved to wide."),
        (True, THERE, {}, f"moved to {THERE}"),
    ],
)
def test_a_table_says_where_a_dataset_is(
    closed: bool, moved_to: str, prefixes: dict[str, str], state: str
) -> None:
    assert state_of(DatasetStatus(POLICY, 1, 0, closed, moved_to), prefixes) == state


def test_what_to_do_is_said_whether_or_not_the_other_log_can_be_seen() -> None:
    moved = DatasetStatus(POLICY, closed=True, moved_to=THERE)
    assert "charge it with TURNSTILE_PREFIX=wide." in where_it_moved(moved, {THERE: "wide."})
    hidden = where_it_moved(moved, {})
    assert THERE in hidden
    assert "charge it where that log is" in hidden


@pytest.mark.parametrize("closed", [False, True])
def test_it_is_said_where_to_go_on_unless_nothing_is_charged_there(
    closed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = Origin(topic="5a" * 16, partitions=1, heads=bytes(32))
    leaving = Departure(origin, [POLICY], frozenset(["d"] if closed else []), [], {"d": []})
    options = argparse.Namespace(dataset="d", to="wide.", json=False)
    _show(Moved(Landing(leaving, 2), [], ""), "moved", options, 1, 2)
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith(
        "d is closed, and stays so there" if closed else "Whoever charges d goes on with"
    )
