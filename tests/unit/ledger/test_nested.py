"""Nested datasets: a charge fits every budget that counts, or is charged to none."""

import pytest

from streams.records import MAX_BUDGETS, Reason, Rejected
from tests.unit.ledger.roster_logs import RosterLog, prices

CLIPS = {"on_exhaustion": "clip"}


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        (Reason.UNKNOWN_DATASET, {"parents": ["nobody"]}),
        (Reason.INVALID_POLICY, {"parents": ["new"]}),
        (Reason.INVALID_POLICY, {"parents": ["pure"], **CLIPS}),
        (Reason.INVALID_POLICY, {"parents": ["plain"], "user_ids": "string"}),
        (Reason.UNKNOWN_DATASET, {"parents": ["nobody", "plain"]}),
        (Reason.INVALID_POLICY, {"parents": ["plain", "plain"]}),
        (Reason.INVALID_POLICY, {"parents": ["pure", "depth1"]}),
        (Reason.INVALID_POLICY, {"parents": ["mixed", "plain"]}),
        (Reason.INVALID_POLICY, {"parents": ["plain", "pseudonyms"]}),
        (Reason.INVALID_POLICY, {"parents": ["depth1", "pure"], **CLIPS}),
        (Reason.INVALID_POLICY, {"parents": [f"depth{MAX_BUDGETS}"]}),
        (Reason.INVALID_POLICY, {"parents": [f"depth{MAX_BUDGETS - 1}", "pure"]}),
        (Reason.MALFORMED, {"parents": ["not a name"]}),
        (Reason.MALFORMED, {"parents": []}),
        (Reason.MALFORMED, {"parents": list("abcdefgh")}),
        (Reason.MALFORMED, {"parents": None}),
    ],
)
def test_invalid_parent_is_rejected_and_changes_nothing(reason, fields):
    log = RosterLog()
    log.create("plain", user_ids="integer")
    log.create("pure", measure="pure-dp")
    log.create("mixed", user_ids="mixed")
    log.create("pseudonyms", user_ids="integer", pseudonyms="0" * 16)
    log.create("depth1")
    for depth in range(2, MAX_BUDGETS + 1):
        log.create(f"depth{depth}", parents=[f"depth{depth - 1}"])
    before = dict(log.ledger.state.policies)
    answer = log.create("new", **fields)
    assert isinstance(answer, Rejected)
    assert answer.reason is reason
    assert dict(log.ledger.state.policies) == before


def test_a_dataset_has_the_kinds_of_ids_of_those_it_is_within():
    log = RosterLog()
    log.create("person", user_ids="integer")
    assert log.create("ads", parents=["person"]).policy.user_ids == "integer"
    assert log.create("ads", parents=["person"], user_ids="integer").policy.user_ids == "integer"
    log.open("ads")
    assert log.charge(0, ["x"], [1.0], dataset="ads").reason is Reason.MIXED_USERS


@pytest.mark.parametrize("rows", [1, 3])
def test_a_step_states_the_prices_of_all_budgets_that_count(rows):
    log = RosterLog()
    log.create("person")
    log.create("d", parents=["person"])
    log.open()
    log.enrol([1])
    assert log.step(0, rows * prices(), members=1).reason is Reason.INVALID_COST_TABLE
    assert log.spent("person") == {1: 0}
    log.step(0, 2 * prices(), members=1)
    assert log.spent("person") == log.spent("d") != {1: 0}
