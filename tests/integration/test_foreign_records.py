"""Records of other clients: compressed, in transactions, and made to fill the memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import aiokafka
import msgspec
import numpy as np
import pytest
from kafka import KafkaConsumer, TopicPartition

from streams.kafka.batches import EXPANDED_BYTES
from streams.kafka.log import KafkaLog
from streams.kafka.results import Missing
from streams.kafka.topics import NORMS, REJECTS
from streams.records import OpenRun, Rejected, encode
from streams.records.json_outputs import to_msgpack
from streams.records.signatures import RequestSigner, new_keys
from streams.sdk.client import Turnstile
from tests.batches import bomb, filled, packed, record
from tests.integration.service import (
    Service,
    ServiceFactory,
    eventually,
    largest_resident_bytes,
)

USERS = np.arange(50)
NORMS_OF_STEP = np.full(50, 1.0)


@pytest.fixture
def service(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=1, partitions=1) as started:
        started.client.create_dataset(
            "d", measure="zcdp", budget=100.0, assume_independent_timing=True
        )
        yield started


def charge(service: Service, name: str, steps: int = 1) -> None:
    run = service.client.run("d", name)
    for _ in range(steps):
        run.charge(USERS, NORMS_OF_STEP, noise_stddev=1.0)


def open_run(name: str) -> bytes:
    request = {"type": "open-run", "dataset": "d", "run": name, "attempt": 1, "request": "x"}
    return msgspec.msgpack.encode(request)


def write(service: Service, values: list[bytes], **settings: Any) -> None:
    """Write records with another Kafka client."""

    async def send() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=service.kafka, **settings
        ) as producer:
            for value in values:
                await producer.send_and_wait(service.config.topic(NORMS), value, partition=0)

    asyncio.run(send())


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_applied_like_others(service: Service, codec: str) -> None:
    start = end_of_log(service)
    write(service, [open_run("compressed"), b"x" * 5000, open_run("too")], compression_type=codec)
    charge(service, "after")
    runs = {run for _, run in service.ledgers()[0].state.runs}
    assert runs == {"compressed", "too", "after"}
    assert rejected(service, start + 1).reason == "malformed"


# --- transactions -------------------------------------------------------------------------------


def in_a_transaction(service: Service, values: list[bytes], commits: bool) -> None:
    async def send() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=service.kafka, transactional_id=f"{service.prefix}other"
        )
        async with producer:
            await producer.begin_transaction()
            for value in values:
                await producer.send_and_wait(service.config.topic(NORMS), value, partition=0)
            await (producer.commit_transaction() if commits else producer.abort_transaction())

    asyncio.run(send())


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "aborted"])
def test_control_records_are_skipped_in_the_middle_and_at_the_end(
    service: Service, commits: bool
) -> None:
    """Check that records of committed and aborted transactions are applied."""
    in_a_transaction(service, [open_run("first"), open_run("second")], commits)
    in_a_transaction(service, [open_run("third")], commits)
    charge(service, "between")
    in_a_transaction(service, [open_run("last")], commits)
    kept = service.settle()[0]
    assert kept.next == service.log.norms_ends()[0]
    assert kept.meta.chain.last < kept.next - 1
    runs = {run for _, run in service.ledgers()[0].state.runs}
    assert runs == {"first", "second", "third", "between", "last"}
    service.audit()
    assert not any(service.reasons())


def test_a_worker_that_starts_before_control_records_skips_them(service: Service) -> None:
    charge(service, "before")
    service.settle()
    service.stack.workers[0].stop()
    in_a_transaction(service, [open_run("in")], True)
    in_a_transaction(service, [open_run("out")], False)
    service.stack.start_worker()
    charge(service, "after")
    service.audit()
    service.stack.workers[1].stop()
    in_a_transaction(service, [open_run("at-the-end")], False)
    service.stack.start_worker()
    service.settle()
    service.audit()


def test_control_batches_and_holes_are_distinguished_by_the_batches(service: Service) -> None:
    charge(service, "before")
    start = service.settle()[0].next
    in_a_transaction(service, [open_run("in")], True)  # start, its marker at start + 1
    write(service, [b"a", b"b"])
    write_together(service, [b"c" * (EXPANDED_BYTES + 1), b"d"])
    end = end_of_log(service)

    async def ask() -> dict[tuple[int, int], Missing]:
        async with KafkaLog(service.config) as log:
            places = [
                *((start + 1, start + 2), (start, start + 2), (start + 1, start + 3)),
                *((end - 1, end), (end - 2, end), (end - 1, end + 1), (end + 5, end + 6)),
            ]
            return {place: await log.missing(0, *place) for place in places}

    assert asyncio.run(ask()) == {
        (start + 1, start + 2): Missing.NOTHING_TO_APPLY,
        (start, start + 2): Missing.RECORDS,
        (start + 1, start + 3): Missing.RECORDS,
        (end - 1, end): Missing.NOTHING_TO_APPLY,
        (end - 2, end): Missing.RECORDS,
        (end - 1, end + 1): Missing.HOLE,
        (end + 5, end + 6): Missing.HOLE,
    }


# --- decompression bombs ---

ZEROS = 600 * 1024 * 1024


def rejected(service: Service, offset: int) -> Rejected:
    """Return the reject of a record."""
    place = TopicPartition(service.config.topic(REJECTS), 0)
    consumer = KafkaConsumer(bootstrap_servers=service.kafka, group_id=None)
    try:
        consumer.assign([place])
        consumer.seek_to_beginning(place)

        def found() -> Rejected | None:
            for records in consumer.poll(timeout_ms=200).values():
                for record in records:
                    reject = msgspec.msgpack.decode(to_msgpack(record.value), type=Rejected)
                    if reject.offset == offset:
                        return reject
            return None

        reject: Rejected = eventually(found)
        return reject
    finally:
        consumer.close()


def test_a_decompression_bomb_ends_neither_broker_nor_worker(
    service: Service,
) -> None:
    charge(service, "before")
    worker = service.stack.workers[0].pid
    assert worker is not None
    before = largest_resident_bytes(worker)
    batch = bomb(ZEROS)
    assert len(batch) < 1024 * 1024
    offset = service.publish_batch(batch)
    reject = rejected(service, offset)
    assert reject.reason == "malformed"
    assert reject.record[1:] == batch[21:]
    charge(service, "after", steps=3)
    assert service.stack.workers[0].pid == worker
    assert largest_resident_bytes(worker) - before < ZEROS / 4
    service.stack.workers[0].kill()
    charge(service, "once-more")  # after an acquisition that compared the chain with the log


def bytes_on_disk(service: Service, *topics: str) -> list[int]:
    """Return the size of each topic's log segments on the broker's disk."""
    with closing(service.admin()) as admin:
        (broker,) = admin.describe_log_dirs()
    sizes = {
        entry["name"]: sum(partition["partition_size"] for partition in entry["partitions"])
        for directory in broker["log_dirs"]
        for entry in directory["topics"]
    }
    return [sizes[service.config.topic(topic)] for topic in topics]


SMALL = 64 * 1024
FEW_LARGE, MANY_SMALL = [bytes(EXPANDED_BYTES - SMALL)] * 3, [bytes(SMALL)] * 128


@pytest.mark.parametrize("values", [FEW_LARGE, MANY_SMALL], ids=["few and large", "many and small"])
def test_a_rejected_record_is_about_as_large_on_rejects_as_on_norms(
    service: Service, values: list[bytes]
) -> None:
    service.settle()
    norms, rejects = bytes_on_disk(service, NORMS, REJECTS)
    for at in range(0, len(values), EXPANDED_BYTES // len(values[0])):
        write_together(service, values[at : at + EXPANDED_BYTES // len(values[0])])
    rejected(service, end_of_log(service) - 1)
    norms_after, rejects_after = bytes_on_disk(service, NORMS, REJECTS)
    assert rejects_after - rejects <= 4 * (norms_after - norms)


REPLAY = """
import sys
from pathlib import Path
from streams.cli import main
code = main(sys.argv[1:])
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0], file=sys.stderr)
sys.exit(code)
"""
"""Run a command that prints its peak memory in KiB at the end."""


def test_a_decompression_bomb_does_not_fill_the_memory_of_a_replay(
    service: Service,
) -> None:
    service.publish_batch(bomb(ZEROS))
    charge(service, "after")
    service.settle()
    environment = {**os.environ, **service.environment}
    for command in (["verify"], ["explain", "--user", "1"], ["report"]):
        done = subprocess.run(
            [sys.executable, "-c", REPLAY, *command],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done
        assert int(done.stderr.split()[-1]) * 1024 < ZEROS / 2, command


def test_an_unreadable_batch_counts_as_one_record_and_the_rest_is_skipped(
    service: Service,
) -> None:
    write_together(service, [b"c" * (EXPANDED_BYTES + 1), b"d", b"e"])
    end = end_of_log(service)
    reject = rejected(service, end - 3)
    assert reject.record.startswith(b"\0")
    eventually(lambda: service.kept()[0].next == end)
    charge(service, "after")
    eventually(lambda: service.kept()[0].meta.chain.last > end)


def write_together(service: Service, values: list[bytes]) -> None:
    """Write records as one batch."""

    async def send() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=service.kafka,
            compression_type="gzip",
            max_batch_size=4 * EXPANDED_BYTES,
        )
        async with producer:
            batch = producer.create_batch()
            for value in values:
                assert batch.append(key=None, value=value, timestamp=None) is not None
            topic = service.config.topic(NORMS)
            await (await producer.send_batch(batch, topic, partition=0))

    asyncio.run(send())


def end_of_log(service: Service) -> int:
    place = TopicPartition(service.config.topic(NORMS), 0)
    consumer = KafkaConsumer(bootstrap_servers=service.kafka, group_id=None)
    try:
        return int(consumer.end_offsets([place])[place])
    finally:
        consumer.close()


# --- requests that workers do not apply ---------------------------------------------------------


def test_a_signed_request_in_a_batch_that_is_too_large_hides_no_charge(
    start_service: ServiceFactory,
) -> None:
    """Open the next attempt in records that workers do not apply. A reader that applied them
    would reject all later charges of the first attempt.
    """
    key, public = new_keys()
    with start_service(partitions=2) as service:
        alice = Turnstile(service.kafka, prefix=service.prefix, request_key=key)
        with alice:
            alice.create_dataset(
                "visits", measure="zcdp", budget=0.14, allow={public: ["charge", "manage"]}
            )
            run = alice.run("visits", "training")
            run.charge(USERS, NORMS_OF_STEP, noise_stddev=5.0)
            hidden = OpenRun(dataset="visits", run="training", attempt=2, request="x")
            signer = RequestSigner(key)
            for partition in range(2):
                signed = signer.sign(service.log.topic_id(), partition, encode(hidden))
                records, _ = filled([record(0, signed)], EXPANDED_BYTES + 1)
                service.publish_batch(packed("gzip", records), partition)
            for _ in range(4):
                assert run.charge(USERS, NORMS_OF_STEP, noise_stddev=5.0).admitted.all()
        service.settle()
        explained = service.command("explain", "--user", "7", "--json")
        assert [line["what"] for line in explained.lines] == ["charged"] * 5
        reported = service.command("report", "--json")
        assert {line["steps"] for line in reported.lines} == {5}
        verified = service.command("verify", "--json")
        assert (verified.code, verified.lines[-1]["findings"]) == (0, 0)
