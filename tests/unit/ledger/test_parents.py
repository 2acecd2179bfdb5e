"""Datasets with several parents: budgets, families, erasure and access lists."""

from __future__ import annotations

import pytest

from streams.records import ERASED, Erase, Reason
from streams.records.users import UserIds
from tests.unit.ledger.ledgers import admitted, answer_of, rebuilt
from tests.unit.ledger.roster_logs import RosterLog, prices, told
from tests.unit.ledger.test_authorization import SignedLog, allowing, refusal


def joint() -> RosterLog:
    """A log of two outermost datasets, one inside of each, and one inside of both."""
    log = RosterLog()
    for name in ("left", "right"):
        log.create(name, budget=1.0)
        log.create(f"in-{name}", budget=1.0, parents=[name])
    log.create("joint", budget=1.0, parents=["left", "right"])
    for name in ("left", "right", "in-left", "in-right", "joint"):
        log.open(name)
    return log


def erase(log: RosterLog, user: int, **dataset: str):
    return answer_of(log.send(Erase(request="f", user=user, **dataset)))


def test_a_step_charges_all_budgets_or_none():
    log = joint()
    log.charge(0, [1], [1.0], dataset="in-right", scale=0.75)  # 0.89 of 1
    before = {name: log.spent(name) for name in ("joint", "left", "right")}
    refused = log.charge(0, [1, 2], [1.0, 1.0], dataset="joint", scale=2.0)
    assert admitted(refused) == [False, True]
    assert (refused.budgets, list(refused.reasons)) == (["joint", "left", "right"], [2])
    after = {name: log.spent(name) for name in ("joint", "left", "right")}
    assert {name: spent[1] for name, spent in after.items() if name != "right"} == {
        "joint": 0,
        "left": 0,
    }
    assert after["right"][1] == before["right"][1]
    assert len({spent[2] for spent in after.values()}) == 1
    log.audit()


def test_a_budget_that_is_reached_in_two_ways_is_charged_once():
    log = RosterLog()
    log.create("person", budget=1.0)
    for name in ("ads", "search"):
        log.create(name, budget=1.0, parents=["person"])
    log.create("both", budget=1.0, parents=["ads", "person", "search"])
    log.open("both")
    decided = log.charge(0, [1], [1.0], dataset="both", scale=1.0)
    assert decided.budgets == ["both", "ads", "person", "search"]
    assert len({log.spent(name)[1] for name in decided.budgets}) == 1
    log.audit()


@pytest.mark.parametrize("dataset", ["left", "joint", None])
def test_a_user_is_erased_in_all_datasets_that_share_a_budget_through_others(dataset):
    log = joint()
    for name in ("in-left", "joint"):
        log.charge(0, [7], [0.1], dataset=name)
    there = ["in-left", "joint", "left", "right"]
    assert erase(log, 7, **({} if dataset is None else {"dataset": dataset})).datasets == there
    refused = log.charge(0, [7], [0.1], dataset="in-right")
    assert list(refused.reasons) == [ERASED]
    log.hand_over(rebuilt(log.changes))
    assert erase(log, 7, dataset="right").datasets == [*there[:1], "in-right", *there[1:]]
    log.audit()


@pytest.mark.parametrize("charged_first", [False, True])
def test_an_erased_user_is_halted_in_rosters_of_outermost_datasets_that_never_charged_it(
    charged_first,
):
    log = joint()
    log.charge(0, [7], [0.1], dataset="left")
    erase(log, 7)
    if charged_first:
        assert admitted(log.charge(0, [7], [0.1], dataset="right", run="r")) == [False]
    log.open("right", "roster")
    log.enrol([7, 8], dataset="right", run="roster")
    decided = log.step(0, prices(), members=2, dataset="right", run="roster")
    assert told(decided, "halted") == [0]
    (halted,) = log.halts()
    assert (list(halted.reasons), UserIds.unpack(halted.users).tolist()) != ([], [7])
    assert list(halted.reasons) == [ERASED]
    log.audit()


def test_a_new_dataset_joins_families_of_which_one_was_charged():
    log = RosterLog()
    for name in ("left", "right", "unused"):
        log.create(name)
    log.open("left")
    log.charge(0, [7], [0.1], dataset="left")
    assert log.create("joint", parents=["left", "unused"]).policy.parents == ["left", "unused"]
    log.open("right")
    for parents in (["left", "right"], ["right", "unused"], ["joint", "right"]):
        assert log.create("other", parents=parents).reason is Reason.INVALID_POLICY
    assert log.create("other", parents=["left", "unused"]).policy.dataset == "other"
    log.audit()


def test_rosters_that_share_one_of_several_budgets_settle_each_other():
    log = joint()
    for name in ("in-left", "joint", "in-right"):
        log.enrol([1, 2], dataset=name)
        budgets = 3 if name == "joint" else 2
        log.step(0, prices() * budgets, members=2, dataset=name)
    for step in range(1, 4):
        for name in ("in-left", "joint", "in-right"):
            log.step(step, members=2, dataset=name)
            log.hand_over(rebuilt(log.changes))
    log.charge(0, [2], [0.1], dataset="right")
    log.hand_over(rebuilt(log.changes))
    log.audit()


def listed(**lists) -> SignedLog:
    """A log of an outermost dataset for each list, in which mary manages all."""
    log = SignedLog()
    for name, allow in lists.items():
        log.create(name, allow=allow)
    return log


def test_keys_need_the_rights_of_all_parents():
    log = listed(
        left=allowing(alice="charge", bob="charge", mary="manage"),
        right=allowing(alice="charge", mary="manage", zoe="charge manage"),
    )
    with log.signing("zoe"):
        assert refusal(log.create("joint", parents=["left", "right"])) is Reason.NOT_ALLOWED
    with log.signing("mary"):
        assert refusal(log.create("joint", parents=["left", "right"])) is None
    for name, expected in (
        ("bob", Reason.NOT_ALLOWED),
        ("zoe", Reason.NOT_ALLOWED),
        ("mary", Reason.NOT_ALLOWED),
        ("alice", None),
    ):
        with log.signing(name):
            assert refusal(log.open("joint")) is expected
    allowed = log.ledger.summary().datasets["joint"].allow
    assert allowed == allowing(alice="charge", mary="manage")
    log.audit()


def test_parents_with_and_without_lists_do_not_mix():
    log = listed(left=allowing(mary="charge manage"))
    log.create("open")
    with log.signing("mary"):
        for fields in ({}, {"allow": allowing(mary="charge manage")}):
            made = log.create("joint", parents=["left", "open"], **fields)
            assert refusal(made) is Reason.INVALID_ACCESS
    log.audit()


def test_a_key_that_manages_some_outermost_datasets_of_a_family_erases_nobody_there():
    log = listed(
        left=allowing(alice="charge", mary="manage"),
        right=allowing(alice="charge", mary="manage", zoe="manage"),
        own=allowing(zoe="charge manage"),
    )
    with log.signing("mary"):
        log.create("joint", parents=["left", "right"])
    with log.signing("alice"):
        log.open("joint")
        log.charge(0, [7], [0.1], dataset="joint")
    with log.signing("zoe"):
        log.open("own")
        log.charge(0, [7], [0.1], dataset="own")
        assert refusal(erase(log, 7, dataset="right")) is Reason.NOT_ALLOWED
        answer = erase(log, 7)
    assert (answer.datasets, answer.not_allowed) == (["own"], ["left", "right"])
    with log.signing("mary"):
        answer = erase(log, 7)
    assert (answer.datasets, answer.not_allowed) == (["joint", "left", "right"], ["own"])
    log.audit()
