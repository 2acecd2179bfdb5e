"""Records in `halts` and `rejects` that no worker has written are ignored or noticed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from kafka import KafkaProducer

from streams.config import Config
from streams.kafka.authentic import record_signer_of, verifier_of
from streams.kafka.fenced_producer import KafkaFencedProducer
from streams.kafka.results import Origin, TopicsSeen
from streams.kafka.topics import Topics
from streams.ledger.outputs import Channel, Output
from streams.local import LocalStack
from streams.records import (
    Charge,
    Decision,
    Reason,
    Rejected,
    decode_request,
    encode,
)
from streams.records.digests import charge_digest
from streams.records.packing import pack_bits
from streams.records.signatures import new_keys
from streams.records.users import UserIds
from streams.sdk.client import Turnstile
from streams.sdk.decisions import StepDecision
from streams.sdk.run import Run
from tests.integration.service import IMPATIENT_WORKER, Service, ServiceFactory, eventually
from tests.waiting import HANGS_AFTER

USERS = list(range(12))


PRIVATE, PUBLIC = new_keys()


@pytest.fixture(scope="module")
def signed(start_service: ServiceFactory) -> Iterator[Service]:
    """Start a service whose workers sign, and whose shared client verifies signatures."""
    environment = {"TURNSTILE_SIGNING_KEY": PRIVATE, "TURNSTILE_TRUSTED_KEYS": PUBLIC}
    with (
        start_service(partitions=2, worker_environment=environment) as service,
        Turnstile(config=replace(service.config, trusted_keys=PUBLIC)) as client,
    ):
        service._client = client
        yield service


@pytest.fixture(scope="module")
def write(signed: Service) -> Iterator[Callable[[str, int, bytes], None]]:
    """Return a function that writes to a topic as any Kafka client could."""
    producer = KafkaProducer(bootstrap_servers=signed.kafka, acks="all")

    def send(topic: str, partition: int, value: bytes) -> None:
        sent = producer.send(signed.config.topic(topic), value, b"k", partition=partition)
        sent.get(timeout=HANGS_AFTER)

    yield send
    producer.close()


@contextmanager
def without_workers(service: Service) -> Iterator[None]:
    """Stop the workers for the block, after all published requests are decided."""
    service.settle()
    for worker in service.stack.workers:
        if worker.running:
            worker.stop()
    yield
    service.stack.start_worker()


def ensure(config: Config) -> TopicsSeen:
    with Topics(config) as topics:
        return topics.ensure()


def exhausted_run(service: Service, name: str) -> Run:
    """Open a run whose users have spent their budgets."""
    service.client.create_dataset(name, measure="zcdp", budget=0.5)
    run = service.client.run(name, "r")
    assert run.charge(USERS, np.ones(12), noise_stddev=1.0).exhausted.all()
    return run


def forged_admissions(service: Service, dataset: str, step: int) -> dict[int, Decision]:
    """Return decisions that admit all users, forged from the records of `norms`."""
    service.log.refresh()
    forged = {}
    for partition, offset, value in service.log.records["norms"]:
        request = decode_request(value)
        if isinstance(request, Charge) and (request.dataset, request.step) == (dataset, step):
            users = len(UserIds.unpack(request.users))
            forged[partition] = Decision(
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
                reasons=b"",
                budgets=[dataset],
            )
    return forged


def test_unsigned_answers_are_ignored(
    signed: Service, name: str, write: Callable[[str, int, bytes], None]
) -> None:
    run = exhausted_run(signed, name)
    decisions: list[StepDecision] = []
    with without_workers(signed):
        charging = threading.Thread(
            target=lambda: decisions.append(run.charge(USERS, np.ones(12), noise_stddev=1.0))
        )
        charging.start()
        forged = eventually(lambda: len(found := forged_admissions(signed, name, 1)) == 2 and found)
        charges = {(p, at): value for p, at, value in signed.log.records["norms"]}
        for partition, decision in forged.items():
            write("halts", partition, encode(decision))
            refusal = Rejected(
                partition=partition,
                offset=decision.offset,
                reason=Reason.OLDER_ATTEMPT,
                detail="forged",
                record=charges[partition, decision.offset],
                dataset=name,
                run="r",
                attempt=run.attempt,
                step=1,
            )
            write("rejects", partition, encode(refusal))
    charging.join()
    assert decisions[0].halted.all(), "the workers' own decision, when they were there again"
    assert run.charge(USERS, np.ones(12), noise_stddev=1.0).halted.all()
    halts = list(signed.client.halts(name, follow=False))
    assert sorted((halt.step, halt.user) for halt in halts) == [
        (step, user) for step in (1, 2) for user in USERS
    ]


def test_a_forged_odometer_record_neither_shows_nor_hides_a_bound(
    signed: Service, name: str, write: Callable[[str, int, bytes], None]
) -> None:
    exhausted_run(signed, name)
    signed.settle()
    true = list(signed.client.odometer(name, follow=False))
    for odometer in true:
        forged = msgspec.structs.replace(odometer, bound=[0.0], offset=2**40)
        write("odometer", odometer.partition, encode(forged))
    assert {seen.user: seen.bound for seen in signed.client.odometer(name, follow=False)} == {
        seen.user: seen.bound for seen in true
    }
    assert {seen.user for seen in true} == set(USERS)


def test_a_forged_odometer_record_does_not_stop_a_worker_from_sending(
    signed: Service,
) -> None:
    """Check that a worker continues after the last signed record, not after the last one."""
    config = replace(
        signed.config,
        prefix=f"{signed.prefix}fence.",
        signing_key=PRIVATE,
        trusted_keys=PUBLIC,
        outputs="msgpack",  # the values below have no JSON
    )
    origin = Origin(ensure(config).topic, 0)
    producer = KafkaFencedProducer(
        config, 0, record_signer_of(config, origin.topic), verifier_of(config, origin.topic)
    )
    unsigned = KafkaFencedProducer(config, 0)

    async def scenario() -> None:
        for sender, values in ((producer, [b"1", b"2"]), (unsigned, [b"3", b"4"])):
            await sender.start()
            outputs = [Output(Channel.ODOMETER, b"u", value) for value in values]
            await sender.send([(origin, outputs)])
        for reader, value in ((unsigned, b"4"), (producer, b"2")):
            last = await reader.last()
            assert last is not None
            assert (last.value, last.origin) == (value, origin)
        await producer.stop()
        await unsigned.stop()

    asyncio.run(scenario())


@contextmanager
def workers_that_sign_with(service: Service, private: str, ring: str) -> Iterator[None]:
    """Run a worker with another key, and afterwards the previous one."""
    stack = service.stack
    place = {"kafka": stack.kafka, "redis": stack.redis, "prefix": stack.prefix}
    environment = {"TURNSTILE_SIGNING_KEY": private, "TURNSTILE_TRUSTED_KEYS": ring}
    with (
        without_workers(service),
        LocalStack(
            workers=1,
            worker_command=IMPATIENT_WORKER,
            worker_environment=environment,
            **place,
        ),
    ):
        yield
        service.settle()


def test_the_signing_key_can_be_rotated_during_runs(signed: Service, name: str) -> None:
    private, public = new_keys()
    ring = f"{PUBLIC}, {public}"
    with Turnstile(config=replace(signed.config, trusted_keys=ring)) as client:
        client.create_dataset(name, measure="zcdp", budget=1.0)
        run = client.run(name, "r")
        assert run.charge(USERS, np.ones(12), noise_stddev=1.0).admitted.all()
        with workers_that_sign_with(signed, private, ring):
            assert run.charge(USERS, np.ones(12), noise_stddev=1.0).exhausted.all()
            assert run.charge(USERS, np.ones(12), noise_stddev=1.0).halted.all()
            later = replace(signed.config, trusted_keys=public)
            with Turnstile(config=later) as trusting_the_new_one:
                halts = list(trusting_the_new_one.halts(name, follow=False))
        assert {halt.user for halt in halts} == set(USERS)
        assert {halt.step for halt in halts} == {2}
