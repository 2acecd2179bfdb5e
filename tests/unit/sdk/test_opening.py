"""A run is opened everywhere under one attempt and one policy, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from streams.records import Charge, CreateDataset, OpenRun, Policy, Request
from streams.sdk.connection import Deadline
from streams.sdk.errors import (
    BudgetHeld,
    DecisionTimeout,
    Fenced,
    InvalidRequest,
    PartitionsDisagree,
    RequestRejected,
    RunIsClosed,
)
from tests.unit.sdk.partitions import Partitions


def policy(partitions: int = 3, budget: int = 2**44) -> Policy:
    return Policy(
        dataset="d",
        partitions=partitions,
        measure="zcdp",
        budget=[budget],
        odometer_step=[1],
        user_ids="one-kind",
    )


def create_in(service: Partitions, partition: int, wanted: Policy) -> None:
    service.publish(partition, CreateDataset(request="token", policy=wanted))


class Rivalry(Partitions):
    """Another trainer opens the run in one partition, between the two questions of an opening."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def survey(
        self, requests: Mapping[int, Request], kind: type[Any], deadline: Deadline
    ) -> dict[int, Any]:
        replies = super().survey(requests, kind, deadline)
        if self.times and 0 not in requests:
            self.times -= 1
            for partition in (1, 2):  # one more than the opening has got there
                attempt = self.ledgers[partition].state.runs["d", "r"].attempt + 1
                record = OpenRun(dataset="d", run="r", attempt=attempt, request="rival")
                replies[partition] = self.publish(partition, record)
            attempt = self.ledgers[0].state.runs["d", "r"].attempt + 1
            record = OpenRun(dataset="d", run="r", attempt=attempt, request="third")
            self.publish(0, record)
        return replies


def test_opening_begins_again_after_a_rival_opening() -> None:
    service = Rivalry(times=3)
    service.create()
    run = service.open()
    assert {ledger.state.runs["d", "r"].attempt for ledger in service.ledgers} == {run.attempt}
    assert len({ledger.state.runs["d", "r"].request for ledger in service.ledgers}) == 1


def test_competing_trainers_are_fenced() -> None:
    service = Rivalry(times=1000)
    service.create()
    with pytest.raises(Fenced):
        service.open()


class Echo(Partitions):
    """The answer to the first question comes once more instead of the answer to the second."""

    def __init__(self) -> None:
        super().__init__()
        self.stale: dict[int, Any] = {}

    def survey(
        self, requests: Mapping[int, Request], kind: type[Any], deadline: Deadline
    ) -> dict[int, Any]:
        replies = super().survey(requests, kind, deadline)
        self.stale |= replies
        return replies

    def ask(
        self,
        requests: Mapping[int, Request],
        kind: type[Any],
        deadline: Deadline,
        *,
        log: bytes | None = None,
    ) -> dict[int, Any]:
        super().ask(requests, kind, deadline, log=log)
        return {partition: self.stale[partition] for partition in requests}


def test_repeated_answer_is_ignored() -> None:
    service = Echo()
    create_in(service, 0, policy())
    create_in(service, 1, policy())
    create_in(service, 2, policy())
    service.publish(1, OpenRun(dataset="d", run="r", attempt=5, request="before"))
    run = service.open()
    assert {ledger.state.runs["d", "r"].attempt for ledger in service.ledgers} == {run.attempt}


def test_a_run_that_is_refused_a_budget_holds_it_nowhere() -> None:
    """Otherwise two runs could hold one budget in some partitions each, and neither could go on."""
    service = Partitions()
    service.create()
    service.publish(0, OpenRun(dataset="d", run="first", attempt=1, request="t"))
    with pytest.raises(BudgetHeld):
        service.open("second")
    assert service.open("first").charge([1, 2, 3], np.ones(3), noise_stddev=4.0).admitted.all()


def test_run_at_different_steps_is_not_opened() -> None:
    service = Partitions()
    service.create()
    run = service.open()
    for step in range(2):
        record = Charge(dataset="d", run="r", attempt=run.attempt, step=step, users=b"", norms=b"")
        service.publish(1, record)
    with pytest.raises(PartitionsDisagree):
        service.open()


def test_a_very_high_attempt_does_not_end_a_run() -> None:
    service = Partitions()
    service.create()
    service.publish(1, OpenRun(dataset="d", run="r", attempt=2**62, request="mischief"))
    run = service.open()
    assert run.attempt == 2**62 + 1
    assert run.charge([1, 2, 3], np.ones(3), noise_stddev=4.0).step == 0
    assert service.open().attempt == 2**62 + 2


def test_a_dataset_under_two_budgets_cannot_be_charged() -> None:
    service = Partitions()
    for partition, budget in enumerate([8 * 2**44, 2**44, 2**44]):
        create_in(service, partition, policy(budget=budget))
    with pytest.raises(PartitionsDisagree):
        service.open()
    with pytest.raises(PartitionsDisagree):
        service.create(budget=1.0, odometer_step=2.0**-44)
    assert service.spent() == {}


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_incomplete_dataset_can_be_completed(missing: int) -> None:
    service = Partitions()
    for partition in {0, 1, 2} - {missing}:
        create_in(service, partition, policy())
    with pytest.raises(PartitionsDisagree) as disagreement:
        service.open()
    assert disagreement.value.partition == missing
    service.create(budget=1.0, odometer_step=2.0**-44)
    assert service.open().charge([1, 2, 3], np.ones(3), noise_stddev=4.0).admitted.all()


def test_a_run_is_not_opened_when_partitions_were_added() -> None:
    service = Partitions(2)
    service.create()
    service.add_partitions(2)
    with pytest.raises(PartitionsDisagree):
        service.open()
    with pytest.raises(RequestRejected):
        service.create(budget=1.0)
    assert service.spent() == {}


def test_opening_fences_a_closing() -> None:
    service = Partitions()
    service.create()
    for _ in range(2):
        service.open()

    def open_it() -> None:
        service.before_result = lambda: None
        service.open()

    service.before_result = open_it
    with pytest.raises(Fenced):
        service.close_run()
    assert service.close_run()


def test_a_run_that_was_opened_in_part_is_closed_everywhere() -> None:
    service = Partitions()
    service.create()
    service.deaf = {1, 2}
    with pytest.raises(DecisionTimeout):
        service.open()
    service.deaf = set()
    assert service.close_run()
    with pytest.raises(RunIsClosed):
        service.open()
    assert service.open("other").charge([1, 2, 3], np.ones(3), noise_stddev=4.0).admitted.all()


@pytest.mark.parametrize("take_over", [False, True])
def test_a_run_that_only_later_partitions_knew_holds_no_budget_once_closed(take_over: bool) -> None:
    service = Partitions()
    for partition in (1, 2):
        create_in(service, partition, policy())
    with pytest.raises(PartitionsDisagree):
        service.open()
    service.create(budget=1.0, odometer_step=2.0**-44)
    assert service.close_run()
    with pytest.raises(RunIsClosed):
        service.open(take_over=take_over)
    assert service.open("other").charge([1, 2, 3], np.ones(3), noise_stddev=4.0).admitted.all()


@pytest.mark.parametrize("released", [-2, 1.0, True, "3"])
def test_released_must_be_a_step(released: Any) -> None:
    service = Partitions()
    service.create()
    with pytest.raises(InvalidRequest):
        service.open(released=released)
