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
from uuid import uuid4

import msgspec
import numpy as np
import pytest

from accounting import Laplace
from streams.records import MAX_ROSTERS
from streams.sdk.errors import (
    Fenced,
    InvalidRequest,
    PolicyChanged,
    RequestRejected,
    TurnstileError,
)
from streams.sdk.run import Run
from tests.audit.bad_input import BAD_INPUT, PARTITIONS, as_msgpack
from tests.audit.bad_input import TrainerThread as Records
from tests.integration.service import Service

CASES = {case.reason: case for case in BAD_INPUT.values()}
"""One case of each reason."""


@dataclass
class TrainerThread:
    """A dataset with one run that has charged step 0, seen from partition 0."""

    service: Service
    dataset: str
    run: Run
    users: list[int]  # they live in partition 0; the last two are not charged yet

    def charge(self, step: int = 1, **changes: Any) -> dict[str, Any]:
        """A charge that the worker must accept, unless the changes spoil it."""
        records = Records(self.dataset, self.run.name, self.users)
        return records.charge(**{"step": step, "attempt": self.run.attempt, **changes})

    def assert_rejected(self, reason: str, value: bytes | dict[str, Any] | None) -> None:
        """The record goes to `rejects` with this reason, and no account moves."""
        before = self.service.state(self.dataset)
        offset = self.service.publish(0, value)
        audit = self.service.audit()  # which compares the original bytes too
        assert audit.rejects[0, offset][0] == reason
        assert self.service.state(self.dataset) == before

    def assert_goes_on(self, step: int = 1) -> None:
        """A good charge after the bad one is decided, and paid."""
        before = self.service.state(self.dataset)
        offset = self.service.publish(0, self.charge(step))
        audit = self.service.audit()
        assert audit.charged[0, offset]["admitted"] == [True] * len(self.users)
        after = self.service.state(self.dataset)
        for user in self.users:
            spent = before[user][0][0] if user in before else 0
            assert after[user][0][0] == spent + 2**44 // 32


@pytest.fixture
def lane(shared: Service, name: str) -> TrainerThread:
    return open_lane(shared, name)


def open_lane(service: Service, name: str, **policy: Any) -> TrainerThread:
    service.client.create_dataset(name, **{"budget": 1.0, "user_ids": "mixed", **policy})
    run = service.client.run(name, f"run-{name}")
    users = service.users(4, partition=0)
    run.charge(users[:2], [1.0, 0.5], noise_stddev=4.0)
    return TrainerThread(service, name, run, users)


def lanes(service: Service, dataset: str) -> Iterator[Records]:
    """Return a run for each case, and users that no other case charges."""
    assert service.partitions == PARTITIONS
    users = iter(service.users(4 * len(CASES), partition=0))
    policies = [case.policy for case in CASES.values()]
    for number, policy in enumerate(policies):
        of_policy = f"{dataset}-{policies.index(policy)}-{number // MAX_ROSTERS}"
        yield Records(of_policy, f"run-{number}", [next(users) for _ in range(4)])


def test_each_kind_of_bad_input_is_rejected_and_the_stream_goes_on(
    shared: Service, name: str
) -> None:
    cases = list(zip(CASES.values(), lanes(shared, name), strict=True))
    for dataset, policy in {lane.dataset: case.policy for case, lane in cases}.items():
        shared.client.create_dataset(dataset, budget=1.0, assume_independent_timing=True, **policy)
    values: list[bytes | None] = []
    for case, lane in cases:
        opened, good = lane.about_run("open-run"), lane.charge()
        values += [as_msgpack(opened), *case.before(lane), case.record(lane), as_msgpack(good)]
    offsets = iter(shared.publish_all(0, values))
    audit = shared.audit()  # which compares the original bytes and all accounts
    for reason, (case, lane) in zip(CASES, cases, strict=True):
        _, first, *_, bad, good = (next(offsets) for _ in range(3 + len(case.before(lane))))
        assert audit.charged[0, first]["admitted"] == [True] * 2, reason
        assert audit.rejects[0, bad][0] == reason
        assert audit.charged[0, good]["admitted"] == [True] * 4, reason
    states = {dataset: shared.state(dataset) for dataset in {lane.dataset for _, lane in cases}}
    for reason, (case, lane) in zip(CASES, cases, strict=True):
        state = states[lane.dataset]
        unit = 2**44 // 16 if case.policy.get("measure") == "gdp" else 2**44 // 32
        spent = [state[user][0][0] for user in lane.users]
        assert spent == [2 * unit, unit + unit // 4, unit, unit], reason


def test_what_a_worker_cannot_write_is_rejected_before_anybody_is_charged(
    shared: Service, name: str
) -> None:
    """256 orders x 140,000 users ended the worker, and the next one, for ever."""
    orders = [2.0 + i for i in range(256)]
    lane = open_lane(shared, name, measure="renyi", orders=orders, budget=orders)
    users = np.arange(140_000)
    norms = np.full(len(users), 0.1)
    lane.assert_rejected("too-large", lane.charge(users=users.tobytes(), norms=norms.tobytes()))
    offset = lane.service.publish(0, lane.charge())
    assert lane.service.audit().charged[0, offset]["admitted"] == [True] * 4


def test_a_mechanism_that_the_policy_cannot_charge_is_refused_by_the_sdk(
    shared: Service, name: str
) -> None:
    lane = open_lane(shared, name, measure="gdp")
    with pytest.raises(InvalidRequest):
        lane.run.charge([1], [0.5], mechanism=Laplace(1.0))
    lane.service.publish(0, lane.charge())
    assert lane.service.audit().runs[0][name, lane.run.name].step == 1


def test_a_policy_never_changes_after_the_first_charge(lane: TrainerThread) -> None:
    before = lane.service.state(lane.dataset)
    with pytest.raises(PolicyChanged):
        lane.service.client.create_dataset(lane.dataset, budget=2.0)
    audit = lane.service.audit()
    assert lane.service.state(lane.dataset) == before
    assert "policy-changed" in {reason for reason, _ in audit.rejects.values()}
    lane.service.client.create_dataset(lane.dataset, budget=1.0)  # the same one is no change
    lane.assert_goes_on()


def test_a_run_of_an_unknown_dataset_is_refused(lane: TrainerThread) -> None:
    with pytest.raises(RequestRejected) as rejected:
        lane.service.client.run("nobody-created-this", "r")
    assert rejected.value.reason == "unknown-dataset"
    lane.assert_goes_on()


def test_a_step_sent_twice_gets_the_same_decision_and_is_charged_once(lane: TrainerThread) -> None:
    first = lane.service.publish(0, lane.charge())
    lane.service.audit()
    before = lane.service.state(lane.dataset)
    lane.service.publish(0, lane.charge())
    # Packed, or as JSON, it is the same content.
    packed = lane.charge(users=np.array(lane.users, dtype="<i8").tobytes())
    lane.service.publish(0, packed)
    lane.service.publish(0, msgspec.json.encode(lane.charge()))
    audit = lane.service.audit()
    assert lane.service.state(lane.dataset) == before
    assert audit.runs[0][lane.dataset, lane.run.name].decision == audit.charged[0, first]
    lane.assert_goes_on(step=2)


def test_an_older_attempt_is_fenced_and_can_no_longer_charge(lane: TrainerThread) -> None:
    old = lane.charge()
    newer = lane.service.client.run(lane.dataset, lane.run.name)
    assert newer.attempt == lane.run.attempt + 1
    lane.assert_rejected("older-attempt", old)
    with pytest.raises(Fenced):
        lane.run.charge(lane.users, [1.0] * 4, noise_stddev=4.0)
    with pytest.raises(TurnstileError):
        lane.run.charge(lane.users, [1.0] * 4, noise_stddev=4.0)
    lane.run = newer
    lane.assert_goes_on()


def test_json_records_are_decided_like_messagepack_ones(lane: TrainerThread) -> None:
    offset = lane.service.publish(0, msgspec.json.encode(lane.charge()))
    audit = lane.service.audit()
    assert audit.charged[0, offset]["admitted"] == [True] * 4
    bad = lane.charge(step=2, norms=[1.0, 1.0, 1.0, -1.0])
    lane.assert_rejected("invalid-norm", msgspec.json.encode(bad))
    request = {
        "type": "open-run",
        "dataset": lane.dataset,
        "run": lane.run.name,
        "attempt": 5,
        "request": uuid4().hex,
    }
    lane.service.publish(0, msgspec.json.encode(request))
    assert lane.service.audit().runs[0][lane.dataset, lane.run.name].attempt == 5


def test_an_empty_step_is_decided_and_costs_nothing(lane: TrainerThread) -> None:
    before = lane.service.state(lane.dataset)
    for users in ([], np.empty(0, dtype=np.int64)):
        decision = lane.run.charge(users, [], noise_stddev=1.0)
        assert decision.admitted.shape == (0,)
    lane.service.audit()
    assert lane.service.state(lane.dataset) == before
    lane.assert_goes_on(step=3)


def test_one_user_is_charged_in_one_partition(lane: TrainerThread) -> None:
    decision = lane.run.charge(["alone"], [1.0], noise_stddev=4.0)
    assert decision.admitted.tolist() == [True]
    lane.service.audit()
    assert lane.service.state(lane.dataset)["alone"][0] == (2**44 // 32,)


def test_zero_norms_are_admitted_and_cost_nothing(lane: TrainerThread) -> None:
    before = lane.service.state(lane.dataset)
    decision = lane.run.charge(lane.users, [0.0, -0.0, 0.0, 0.0], noise_stddev=1e-300)
    assert decision.admitted.all()
    assert not decision.exhausted.any()
    lane.service.audit()
    after = lane.service.state(lane.dataset)
    assert {user: after[user] for user in before} == before
    assert all(after[user][0] == (0,) for user in lane.users[2:])
    lane.assert_goes_on(step=2)


def test_an_integer_and_the_string_of_its_digits_are_different_users(lane: TrainerThread) -> None:
    users: list[int | str] = [901, "901", 902, "902", 949]
    assert lane.run.charge(users, [4.0, 1.0, 4.0, 1.0, 0.0], noise_stddev=4.0).admitted.all()
    lane.service.audit()
    state = lane.service.state(lane.dataset)
    assert (state[901][0], state["901"][0]) == ((2**43,), (2**43 // 16,))
    assert (state[902][0], state["902"][0]) == ((2**43,), (2**43 // 16,))


def test_the_sdk_refuses_what_makes_no_sense_and_publishes_nothing(lane: TrainerThread) -> None:
    client, ends = lane.service.client, lane.service.log.norms_ends()
    with pytest.raises(InvalidRequest):
        lane.run.charge([1, 2], [1.0, np.nan], noise_stddev=4.0)
    with pytest.raises(InvalidRequest):
        lane.run.charge(range(3_000_000), np.ones(3_000_000), noise_stddev=4.0)
    with pytest.raises(InvalidRequest):
        client.create_dataset(lane.dataset, measure="vibes", budget=1.0)
    with pytest.raises(InvalidRequest):
        client.create_dataset("a/b", budget=1.0)
    with pytest.raises(InvalidRequest):
        client.run(lane.dataset, "a b")
    assert lane.service.log.norms_ends() == ends
    assert lane.run.charge(lane.users, [1.0] * 4, noise_stddev=4.0).step == 1


def test_a_hundred_thousand_users_are_charged_in_one_step(lane: TrainerThread) -> None:
    users = np.arange(-50_000, 50_000)
    norms = np.resize([0.25, 1.0, 8.0, 0.0], users.size)  # 8.0 costs twice the budget
    decision = lane.run.charge(users, norms, noise_stddev=4.0)
    assert decision.halted.sum() == users.size // 4
    assert (decision.admitted == (norms < 8.0)).all()
    offset = lane.service.publish(0, lane.charge(step=2))
    assert lane.service.audit().charged[0, offset]["admitted"] == [True] * 4
