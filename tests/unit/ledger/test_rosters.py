"""Rosters: who is enrolled is charged by level, exactly as the same norms would be."""

from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from accounting import Gaussian
from accounting.measures import MEASURES
from streams.ledger import columns, rule
from streams.ledger.ledger import ledger_of
from streams.records import Rejected
from streams.records.digests import NO_TOPIC
from tests.unit.ledger.ledgers import MergingWorker, rebuilt
from tests.unit.ledger.roster_logs import (
    CLIP,
    LEVELS,
    POLICIES,
    begun,
    prices,
    told,
)


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


@pytest.mark.slow
def test_steps_kept_by_their_levels_take_two_bytes_a_user_beside_their_cost_table():
    users = 5000
    policy = POLICIES["per-user order"] | {"budget": [9.0, 9.0, 9.0]}
    log = begun(range(users), **policy)
    units = prices(30.0, "renyi", policy["orders"])
    for step in range(4):
        levels = np.random.default_rng(step).integers(1, LEVELS + 1, users)
        log.step(step, b"" if step else units, members=users, levels=levels)
    assert 2 * users < len(log.changes[-1]) < 2 * users + len(units) + 1500
