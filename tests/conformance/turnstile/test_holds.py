"""One run at a time charges a budget; shares of a budget are charged side by side."""

from __future__ import annotations

import numpy as np
import pytest

from streams import BudgetHeld, InvalidRequest, PolicyChanged, RequestRejected, Turnstile
from streams.records import Reason

USERS = np.arange(40)
NORMS = np.ones(40)


def test_a_second_run_is_rejected_until_the_first_is_closed(
    turnstile: Turnstile, name: str
) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    first = turnstile.run(name, "first")
    first.charge(USERS, NORMS, noise_stddev=4.0)
    with pytest.raises(BudgetHeld) as rejected:
        turnstile.run(name, "second")
    assert rejected.value.reason is Reason.BUDGET_HELD
    assert rejected.value.holder == (name, "first")
    first.charge(USERS, NORMS, noise_stddev=4.0)
    first.close()
    second = turnstile.run(name, "second")
    assert second.charge(USERS, NORMS, noise_stddev=4.0).admitted.all()


def test_a_run_that_was_taken_over_charges_nothing_more(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    first = turnstile.run(name, "first")
    first.charge(USERS, NORMS, noise_stddev=1.0)  # rho 1/2
    second = turnstile.run(name, "second", take_over=True)
    with pytest.raises(BudgetHeld) as rejected:
        first.charge(USERS, NORMS, noise_stddev=1.0)
    assert rejected.value.holder == (name, "second")
    second.close()
    resumed = turnstile.run(name, "first")
    # Nothing of the rejected step was charged: the budget has room for exactly one more.
    assert resumed.charge(USERS, NORMS, noise_stddev=1.0).admitted.all()
    assert resumed.charge(USERS, NORMS, noise_stddev=1.0).halted.all()
    resumed.check_attempt()
    turnstile.run(name, "third", take_over=True)
    with pytest.raises(BudgetHeld):
        resumed.check_attempt()


def test_runs_side_by_side_need_a_policy_that_says_so(turnstile: Turnstile, name: str) -> None:
    policy = turnstile.create_dataset(
        name, measure="zcdp", budget=0.5, assume_independent_timing=True
    )
    assert policy.assume_independent_timing is True
    first, second = turnstile.run(name, "first"), turnstile.run(name, "second")
    assert first.charge(USERS, NORMS, noise_stddev=2**0.5).admitted.all()
    assert second.charge(USERS, NORMS, noise_stddev=2**0.5).admitted.all()
    assert not first.charge(USERS, NORMS, noise_stddev=2**0.5).admitted.any()
    with pytest.raises(InvalidRequest):
        turnstile.create_dataset(
            f"{name}-ads", measure="zcdp", budget=0.5, parents=name, assume_independent_timing=True
        )


def test_shares_are_charged_side_by_side_and_add_up_to_the_budget(
    turnstile: Turnstile, name: str
) -> None:
    whole = turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    parts = {
        part: turnstile.create_dataset(f"{name}-{part}", share_of=whole, share=share)
        for part, share in (("ads", 0.75), ("search", 0.25))
    }
    assert [policy.share_of for policy in parts.values()] == [name, name]
    assert sum(policy.budget[0] for policy in parts.values()) <= whole.budget[0]
    with pytest.raises(RequestRejected) as rejected:
        turnstile.create_dataset(f"{name}-more", share_of=whole, share=0.01)
    assert rejected.value.reason is Reason.INVALID_POLICY
    ads, search = (turnstile.run(f"{name}-{part}", "r") for part in parts)
    steps = [run.charge(USERS, NORMS, noise_stddev=2.0) for run in [ads, search] * 6]
    admitted = [bool(step.admitted.all()) for step in steps]
    assert (sum(admitted[::2]), sum(admitted[1::2])) == (6, 2)  # rho 1/8 each


def test_a_dataset_is_charged_itself_or_through_its_shares(turnstile: Turnstile, name: str) -> None:
    whole = turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    turnstile.create_dataset(f"{name}-ads", share_of=whole, share=0.5)
    with pytest.raises(RequestRejected) as rejected:
        turnstile.run(name, "r")
    assert rejected.value.reason is Reason.DATASET_SHARED
    with pytest.raises(RequestRejected) as rejected:
        turnstile.create_dataset(f"{name}-search", measure="zcdp", budget=0.5, parents=name)
    assert rejected.value.reason is Reason.DATASET_SHARED
    charged = turnstile.create_dataset(f"{name}-charged", measure="zcdp", budget=1.0)
    turnstile.run(charged.dataset, "r")
    with pytest.raises(RequestRejected) as rejected:
        turnstile.create_dataset(f"{name}-late", share_of=charged, share=0.5)
    assert rejected.value.reason is Reason.INVALID_POLICY


def test_a_share_that_was_never_used_can_be_given_back(turnstile: Turnstile, name: str) -> None:
    whole = turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    turnstile.create_dataset(f"{name}-ads", share_of=whole, share=1.0)
    with pytest.raises(RequestRejected):
        turnstile.withdraw_dataset(name)
    turnstile.withdraw_dataset(f"{name}-ads")
    turnstile.create_dataset(f"{name}-search", share_of=whole, share=1.0)
    turnstile.run(f"{name}-search", "r").charge(USERS, NORMS, noise_stddev=4.0)
    with pytest.raises(RequestRejected) as rejected:
        turnstile.close_dataset(name)
    assert rejected.value.reason is Reason.DATASET_SHARED
    turnstile.close_dataset(f"{name}-search")
    turnstile.close_dataset(name)
    with pytest.raises(RequestRejected):
        turnstile.create_dataset(f"{name}-more", share_of=whole, share=0.1)


def test_a_user_is_erased_in_every_share(turnstile: Turnstile, name: str) -> None:
    whole = turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    parts = [f"{name}-{part}" for part in ("ads", "search")]
    for part in parts:
        turnstile.create_dataset(part, share_of=whole, share=0.5)
        turnstile.run(part, "r").charge(USERS, NORMS, noise_stddev=4.0)
    assert turnstile.erase(3, name) == parts


@pytest.mark.parametrize("measure", ["zcdp", "gdp", "pure-dp"])
def test_a_share_is_of_units_that_add_up(turnstile: Turnstile, name: str, measure: str) -> None:
    whole = turnstile.create_dataset(name, measure=measure, budget=1.0)
    quarter = turnstile.create_dataset(f"{name}-part", share_of=whole, share=0.25)
    assert quarter.measure == measure
    assert quarter.budget == [whole.budget[0] // 4]
    again = turnstile.create_dataset(f"{name}-part", share_of=whole, share=0.25)
    assert again == quarter
    with pytest.raises(PolicyChanged):
        turnstile.create_dataset(f"{name}-part", share_of=whole, share=0.125)
