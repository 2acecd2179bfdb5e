"""One run at a time holds a budget, and shares of a budget add up to at most the budget."""

import pytest
from msgspec import UNSET

from streams.records import Decision, Holder, Reason, RunOpened
from tests.unit.ledger.audited import AuditedLog

EXCLUSIVE = {"assume_independent_timing": UNSET}


def exclusive_log() -> AuditedLog:
    log = AuditedLog()
    log.create("d", budget=1.0, **EXCLUSIVE)
    log.create("inner", budget=1.0, parents=["d"])
    return log


def test_a_repeated_opening_takes_nothing_over() -> None:
    """A copy of the record, sent again by its sender or by the network, arrives late."""
    log = exclusive_log()
    log.open(run="first", request="a", take_over=True)
    log.open(run="second", request="b", take_over=True)
    assert log.open(run="first", request="a", take_over=True).reason is Reason.BUDGET_HELD
    assert isinstance(log.charge(0, [1], [1.0], run="second"), Decision)
    newer = log.open(run="first", attempt=2, request="c", take_over=True)
    assert isinstance(newer, RunOpened)
    assert log.charge(1, [1], [1.0], run="second").reason is Reason.BUDGET_HELD


def joint_log() -> AuditedLog:
    """A log of a dataset in two outermost ones, and of datasets in one of them each."""
    log = AuditedLog()
    for name in ("d", "else"):
        log.create(name, budget=1.0, **EXCLUSIVE)
        log.create(f"in-{name}", budget=1.0, parents=[name])
    log.create("joint", budget=1.0, parents=["d", "else"])
    return log


def holders(log: AuditedLog) -> dict[str, str]:
    return {name: held.dataset for (name,), held in log.ledger.state.holds.items()}


def test_a_run_holds_each_outermost_budget_or_none() -> None:
    log = joint_log()
    log.open("in-else")
    rejected = log.open("joint")
    assert (rejected.reason, rejected.holder) == (
        Reason.BUDGET_HELD,
        Holder(dataset="in-else", run="r"),
    )
    assert holders(log) == {"else": "in-else"}
    assert isinstance(log.open("in-d"), RunOpened)
    for name in ("in-d", "in-else"):
        log.close(name)
    assert isinstance(log.open("joint"), RunOpened)
    assert holders(log) == {"d": "joint", "else": "joint"}
    for name in ("in-d", "in-else"):
        assert log.open(name, "other").reason is Reason.BUDGET_HELD
    log.close("joint")
    assert holders(log) == {}


def test_a_run_that_lost_one_of_its_budgets_charges_none() -> None:
    log = joint_log()
    log.open("joint")
    log.open("in-d", take_over=True)
    assert holders(log) == {"d": "in-d", "else": "joint"}
    rejected = log.charge(0, [1], [1.0], dataset="joint")
    assert (rejected.reason, rejected.holder) == (
        Reason.BUDGET_HELD,
        Holder(dataset="in-d", run="r"),
    )
    assert isinstance(log.open("joint", attempt=2, request="b", take_over=True), RunOpened)
    assert holders(log) == {"d": "joint", "else": "joint"}


def test_an_outermost_dataset_switches_off_its_own_hold_only() -> None:
    log = AuditedLog()
    log.create("d", budget=1.0, **EXCLUSIVE)
    log.create("else", budget=1.0)
    log.create("joint", budget=1.0, parents=["d", "else"])
    log.open("joint")
    assert isinstance(log.open("else"), RunOpened)
    assert log.open("d").reason is Reason.BUDGET_HELD


NO_SHARES = {
    "of a nested dataset": ("nested", {}),
    "of a share": ("part", {}),
    "of another measure": ("whole", {"measure": "gdp"}),
    "at an order of each user's own": ("own-order", {"orders": [2.0, 8.0], "measure": "renyi"}),
    "of users of another kind": ("whole", {"user_ids": "string"}),
    "of more than is left": ("whole", {"budget": 0.75}),
}


@pytest.mark.parametrize(("whole", "terms"), NO_SHARES.values(), ids=NO_SHARES)
def test_budgets_that_do_not_add_up_have_no_shares(whole: str, terms: dict[str, object]) -> None:
    log, ladder = AuditedLog(), {"measure": "renyi", "orders": [2.0, 8.0], "budget": [1.0, 4.0]}
    log.create("whole", user_ids="integer")
    log.create("outer")
    log.create("nested", parents=["outer"])
    log.create("own-order", **ladder, per_user_order=True)
    assert log.create("part", budget=0.5, share_of="whole").policy.share_of == "whole"
    asked = {"budget": [0.25, 1.0] if "orders" in terms else 0.25, **terms}
    assert log.create("other", share_of=whole, **asked).reason is Reason.INVALID_POLICY
