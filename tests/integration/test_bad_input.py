"""Bad input is rejected with its reason, changes no budget and stops nothing.

Here one case of each reason goes through Kafka, a worker and Redis. All cases are applied to a
ledger in ``tests/unit/ledger/test_bad_input.py``; every value in every field of every request in
``tests/unit/ledger/test_bad_requests.py``; the SDK's checks are in
``tests/unit/sdk/test_bad_arguments.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from streams.records import MAX_REQUEST_BYTES, MAX_ROSTERS
from streams.sdk.run import Run
from tests.audit.bad_input import BAD_INPUT, PARTITIONS, as_msgpack
from tests.audit.bad_input import ChargedRun as Records
from tests.integration.service import Service, ServiceFactory

CASES = {case.reason: case for case in BAD_INPUT.values()}
"""One case of each reason."""


@dataclass
class ChargedRun:
    """Open a run that has charged step 0; requests go to partition 0."""

    service: Service
    dataset: str
    run: Run
    users: list[int]  # their home is partition 0; the last two are not charged yet

    def charge(self, step: int = 1, **changes: Any) -> dict[str, Any]:
        """Return a valid charge, with changes."""
        records = Records(self.dataset, self.run.name, self.users)
        return records.charge(**{"step": step, "attempt": self.run.attempt, **changes})

    def assert_rejected(self, reason: str, value: bytes | dict[str, Any] | None) -> None:
        """Check that the record is on `rejects` with this reason, and that no account changed."""
        before = self.service.state(self.dataset)
        offset = self.service.publish(0, value)
        audit = self.service.audit()  # which compares the original bytes too
        assert audit.rejects[0, offset][0] == reason
        assert self.service.state(self.dataset) == before


@pytest.fixture(scope="module")
def shared(start_service: ServiceFactory) -> Iterator[Service]:
    """Start a service whose log takes requests of 8 MiB. What it publishes is smaller."""
    with start_service() as service:
        service.client.create_dataset("first", measure="zcdp", budget=1.0)  # when there are topics
        service.alter("norms", max_message_bytes=str(MAX_REQUEST_BYTES + 65_536))
        yield service


@pytest.fixture
def target(shared: Service, name: str) -> ChargedRun:
    return open_target(shared, name)


def open_target(service: Service, name: str, **policy: Any) -> ChargedRun:
    service.client.create_dataset(
        name, **{"measure": "zcdp", "budget": 1.0, "user_ids": "mixed", **policy}
    )
    run = service.client.run(name, f"run-{name}")
    users = service.users(4, partition=0)
    run.charge(users[:2], [1.0, 0.5], noise_stddev=4.0)
    return ChargedRun(service, name, run, users)


def targets(service: Service, dataset: str) -> Iterator[Records]:
    """Return a run for each case, and users that no other case charges."""
    assert service.partitions == PARTITIONS
    users = iter(service.users(4 * len(CASES), partition=0))
    policies = [case.policy for case in CASES.values()]
    for number, policy in enumerate(policies):
        of_policy = f"{dataset}-{policies.index(policy)}-{number // MAX_ROSTERS}"
        yield Records(of_policy, f"run-{number}", [next(users) for _ in range(4)])


def test_each_kind_of_bad_input_is_rejected_and_later_charges_are_decided(
    shared: Service, name: str
) -> None:
    cases = list(zip(CASES.values(), targets(shared, name), strict=True))
    for dataset, policy in {target.dataset: case.policy for case, target in cases}.items():
        shared.client.create_dataset(
            dataset, measure="zcdp", budget=1.0, assume_independent_timing=True, **policy
        )
    values: list[bytes | None] = []
    for case, target in cases:
        opened, good = target.about_run("open-run"), target.charge()
        values += [as_msgpack(opened), *case.before(target), case.record(target), as_msgpack(good)]
    offsets = iter(shared.publish_all(0, values))
    audit = shared.audit()  # which compares the original bytes and all accounts
    for reason, (case, target) in zip(CASES, cases, strict=True):
        _, first, *_, bad, good = (next(offsets) for _ in range(3 + len(case.before(target))))
        assert audit.charged[0, first]["admitted"] == [True] * 2, reason
        assert audit.rejects[0, bad][0] == reason
        assert audit.charged[0, good]["admitted"] == [True] * 4, reason
    states = {dataset: shared.state(dataset) for dataset in {target.dataset for _, target in cases}}
    for reason, (case, target) in zip(CASES, cases, strict=True):
        state = states[target.dataset]
        unit = 2**44 // 16 if case.policy.get("measure") == "gdp" else 2**44 // 32
        spent = [state[user][0][0] for user in target.users]
        assert spent == [2 * unit, unit + unit // 4, unit, unit], reason


def test_a_request_that_is_too_large_to_store_is_rejected_before_any_charge(
    shared: Service, name: str
) -> None:
    """Without this check, 256 orders x 140,000 users ended every worker permanently."""
    orders = [2.0 + i for i in range(256)]
    target = open_target(shared, name, measure="renyi", orders=orders, budget=orders)
    users = np.arange(140_000)
    norms = np.full(len(users), 0.1)
    target.assert_rejected("too-large", target.charge(users=users.tobytes(), norms=norms.tobytes()))
    offset = target.service.publish(0, target.charge())
    assert target.service.audit().charged[0, offset]["admitted"] == [True] * 4


def test_a_hundred_thousand_users_are_charged_in_one_step(target: ChargedRun) -> None:
    users = np.arange(-50_000, 50_000)
    norms = np.resize([0.25, 1.0, 8.0, 0.0], users.size)  # 8.0 costs twice the budget
    decision = target.run.charge(users, norms, noise_stddev=4.0)
    assert decision.halted.sum() == users.size // 4
    assert (decision.admitted == (norms < 8.0)).all()
    offset = target.service.publish(0, target.charge(step=2))
    assert target.service.audit().charged[0, offset]["admitted"] == [True] * 4
