"""Datasets and runs on a real broker: the state of all partitions, and the effects of an
opening.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from kafka.admin import KafkaAdminClient

from streams.records.users import partitions_of
from streams.sdk.client import Turnstile
from streams.sdk.errors import (
    DatasetInUse,
    DecisionTimeout,
    PartitionsDisagree,
    PolicyChanged,
    RunIsClosed,
    TurnstileError,
)
from streams.sdk.run import Run
from tests.integration.service import KILLED, Life, Service, ServiceFactory


@pytest.fixture(scope="module")
def shared(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=1, partitions=3) as service:
        yield service


@pytest.fixture(autouse=True)
def everything_is_as_audited(shared: Service) -> Iterator[None]:
    yield
    shared.audit()


def rejects(service: Service, dataset: str) -> list[str]:
    service.settle()
    service.log.refresh()
    records = [msgspec.msgpack.decode(v or b"") for _, _, v in service.log.records["rejects"]]
    return [record["reason"] for record in records if record["dataset"] == dataset]


def charges(service: Service) -> int:
    service.log.refresh()
    records = [msgspec.msgpack.decode(v or b"") for _, _, v in service.log.records["norms"]]
    return sum(record["type"] == "charge" for record in records)


def test_a_normal_resume_leaves_no_rejects(shared: Service, name: str) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0)
    for attempt in range(1, 5):
        with shared.turnstile() as client:
            run = client.run(name, "r")
            assert (run.attempt, run.step) == (attempt, attempt - 1)
            run.charge([1, 2, 3], np.ones(3), noise_stddev=4.0)
    assert rejects(shared, name) == []


def test_only_one_of_several_trainers_that_open_a_run_at_once_continues(
    shared: Service, name: str
) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0)
    runs: list[Run] = []
    threads = [
        threading.Thread(target=lambda: runs.append(shared.client.run(name, "r"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run.attempt for run in runs}) == 4
    decided = []
    for run in sorted(runs, key=lambda run: -run.attempt):
        try:
            decided.append(run.charge([1, 2, 3], np.ones(3), noise_stddev=4.0).step)
        except TurnstileError:
            continue
    assert decided == [0]
    assert {spent for spent, *_ in shared.state(name).values()} == {(2**39,)}


def test_a_run_is_closed_permanently(shared: Service, name: str) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=1.0)
    run = shared.client.run(name, "r")
    run.charge([1, 2, 3], np.ones(3), noise_stddev=4.0)
    run.close()
    run.close()
    with pytest.raises(RunIsClosed):
        run.charge([1, 2, 3], np.ones(3), noise_stddev=4.0)
    with shared.turnstile() as other, pytest.raises(RunIsClosed):
        other.run(name, "r")
    assert shared.client.run(name, "s").step == 0


CREATOR = """
import os, signal, sys
from kafka import KafkaProducer
from streams.sdk.client import Turnstile

kafka, prefix, name = sys.argv[1:]
turnstile = Turnstile(kafka, prefix=prefix)
send, sent = KafkaProducer.send, []


def send_once(producer, *arguments, **options):
    if sent:
        os.kill(os.getpid(), signal.SIGKILL)
    sent.append(arguments)
    return send(producer, *arguments, **options)


KafkaProducer.send = send_once
turnstile.create_dataset(name, measure="zcdp", budget=8.0)
"""


def create_incomplete(service: Service, name: str, life: Life) -> None:
    """Kill a creator after the first partition has answered."""
    assert life("-c", CREATOR, service.kafka, service.prefix, name) == KILLED
    holders = [p for p, ledger in service.ledgers().items() if name in ledger.state.datasets]
    assert holders == partitions_of([name], service.partitions).tolist()


def test_an_incomplete_dataset_can_be_completed_with_its_policy(
    shared: Service, name: str, life: Life
) -> None:
    create_incomplete(shared, name, life)
    with pytest.raises(PolicyChanged):
        shared.client.create_dataset(name, measure="zcdp", budget=1.0)
    with pytest.raises(PartitionsDisagree):
        shared.client.run(name, "r")
    shared.client.create_dataset(name, measure="zcdp", budget=8.0)
    run = shared.client.run(name, "r")
    assert run.policy.budget == [8 * 2**44]
    assert run.charge(list(range(30)), np.full(30, 4.0), noise_stddev=1.0).admitted.all()


def test_an_incomplete_dataset_can_be_withdrawn(shared: Service, name: str, life: Life) -> None:
    create_incomplete(shared, name, life)
    shared.client.withdraw_dataset(name)
    assert shared.client.create_dataset(name, measure="zcdp", budget=1.0).budget == [2**44]
    run = shared.client.run(name, "r")
    assert run.charge(list(range(30)), np.full(30, 4.0), noise_stddev=1.0).halted.all()
    with pytest.raises(DatasetInUse):
        shared.client.withdraw_dataset(name)


def test_a_dataset_under_two_budgets_is_not_charged(shared: Service, name: str) -> None:
    policy: dict[str, Any] = {
        "dataset": name,
        "partitions": 3,
        "measure": "zcdp",
        "odometer_step": [2**40],
    }
    for partition, budget in enumerate([8, 1, 1]):  # as another client might leave it
        request = {"type": "create-dataset", "request": "token"}
        shared.publish(partition, {**request, "policy": {**policy, "budget": [budget * 2**44]}})
    shared.settle()
    before = charges(shared)
    with pytest.raises(PartitionsDisagree):
        shared.client.run(name, "r")
    assert charges(shared) == before


@pytest.mark.fault
def test_after_partitions_were_added_nothing_is_charged(start_service: ServiceFactory) -> None:
    with start_service(workers=1, partitions=2) as service:
        service.client.create_dataset("d", measure="zcdp", budget=1.0)
        run = service.client.run("d", "r")
        run.charge(list(range(40)), np.full(40, 1.4), noise_stddev=1.0)
        service.settle()
        before = charges(service)
        admin = KafkaAdminClient(bootstrap_servers=service.kafka)
        topics = ("norms", "halts", "rejects", "odometer")
        admin.create_partitions({service.config.topic(name): 4 for name in topics})
        admin.close()
        with pytest.raises(PartitionsDisagree):
            service.client.run("d", "r")
        with pytest.raises(PartitionsDisagree):
            service.client.create_dataset("e", measure="zcdp", budget=1.0)
        with service.turnstile(timeout=5.0) as late:
            assert late.partitions == 4
            # Workers then stop, or answer that the new partitions have no state.
            with pytest.raises((PartitionsDisagree, DecisionTimeout)):
                late.run("d", "r")
            with pytest.raises(TurnstileError):
                late.create_dataset("d", measure="zcdp", budget=1.0)
        assert charges(service) == before


def test_a_closed_client_or_one_of_another_process_raises(shared: Service, name: str) -> None:
    turnstile = Turnstile(shared.kafka, prefix=shared.prefix)
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    run = turnstile.run(name, "r")
    following = turnstile.halts(name)
    turnstile.close()
    turnstile.close()
    for call in (
        lambda: run.charge([1], [1.0], noise_stddev=1.0),
        lambda: turnstile.run(name, "r"),
        lambda: turnstile.create_dataset(name, measure="zcdp", budget=1.0),
        lambda: turnstile.withdraw_dataset(name),
        lambda: turnstile.odometer(),
        lambda: next(following),
    ):
        with pytest.raises(TurnstileError):
            call()


FORKED = """
import os, sys
import numpy as np
from streams.sdk.client import Turnstile
from streams.sdk.errors import Unusable

kafka, prefix, name = sys.argv[1:]
with Turnstile(kafka, prefix=prefix) as turnstile:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    run = turnstile.run(name, "r")
    child = os.fork()
    if child == 0:
        try:
            run.charge([1], [1.0], noise_stddev=1.0)
        except Unusable:
            turnstile.close()
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert run.charge([1], [1.0], noise_stddev=1.0).step == 0
"""


def test_a_forked_process_does_not_charge_on_its_parent_s_connection(
    shared: Service, name: str, life: Life
) -> None:
    assert life("-c", FORKED, shared.kafka, shared.prefix, name) == 0
