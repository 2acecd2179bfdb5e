"""Valid charges end to end: decisions agree with rational arithmetic and never change."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pytest

from accounting import Gaussian, Laplace, PureDP
from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout, Fenced, StepContentChanged, Unusable
from tests.audit.auditor_state import home
from tests.integration.service import Service, ServiceFactory

ONE = 2**44
"""The units of a budget of 1."""


@pytest.fixture(autouse=True)
def everything_is_as_audited(shared: Service) -> Iterator[None]:
    yield
    shared.audit()


def test_the_budget_is_spent_to_its_last_unit_and_never_exceeded(
    shared: Service, name: str
) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0)
    run = shared.client.run(name, "r")
    users = list(range(20))
    for step in range(32):
        decision = run.charge(users, np.ones(20), noise_stddev=4.0)
        assert decision.step == step
        assert decision.admitted.all()
        assert decision.exhausted.all() == (step == 31)
    for _ in range(2):
        decision = run.charge(users, np.ones(20), noise_stddev=4.0)
        assert decision.halted.all()
        assert decision.exhausted.all()
        assert not decision.granted.any()
    smallest = run.charge(users, np.full(20, 5e-324), noise_stddev=1e300)
    assert smallest.halted.all()  # it would cost one unit
    assert run.charge(users, np.zeros(20), noise_stddev=4.0).admitted.all()
    assert {spent for spent, *_ in shared.state(name).values()} == {(ONE,)}


def test_a_cheaper_step_is_admitted_after_a_halt(shared: Service, name: str) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0)
    run = shared.client.run(name, "r")
    assert run.charge(["a", "b"], [1.0, 0.1], noise_stddev=1.0).admitted.all()
    halted = run.charge(["a", "b"], [1.1, 0.1], noise_stddev=1.0)
    assert halted.admitted.tolist() == [False, True]
    assert halted.exhausted.tolist() == [False, False]
    assert halted.granted.tolist() == [0.0, 0.1]
    cheaper = run.charge(["b", "a"], [0.1, 0.5], noise_stddev=1.0)
    assert cheaper.admitted.tolist() == [True, True]
    last = run.charge(["a", "b"], [math.sqrt(0.75), 0.0], noise_stddev=1.0)
    assert last.admitted.all()
    state = shared.state(name)
    assert ONE - 1 <= state["a"][0][0] <= ONE


def test_clipping_grants_the_remaining_budget_until_it_is_spent(shared: Service, name: str) -> None:
    shared.client.create_dataset(
        name, measure="zcdp", budget=1.0, on_exhaustion="clip", user_ids="mixed"
    )
    run = shared.client.run(name, "r")
    users = ["small", "large", "zero", 4]
    first = run.charge(users, [1.0, 2.0, 0.0, 1.2], noise_stddev=1.0)
    assert first.admitted.all()
    assert first.granted[[0, 2, 3]].tolist() == [1.0, 0.0, 1.2]
    assert first.granted[1] == pytest.approx(math.sqrt(2.0), rel=2**-48)
    assert first.exhausted.tolist() == [False, True, False, False]
    second = run.charge(users, [1.5, 1.0, 0.0, 1.2], noise_stddev=1.0)
    assert second.admitted.tolist() == [True, False, True, True]
    assert second.granted[0] == pytest.approx(1.0, rel=2**-48)
    assert second.granted[3] == pytest.approx(math.sqrt(2.0 - 1.44), rel=2**-40)
    assert second.exhausted.tolist() == [True, True, False, True]
    third = run.charge(users, [0.0, 1e-9, 0.0, 1.0], noise_stddev=1.0)
    assert third.admitted.tolist() == [True, False, True, False]
    state = shared.state(name)
    assert [state[user][0][0] for user in users] == [ONE, ONE, 0, ONE]


MEASURES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "zcdp": ({"measure": "zcdp", "budget": 0.3}, [Gaussian(1.7), Laplace(3.1), PureDP()]),
    "zcdp from epsilon": (
        {"measure": "zcdp", "epsilon": 2.0, "delta": 1e-6, "odometer_step": 0.013},
        [Gaussian(3.3)],
    ),
    "zcdp clip": (
        {"measure": "zcdp", "budget": 0.3, "on_exhaustion": "clip"},
        [Gaussian(1.7), Gaussian(0.9)],
    ),
    "gdp": ({"measure": "gdp", "budget": 1.1}, [Gaussian(1.3), Gaussian(2.1)]),
    "gdp from epsilon": ({"measure": "gdp", "epsilon": 1.0, "delta": 1e-5}, [Gaussian(2.0)]),
    "gdp clip": (
        {"measure": "gdp", "budget": 1.1, "odometer_step": 0.2, "on_exhaustion": "clip"},
        [Gaussian(1.3)],
    ),
    "renyi, one order": (
        {"measure": "renyi", "orders": [1.1], "budget": [0.7], "odometer_step": [0.01]},
        [Gaussian(1.7), Laplace(2.3), PureDP()],
    ),
    "renyi, three orders": (
        {
            "measure": "renyi",
            "orders": [1.5, 3.7, 32],
            "budget": [0.7, 0.9, 6.0],
            "odometer_step": [0.1, 0.09, 0.7],
        },
        [Gaussian(2.7), Laplace(4.3), PureDP()],
    ),
    "renyi, three orders, clip": (
        {
            "measure": "renyi",
            "orders": [1.5, 3.7, 32.1],
            "budget": [0.7, 0.9, 6.0],
            "on_exhaustion": "clip",
        },
        [Gaussian(2.7), Gaussian(1.1)],
    ),
    "steps": (
        {"measure": "steps", "noise_multiplier": 0.4, "budget": 4},
        [Gaussian(2.7), Gaussian(1.3)],
    ),
}


@pytest.mark.parametrize(("policy", "mechanisms"), MEASURES.values(), ids=MEASURES)
def test_every_measure_decides_as_rational_arithmetic_does(
    shared: Service, name: str, policy: dict[str, Any], mechanisms: list[Any]
) -> None:
    shared.client.create_dataset(name, **policy)
    run = shared.client.run(name, "r")
    random = np.random.default_rng(2024)
    halted = admitted = 0
    for step in range(24):
        users = random.choice(60, size=40, replace=False)
        norms = np.round(random.gamma(2.0, 0.35, size=40), 3) * (random.random(40) < 0.9)
        mechanism = mechanisms[step % len(mechanisms)]
        decision = run.charge(users, norms, mechanism=mechanism, clip_norm=float(norms.max()))
        halted += int(decision.halted.sum())
        admitted += int(decision.admitted.sum())
        assert (decision.granted <= norms).all()
        assert not decision.granted[decision.halted].any()
    assert halted  # some users' budgets are exhausted
    assert admitted > 100


IDS = {
    "integers": [0, 1, -1, 2**63 - 1, -(2**63), 7],
    "strings": ["a", "ü", "名前", "x" * 256, "1", " ", "\x00", "🦊" * 63],
    "mixed": [1, "1", -1, "-1", 2**40, "b", "\n"],
}


@pytest.mark.parametrize("users", IDS.values(), ids=IDS)
def test_every_kind_of_user_id_is_charged_on_its_own(
    shared: Service, name: str, users: list[int | str]
) -> None:
    kinds = {type(user) for user in users}
    shared.client.create_dataset(
        name, measure="zcdp", budget=1.0, user_ids="mixed" if len(kinds) == 2 else "one-kind"
    )
    run = shared.client.run(name, "r")
    norms = np.arange(1, len(users) + 1) / 4
    for order in (users, users[::-1], users):
        values = norms if order == users else norms[::-1]
        decision = run.charge(order, values, noise_stddev=2.0)
        last = order == users and decision.step == 2
        assert decision.admitted.all() or last
    assert decision.admitted.tolist() == [3 * norm**2 <= 8 for norm in norms]
    state = shared.state(name)
    assert set(state) == set(users)
    partitions = {p for p in range(shared.partitions) for u in users if home(u, 3) == p}
    assert len(partitions) > 1


def test_integer_users_can_come_as_an_array_or_a_list(shared: Service, name: str) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0)
    run = shared.client.run(name, "r")
    for users in ([3, 4], np.array([3, 4]), np.array([3, 4], dtype=np.uint8), range(3, 5)):
        assert run.charge(users, [1.0, 1.0], noise_stddev=2.0).admitted.all()
    assert {spent for spent, *_ in shared.state(name).values()} == {(ONE // 2,)}


def test_two_runs_of_one_dataset_share_its_budgets(shared: Service, name: str) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0, assume_independent_timing=True)
    runs = [shared.client.run(name, run) for run in ("training", "queries")]
    admitted = [
        run.charge(["t", "u"], [1.0, 0.5], noise_stddev=1.0).admitted.tolist()
        for _ in range(2)
        for run in runs
    ]
    assert admitted == [[True, True], [True, True], [False, True], [False, True]]
    assert shared.state(name)["t"][0] == (ONE,)
    assert shared.state(name)["u"][0] == (ONE // 2,)


def test_two_datasets_are_independent(shared: Service, name: str) -> None:
    for dataset, budget in ((name, 1.0), (f"{name}-2", 0.5)):
        shared.client.create_dataset(dataset, measure="zcdp", budget=budget)
    runs = [shared.client.run(dataset, "r") for dataset in (name, f"{name}-2")]
    admitted = [
        run.charge([1], [1.0], noise_stddev=1.0).admitted.tolist() for _ in range(2) for run in runs
    ]
    assert admitted == [[True], [True], [True], [False]]


def test_a_new_attempt_continues_at_the_next_step_and_fences_the_old_one(
    shared: Service, name: str
) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0)
    old = shared.client.run(name, "r")
    assert (old.attempt, old.step, old.interrupted) == (1, 0, False)
    for _ in range(3):
        old.charge([1, 2, 3], np.ones(3), noise_stddev=4.0)
    with shared.turnstile() as other:
        new = other.run(name, "r")
        assert (new.attempt, new.step, new.interrupted) == (2, 3, False)
        before = shared.state(name)
        with pytest.raises(Fenced) as fenced:
            old.charge([1, 2, 3], np.ones(3), noise_stddev=4.0)
        assert fenced.value.current_attempt == 2
        with pytest.raises(Unusable):
            old.charge([1, 2, 3], np.ones(3), noise_stddev=4.0)
        new.abandon()  # no step is interrupted
        assert shared.state(name) == before
        assert new.charge([1, 2, 3], np.ones(3), noise_stddev=4.0).step == 3
    assert shared.client.run(name, "r").step == 4


USERS = np.arange(30)
NORMS = np.linspace(0.5, 8.0, 30)


def interrupt(service: Service, dataset: str, run: str, partitions: list[int]) -> None:
    """Send the next step to some partitions only, in the SDK's form."""
    opened = service.client.run(dataset, run)
    for partition in partitions:
        mine = [home(int(user), service.partitions) == partition for user in USERS]
        charge = {
            "type": "charge",
            "dataset": dataset,
            "run": run,
            "attempt": opened.attempt,
            "step": opened.step,
            "users": USERS[mine].astype("<i8").tobytes(),
            "norms": NORMS[mine].astype("<f8").tobytes(),
            "scale": 4.0,
        }
        service.publish(partition, charge)
    service.settle()


@pytest.mark.parametrize("partitions", [[0], [1, 2], [0, 1, 2]], ids=str)
def test_an_interrupted_step_is_completed_by_sending_it_again(
    shared: Service, name: str, partitions: list[int]
) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0)
    shared.client.run(name, "r").charge(USERS, NORMS, noise_stddev=16.0)
    interrupt(shared, name, "r", partitions)
    halfway = shared.state(name)
    run = shared.client.run(name, "r")
    if len(partitions) == shared.partitions:  # all partitions have decided it
        assert (run.step, run.interrupted) == (2, False)
        return
    assert (run.step, run.interrupted) == (1, True)
    decision = run.charge(USERS, NORMS, noise_stddev=4.0)
    assert decision.step == 1
    assert not run.interrupted
    state = shared.state(name)
    for user, norm, admitted in zip(USERS.tolist(), NORMS, decision.admitted, strict=True):
        if home(user, shared.partitions) in partitions:
            assert state[user] == halfway[user]
        first = math.ceil(norm**2 / 512 * ONE)
        assert abs(state[user][0][0] - first - admitted * math.ceil(norm**2 / 32 * ONE)) <= 2
    assert decision.halted.any()
    assert run.charge(USERS, NORMS, noise_stddev=16.0).step == 2


def test_an_interrupted_step_cannot_be_completed_with_other_content(
    shared: Service, name: str
) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0)
    interrupt(shared, name, "r", [1])
    run = shared.client.run(name, "r")
    assert run.interrupted
    before = shared.state(name)
    assert before
    with pytest.raises(StepContentChanged):
        run.charge(USERS, NORMS / 2, noise_stddev=4.0)
    assert shared.state(name) == before  # partitions without a decision charged nothing
    assert run.charge(USERS, NORMS, noise_stddev=4.0).step == 0


def test_an_interrupted_step_can_be_abandoned(shared: Service, name: str) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0)
    interrupt(shared, name, "r", [2, 0])
    run = shared.client.run(name, "r")
    assert (run.step, run.interrupted) == (0, True)
    charged = shared.state(name)
    run.abandon()
    assert (run.step, run.interrupted) == (1, False)
    assert shared.state(name) == charged
    assert run.charge(USERS, NORMS, noise_stddev=4.0).step == 1


def test_halts_and_odometer_records_are_published_once_and_agree_with_the_audit(
    shared: Service, name: str
) -> None:
    shared.client.create_dataset(
        name, measure="zcdp", budget=1.0, odometer_step=0.25, user_ids="mixed"
    )
    run = shared.client.run(name, "r")
    users = [*range(12), "a", "b"]
    live = shared.client.halts(name, run="r", idle_timeout=2.0)
    expected_halts: list[tuple[int, int | str, bool]] = []
    random = np.random.default_rng(5)
    for _ in range(12):
        norms = random.choice([0.0, 0.7, 1.0, 1.3], size=len(users))
        decision = run.charge(users, norms, noise_stddev=2.0)
        for position in np.flatnonzero(decision.halted):
            halt = decision.step, users[position], bool(decision.exhausted[position])
            expected_halts.append(halt)
    # A repeated step publishes its decision again, under a new attempt too.
    again = shared.client.run(name, "r")
    for partition in range(shared.partitions):
        mine = [home(user, shared.partitions) == partition for user in users]
        charge = {
            "type": "charge",
            "dataset": name,
            "run": "r",
            "attempt": again.attempt,
            "step": again.step - 1,
            "users": [user for user, is_mine in zip(users, mine, strict=True) if is_mine],
            "norms": norms[mine].tobytes(),
            "scale": 2.0,
        }
        shared.publish(partition, charge)
    audit = shared.audit()
    assert all((name, "r") in runs for runs in audit.runs)

    def told_of(halts: Any) -> list[tuple[int, int | str, bool]]:
        return sorted(((h.step, h.user, h.exhausted) for h in halts), key=str)

    assert expected_halts
    assert told_of(live) == sorted(expected_halts, key=str)
    late = shared.client.halts(name, follow=False)
    assert told_of(late) == sorted(expected_halts, key=str)

    found = [
        (odometer.user, odometer.partition, odometer.offset, *odometer.bound)
        for odometer in shared.client.odometer(name, follow=False)
    ]
    expected = [
        (user, partition, offset, bound[0] / ONE)
        for dataset, user, partition, offset, bound in audit.odometers
        if dataset == name
    ]
    assert expected
    assert sorted(found, key=str) == sorted(expected, key=str)
    for user in users:
        mine = [entry for entry in found if entry[0] == user]
        assert mine == sorted(mine, key=lambda entry: entry[2])
        bounds = [bound for *_, bound in mine]
        assert bounds == sorted(bounds)
    only = shared.client.odometer(name, user="a", follow=False)
    assert [(c.partition, c.offset) for c in only] == [e[1:3] for e in found if e[0] == "a"]


def test_without_a_worker_a_charge_times_out_and_is_decided_once_later(
    start_service: ServiceFactory,
) -> None:
    with start_service(workers=1, partitions=2) as service:
        service.client.create_dataset("d", measure="zcdp", budget=1.0)
        run = service.client.run("d", "r")
        service.settle()
        service.stack.workers[0].stop()
        waiting: Turnstile = service.client
        for _ in range(2):
            with pytest.raises(DecisionTimeout):
                run.charge(USERS, NORMS, noise_stddev=4.0, timeout=0.5)
        with pytest.raises(DecisionTimeout):
            waiting.create_dataset("other", measure="zcdp", budget=1.0, timeout=0.2)
        service.stack.start_worker()
        decision = run.charge(USERS, NORMS, noise_stddev=4.0)
        assert decision.step == 0
        audit = service.audit()
        assert len(audit.charged) == service.partitions
        assert not audit.rejects
        published = [msgspec.msgpack.decode(v) for _, _, v in service.log.records["norms"]]
        assert sum(record["type"] == "charge" for record in published) == 3 * service.partitions
        state = service.state("d")
        for user, norm, admitted in zip(USERS.tolist(), NORMS, decision.admitted, strict=True):
            assert abs(state[user][0][0] - admitted * math.ceil(norm**2 / 32 * ONE)) <= 2


def test_clients_in_many_threads_share_one_connection(shared: Service, name: str) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0, assume_independent_timing=True)
    counts: dict[str, int] = {}

    def train(run_name: str) -> None:
        run = shared.client.run(name, run_name)
        counts[run_name] = sum(
            int(run.charge([1, 2, 3], np.ones(3), noise_stddev=4.0).admitted.sum())
            for _ in range(12)
        )

    names = [f"run-{i}-{uuid4().hex[:6]}" for i in range(4)]
    threads = [threading.Thread(target=train, args=(run_name,)) for run_name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts.values()) == 3 * 32  # 32 of 48 steps fit, of either run
    assert {spent for spent, *_ in shared.state(name).values()} == {(ONE,)}
