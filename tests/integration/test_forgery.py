"""What becomes of records in `halts` and `rejects` that no worker has written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from kafka import KafkaProducer

from streams.schemas import Charge, Decision, Reason, Rejected, decode_request, encode
from streams.sdk.errors import ConflictingDecisions, RequestRejected, Unusable
from streams.sdk.run import Run, StepDecision
from streams.wire.packing import charge_digest, pack_bits, unpack_users
from tests.integration.service import Service, ServiceFactory, eventually

USERS = list(range(12))


@pytest.fixture(scope="module")
def shared(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=1, partitions=2) as service:
        yield service


@pytest.fixture(scope="module")
def write(shared: Service) -> Iterator[Callable[..., Any]]:
    """Writes to a topic as anybody could who reaches the broker."""
    producer = KafkaProducer(bootstrap_servers=shared.kafka, acks="all")

    def send(topic: str, partition: int, value: bytes | None) -> None:
        name = shared.config.topic(topic)
        producer.send(name, value=value, key=b"k", partition=partition).get(timeout=30)

    yield send
    producer.close()


@contextmanager
def without_workers(service: Service) -> Iterator[None]:
    """All that was published is decided; what is published meanwhile is decided afterwards."""
    service.settle()
    for worker in service.stack.workers:
        if worker.running:
            service.stack.stop_worker(worker.index)
    yield
    service.stack.start_worker()


def exhausted_run(service: Service, name: str) -> Run:
    """A run whose users have spent everything."""
    service.client.create_dataset(name, budget=0.5)
    run = service.client.run(name, "r")
    assert run.charge(USERS, np.ones(12), noise_stddev=1.0).exhausted.all()
    return run


def forged_admissions(service: Service, dataset: str, step: int) -> dict[int, Decision]:
    """Decisions that admit everybody, made of nothing but what stands in `norms`."""
    service.log.refresh()
    forged = {}
    for partition, offset, value in service.log.records["norms"]:
        request = decode_request(value)
        if isinstance(request, Charge) and (request.dataset, request.step) == (dataset, step):
            users = len(unpack_users(request.users))
            forged[partition] = Decision(
                v=request.v,
                dataset=dataset,
                run=request.run,
                attempt=request.attempt,
                step=step,
                partition=partition,
                offset=offset,
                digest=charge_digest(request),
                users=users,
                admitted=pack_bits(np.ones(users, dtype=bool)),
                exhausted=pack_bits(np.zeros(users, dtype=bool)),
                halted=b"",
            )
    return forged


def test_a_forged_decision_that_comes_first_is_believed_for_one_step_at_most(
    shared: Service, name: str, write: Callable[..., Any]
) -> None:
    run = exhausted_run(shared, name)
    told: list[StepDecision] = []
    with without_workers(shared):
        charging = threading.Thread(
            target=lambda: told.append(run.charge(USERS, np.ones(12), noise_stddev=1.0))
        )
        charging.start()
        forged = eventually(lambda: len(found := forged_admissions(shared, name, 1)) == 2 and found)
        for partition, decision in forged.items():
            write("halts", partition, encode(decision))
        charging.join()
    # With nobody there to contradict it, a forged decision is a decision.
    assert told[0].admitted.all()
    # The workers' own decisions come later, and end the run.
    eventually(lambda: run._witness._conflict)
    with pytest.raises(ConflictingDecisions, match="somebody else"):
        run.charge(USERS, np.ones(12), noise_stddev=1.0)
    with pytest.raises(Unusable):
        run.charge(USERS, np.ones(12), noise_stddev=1.0)
    with pytest.raises(ConflictingDecisions):
        list(shared.client.halts(name, follow=False))
    assert not shared.state(name) or all(row[0][0] == 2**43 for row in shared.state(name).values())


def test_a_forged_decision_that_comes_after_the_true_one_ends_the_run(
    shared: Service, name: str, write: Callable[..., Any]
) -> None:
    run = exhausted_run(shared, name)
    assert run.charge(USERS, np.ones(12), noise_stddev=1.0).halted.all()
    for partition, decision in forged_admissions(shared, name, 1).items():
        write("halts", partition, encode(decision))
    eventually(lambda: run._witness._conflict)
    with pytest.raises(ConflictingDecisions):
        run.charge(USERS, np.ones(12), noise_stddev=1.0)


def test_what_cannot_be_read_ends_nothing(
    shared: Service, name: str, write: Callable[..., Any]
) -> None:
    shared.client.create_dataset(name, budget=1.0)
    run = shared.client.run(name, "r")
    for topic in ("halts", "rejects", "odometer"):
        for junk in (None, b"", b"\xc1", b"\x01", b"{}", b"\x91" * 5000, encode({"type": "x"})):
            write(topic, 0, junk)
    decision = run.charge(USERS, np.ones(12), noise_stddev=1.0)
    assert decision.admitted.all()
    shared.settle()  # a decision is heard before the broker has the checkpoints that come with it
    assert list(shared.client.halts(name, follow=False)) == []
    assert len(list(shared.client.odometer(name, follow=False))) > 0
    cut = forged_admissions(shared, name, 0)[0]
    for damaged in ({"users": 99}, {"users": -1}, {"users": 2**60}, {"halted": b"123"}):
        record = msgspec.structs.replace(cut, dataset=f"{name}-other", **damaged)
        write("halts", 0, encode(record))
    assert list(shared.client.halts(f"{name}-other", follow=False)) == []
    assert run.charge(USERS, np.ones(12), noise_stddev=1.0).step == 1


def test_a_forged_refusal_ends_an_attempt_and_costs_nothing(
    shared: Service, name: str, write: Callable[..., Any]
) -> None:
    shared.client.create_dataset(name, budget=1.0)
    run = shared.client.run(name, "r")
    errors: list[BaseException] = []

    def charge() -> None:
        try:
            run.charge(USERS, np.ones(12), noise_stddev=1.0)
        except RequestRejected as error:
            errors.append(error)

    with without_workers(shared):
        charging = threading.Thread(target=charge)
        charging.start()
        forged = eventually(lambda: len(found := forged_admissions(shared, name, 0)) == 2 and found)
        offset = forged[0].offset
        charges = shared.log.records["norms"]
        record = Rejected(
            partition=0,
            offset=offset,
            reason=Reason.OLDER_ATTEMPT,
            detail="forged",
            record=next(value for p, at, value in charges if (p, at) == (0, offset)),
            dataset=name,
            run="r",
            attempt=run.attempt,
            step=0,
        )
        write("rejects", 0, encode(record))
        charging.join()
    assert [str(error) for error in errors if "forged" in str(error)]
    # The step was charged all the same: it is handed back, and charged once.
    again = shared.client.run(name, "r", released=-1)
    assert again.interrupted
    assert again.charge(USERS, np.ones(12), noise_stddev=1.0).admitted.all()
    assert {row[0] for row in shared.state(name).values()} == {(2**43,)}
