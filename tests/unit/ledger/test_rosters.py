"""Rosters: who is enrolled is charged by level, exactly as the same norms would be."""

from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from accounting import Gaussian, Laplace, PureDP
from accounting.measures import MEASURES
from streams.ledger import columns, rule
from streams.ledger.ledger import ledger_of
from streams.records import Enrolled, Reason, Rejected
from streams.records.digests import NO_TOPIC, page_digests
from streams.records.users import UserIds
from tests.unit.ledger.ledgers import MergingWorker, rebuilt
from tests.unit.ledger.roster_logs import (
    CLIP,
    LEVELS,
    POLICIES,
    RosterLog,
    begun,
    prices,
    told,
)


def test_members_keep_their_order_and_begin_at_the_highest_level():
    answer = begun().enrol([])
    assert isinstance(answer, Enrolled)
    assert (answer.members, answer.last_step, answer.grid) == (4, -1, LEVELS)
    assert list(answer.levels) == [LEVELS] * 4
    assert answer.digests == page_digests(UserIds(np.array([7, 8, 9, 10])))


def test_nothing_accrues_before_the_first_step():
    log = begun(measure="renyi", orders=[1.5, 8.0], budget=[1.0, 4.0])
    assert log.spent() == {user: [0, 0] for user in (7, 8, 9, 10)}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_of_nobody_is_decided_under_every_policy(policy):
    log = RosterLog()
    log.create(**POLICIES[policy])
    log.open()
    assert log.charge(0, [], []).users == 0
    assert log.enrol([]).members == 0
    measure, orders = POLICIES[policy]["measure"], POLICIES[policy].get("orders")
    assert log.step(1, prices(4.0, measure, orders), members=0).members == 0
    assert log.charge(2, [], []).users == 0


def test_repeated_enrolment_changes_nothing_and_others_follow():
    log = begun()
    assert log.enrol([7, 8]).members == 4
    assert log.enrol([9, 10, 11], first=2).members == 5
    assert log.enrol([12], first=5).members == 6
    assert log.enrol([]).digests == page_digests(UserIds(np.arange(7, 13)))


def test_clip_norm_with_equal_levels_is_refused():
    log = RosterLog()
    log.create()
    log.open()
    assert log.enrol([1], clip_norm=5e-324).reason is Reason.INVALID_LEVELS
    assert not log.ledger.state.rosters
    assert not len(log.ledger.state.datasets["d"])


def test_a_run_without_a_roster_cannot_be_charged_by_one():
    log = RosterLog()
    log.create()
    log.open()
    assert log.step(0, prices(), members=0).reason is Reason.UNKNOWN_ROSTER


def test_a_repeated_roster_step_is_charged_once():
    log = begun()
    first = log.step(0, prices())
    spent = log.spent()
    assert log.step(0, prices()) == first
    assert log.step(0) == first
    assert log.spent() == spent


def test_a_closed_run_has_no_roster_and_leaves_no_page_of_it():
    log = begun()
    log.step(0, prices())
    for name in log.ledger.state.unmerged():
        log.ledger.state.take_page(name)
    log.close()
    assert not log.ledger.state.rosters
    gone = {
        name for name in log.ledger.state.unmerged() if log.ledger.state.take_page(name) is None
    }
    assert gone == {"roster:d/r", "members:d/r/0"}
    assert not log.ledger.state.unmerged()


def test_interrupted_merge_leaves_no_page_of_a_closed_roster():
    log, worker = begun(), MergingWorker(Random(0))
    worker.commit(*log.records)
    worker.finish()
    log.step(0, prices())  # changes the roster and none of its members
    log.close()
    worker.commit(log.records[-2])
    worker.commit(log.records[-1])
    while "roster:d/r" in worker.pages:
        worker.compact_a_page()
    assert "members:d/r/0" in worker.pages
    worker.finish()
    assert "members:d/r/0" not in worker.pages


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("taken", range(10))
def test_a_run_may_close_during_a_merge(taken, dies):
    log, worker = begun(range(10)), MergingWorker(Random(0))
    worker.commit(*log.records)
    worker.list_pages()
    assert len(worker.pending) == 10  # P, a policy, a run, a roster; 3 of users, 3 of members
    for _ in range(taken):
        worker.compact_a_page()
    log.close()
    worker.commit(log.records[-1])
    while worker.pending:
        worker.compact_a_page()
    if dies:
        worker.die()
    worker.finish()
    assert not [name for name in worker.pages if name.startswith(("roster:", "members:"))]
    log.hand_over(worker.ledger)


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("missing", [0, 1])
def test_a_roster_with_a_missing_page_is_not_restored(missing):
    log = begun(range(10))
    pages = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
    del pages[f"members:d/r/{missing}"]
    kept = SimpleNamespace(pages=pages, changes=[])
    with pytest.raises(ValueError) as caught:
        ledger_of(kept, 0, 1, NO_TOPIC, log.ledger.chain)
    assert "d/r" in str(caught.value)


@pytest.mark.parametrize(
    ("measure", "mechanism", "name"),
    [
        ("pure-dp", Laplace(2.0), "laplace"),
        ("pure-dp", PureDP(), "pure-dp"),
        ("gdp", Laplace(2.0), "laplace"),  # by a cost table alone: it needs the normal quantile
        ("gdp", PureDP(), "pure-dp"),
    ],
)
def test_what_a_cost_table_can_say_is_charged(measure, mechanism, name):
    units = MEASURES[measure].cost_table(mechanism, CLIP, LEVELS)
    log = begun(measure=measure, budget=2.5 * int(units[LEVELS]) / 2**44)
    steps = [
        log.step(step, units.astype("<i8").tobytes(), mechanism=name, scale=2.0)
        for step in range(3)
    ]
    assert [told(step, "halted") for step in steps] == [[], [], [0, 1, 2, 3]]
    assert log.spent()[7] == 2 * int(units[LEVELS])


def test_unbound_members_are_examined_only_after_changes(monkeypatch):
    """At level 0 a user is bound to none, for as long as that may be: a step looks at nobody."""
    looked = []
    bind = rule.Rule.bind

    def bound(own, rows, slots, *given):
        looked.append(len(slots))
        return bind(own, rows, slots, *given)

    monkeypatch.setattr(rule.Rule, "bind", bound)
    policy = POLICIES["per-user order"]
    units = prices(30.0, "renyi", policy["orders"])
    log = begun(range(6), **policy)
    log.step(0, units, members=6, levels=[0, 0, 0, 5, 5, 5])
    log.step(1, members=6)
    log.step(2, members=6, positions=[1, 4], levels=[7, 0])
    log.step(3, members=6)
    log.step(4, units, members=6)
    log.enrol([6], first=6)
    log.step(5, members=7)
    log.step(6, members=7, positions=[0, 2], levels=[1, 1])
    assert looked == [6, 2, 7, 2]
    log.step(7, members=7)
    assert log.ledger.state.datasets["d"].numbers(slice(0, 7))["bound"].tolist() == [1] * 7


def test_members_charged_by_norms_in_blocks_are_restored(monkeypatch):
    """What is the same in all rows of a block is written once, which blocks must not mix up."""
    monkeypatch.setattr(rule, "_BLOCK_NUMBERS", 64 * 64)
    orders = [1.0 + number / 8 for number in range(1, 65)]
    policy = {"measure": "renyi", "orders": orders, "budget": [50.0] * 64}
    users = list(range(140))
    log = begun(users, **policy)
    log.open(run="aside")
    units = (
        MEASURES["renyi"].cost_table(Gaussian(4.0), CLIP, LEVELS, orders).astype("<i8").tobytes()
    )
    assert told(log.step(0, units, members=len(users)), "halted") == []
    norms = np.where(np.arange(140) < 80, 1.0, 0.5)
    assert not isinstance(log.charge(0, users, norms, run="aside"), Rejected)
    assert told(log.step(1, members=len(users)), "halted") == []
    again = rebuilt(log.changes)
    again.chain = log.ledger.chain
    spent = log.spent()
    log.hand_over(again)
    assert log.spent() == spent
    assert len({tuple(units) for units in spent.values()}) == 2


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("deleted", [[0, 1], [1]])
def test_roster_closed_during_a_merge_stays_closed(deleted):
    """Some of its pages were deleted, and neither its entry nor the others: changes say it."""
    users = list(range(3 * columns.PAGE_ROWS))
    log = begun(users)
    pages = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
    log.ledger.state.take_delta()
    log.step(0, prices(), members=len(users))
    log.close()
    for number in deleted:
        assert log.ledger.state.take_page(f"members:d/r/{number}") is None
        del pages[f"members:d/r/{number}"]
    kept = SimpleNamespace(pages=pages, changes=log.changes[-2:])
    again = ledger_of(kept, 0, 1, NO_TOPIC, log.ledger.chain)
    assert ("d", "r") not in again.state.rosters
    left = {number for number in range(3) if number not in deleted}
    assert {number for _, number in again.state.rosters.dropped} >= left
    log.hand_over(again)
