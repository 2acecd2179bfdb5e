"""A dataset is decided in one place; what is half-made can be completed or withdrawn by anyone."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from accounting import MEASURES
from streams import Turnstile
from streams.records import CreateDataset, Policy, encode
from streams.records.users import partitions_of
from streams.sdk.dataset_requests import arguments_of
from streams.sdk.errors import (
    DecisionTimeout,
    InvalidRequest,
    PartitionsDisagree,
    PolicyChanged,
)
from tests.keys import public
from tests.unit.sdk.partitions import Partitions

HOME = int(partitions_of(["d"], 3)[0])
OTHERS = sorted({0, 1, 2} - {HOME})


def holders(service: Partitions) -> list[int]:
    return [p for p, ledger in enumerate(service.ledgers) if "d" in ledger.state.datasets]


def test_home_partition_decides_the_creation_first() -> None:
    service = Partitions()
    service.deaf = {HOME}
    with pytest.raises(DecisionTimeout):
        service.create()
    assert [len(log) for log in service.logs] == [0, 0, 0]
    service.deaf, service.mute = set(), {HOME}
    with pytest.raises(DecisionTimeout):
        service.create()
    assert holders(service) == [HOME]


def test_two_creators_with_different_budgets_leave_one_dataset() -> None:
    service = Partitions()
    service.deaf = set(OTHERS)  # the first one dies half-way
    with pytest.raises(DecisionTimeout):
        service.create(budget=8.0)
    service.deaf = set()
    with pytest.raises(PolicyChanged) as rejected:
        service.create(budget=1.0)
    assert rejected.value.held is not None
    assert rejected.value.held.budget == [8 * 2**44]
    assert holders(service) == [HOME]
    service.create(budget=8.0)
    assert holders(service) == [0, 1, 2]
    assert service.open().policy.budget == [8 * 2**44]


def test_dataset_has_one_kind_of_ids_by_default() -> None:
    service = Partitions()
    assert service.create().user_ids == "one-kind"
    run = service.open()
    with pytest.raises(InvalidRequest):
        run.charge([1, "1"], np.ones(2), noise_stddev=4.0)
    service.create("both", user_ids="mixed")
    both = service.open(dataset="both")
    assert both.charge([1, "1"], np.ones(2), noise_stddev=4.0).admitted.all()
    for kind, users in (("integer", ["1"]), ("string", [1])):
        service.create(kind, user_ids=kind)
        with pytest.raises(InvalidRequest):
            service.open(dataset=kind).charge(users, np.ones(1), noise_stddev=4.0)


@pytest.mark.parametrize("lost", [{0}, {1}, {2}, {0, 1}, {1, 2}])
def test_partial_withdrawal_can_be_completed_or_undone(lost: set[int]) -> None:
    for go_on in ("withdraw", "create"):
        service = Partitions()
        service.create()
        service.deaf = lost
        with pytest.raises(DecisionTimeout):
            service.withdraw()
        assert HOME in holders(service)  # last, so that there is one who decides
        service.deaf = set()
        if go_on == "withdraw":
            service.withdraw()
            service.withdraw()
            assert holders(service) == []
            service.create(budget=2.0)
        else:
            service.create()
        assert service.open().charge([1], [1.0], noise_stddev=4.0).admitted.all()


def left_behind(budget: int = 2**44) -> bytes:
    policy = Policy(
        dataset="d", partitions=3, measure="zcdp", budget=[budget], odometer_step=[budget // 8]
    )
    return encode(CreateDataset(request="token", policy=policy))


def test_dataset_of_an_interrupted_client_can_be_withdrawn() -> None:
    service = Partitions()
    service.publish(OTHERS[0], left_behind(8 * 2**44))
    with pytest.raises(PartitionsDisagree):
        service.create()
    service.withdraw()
    service.create()
    assert service.open().policy.budget == [2**44]


OTHER_POLICIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "orders": (
        {"measure": "renyi", "orders": [2.0, 4.0], "budget": [1.0, 2.0]},
        {"measure": "renyi", "orders": [2.0], "budget": [1.0]},
    ),
    "several": ({}, {"on_exhaustion": "clip", "user_ids": "mixed"}),
    "access": ({"allow": {public("ada"): ["manage"]}}, {}),
    "one unit": ({}, {"budget": 1.0 + 2.0**-44}),
}


@pytest.mark.parametrize("case", OTHER_POLICIES)
def test_other_policy_is_rejected_with_the_held_one(case: str) -> None:
    first, second = OTHER_POLICIES[case]
    service = Partitions()
    held = service.create(**first)
    with pytest.raises(PolicyChanged) as rejected:
        service.create(**second)
    assert rejected.value.held == held


def test_equal_epsilons_are_no_difference_of_two_policies() -> None:
    terms: dict[str, Any] = {"measure": "renyi", "epsilon": 2.0, "delta": 1e-6}
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("d", orders=[40.0], **terms)
        with pytest.raises(PolicyChanged, match="orders is") as other_order:
            turnstile.create_dataset("d", orders=[50.0], **terms)
        with pytest.raises(PolicyChanged, match="is 2, not 1;"):
            turnstile.create_dataset("d", orders=[40.0], **terms | {"epsilon": 1.0})
    assert "epsilon" not in str(other_order.value)


@pytest.mark.parametrize("measure", MEASURES)
def test_arguments_of_a_policy_make_the_same_budget(measure: str) -> None:
    with Turnstile.in_memory(partitions=1) as turnstile:
        orders = {"orders": [32.0, 64.0]} if MEASURES[measure].per_order else {}
        made = turnstile.create_dataset("d", measure=measure, epsilon=1.0, delta=1e-5, **orders)
        shown = arguments_of(made)
        given = {name: shown[name] for name in ("measure", "budget", "odometer_step")}
        if not orders:
            given |= {name: given[name][0] for name in ("budget", "odometer_step")}
        again = turnstile.create_dataset("again", **given, **orders)
    assert (again.measure, again.budget) == (made.measure, made.budget)
    assert again.odometer_step == pytest.approx(made.odometer_step, abs=2)


@pytest.mark.parametrize("units", [1, 2**61, 2**61 - 1, 2**53 + 1])
@pytest.mark.parametrize("measure", ["zcdp", "gdp"])
def test_arguments_never_state_a_larger_budget(measure: str, units: int) -> None:
    policy = Policy(
        dataset="d", partitions=1, measure=measure, budget=[units], odometer_step=[units]
    )
    (stated,) = arguments_of(policy)["budget"]
    assert Fraction(stated) ** MEASURES[measure].power * 2**44 < units + 1
    assert MEASURES[measure].stated(units) >= stated > 0.0
