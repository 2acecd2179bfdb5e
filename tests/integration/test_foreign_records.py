"""Records of other clients: compressed, in transactions, and made to fill the memory."""

from __future__ import annotations

import asyncio
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import msgspec
import numpy as np
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.util import calc_crc32c
from kafka import KafkaConsumer, TopicPartition

from streams.schemas import Rejected
from streams.topics.topics import NORMS, REJECTS
from streams.worker.kafka.batches import EXPANDED_BYTES
from streams.worker.kafka.log import KafkaLog
from streams.worker.ports import Missing
from tests.integration.service import Service, ServiceFactory, eventually

USERS = np.arange(50)
NORMS_OF_STEP = np.full(50, 1.0)


@pytest.fixture
def service(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=1, partitions=1) as started:
        started.client.create_dataset("d", budget=100.0)
        yield started


def charge(service: Service, name: str, steps: int = 1) -> None:
    run = service.client.run("d", name)
    for _ in range(steps):
        run.charge(USERS, NORMS_OF_STEP, noise_stddev=1.0)


def open_run(name: str) -> bytes:
    request = {"type": "open-run", "dataset": "d", "run": name, "attempt": 1, "request": "x"}
    return msgspec.msgpack.encode(request)


def write(service: Service, values: list[bytes], **settings: Any) -> None:
    """Write records with a client of another kind."""

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
    runs = {run for _, run in service.ledgers()[0].runs}
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
def test_control_records_are_passed_over_in_the_middle_and_at_the_end(
    service: Service, commits: bool
) -> None:
    """What a transaction wrote is applied, also of one that was aborted."""
    in_a_transaction(service, [open_run("first"), open_run("second")], commits)
    in_a_transaction(service, [open_run("third")], commits)
    charge(service, "between")
    in_a_transaction(service, [open_run("last")], commits)
    kept = service.settle()[0]
    assert kept.next == service.log.norms_ends()[0]
    assert kept.meta.chain.last < kept.next - 1
    runs = {run for _, run in service.ledgers()[0].runs}
    assert runs == {"first", "second", "third", "between", "last"}
    service.audit()
    assert not any(service.problems())


def test_a_worker_that_starts_behind_control_records_passes_over_them(service: Service) -> None:
    charge(service, "before")
    service.settle()
    service.stack.stop_worker(0)
    in_a_transaction(service, [open_run("in")], True)
    in_a_transaction(service, [open_run("out")], False)
    service.stack.start_worker()
    charge(service, "after")
    service.audit()
    service.stack.stop_worker(1)
    in_a_transaction(service, [open_run("at-the-end")], False)
    service.stack.start_worker()
    service.settle()
    service.audit()


def test_what_is_missing_is_told_apart_by_the_batches_themselves(service: Service) -> None:
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


# --- bombs --------------------------------------------------------------------------------------

ZEROS = 600 * 1024 * 1024


def varint(number: int) -> bytes:
    """Of Kafka: zigzag, seven bits a byte."""
    rest = number << 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def bomb(size: int) -> bytes:
    """A batch with one record of so many zeros, in gzip, made in no more memory than it takes."""
    head = b"\0\0\0" + b"\x01" + varint(size)  # attributes, deltas, no key, length of the value
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = bytearray(pack.compress(varint(len(head) + size + 1) + head))
    chunk = bytes(1024 * 1024)
    for _ in range(size // len(chunk)):
        packed += pack.compress(chunk)
    packed += pack.compress(b"\0") + pack.flush()  # no headers
    now = int(time.time() * 1000)
    body = struct.pack(">hiqqqhii", 1, 0, now, now, -1, -1, -1, 1) + bytes(packed)
    after_crc = struct.pack(">I", calc_crc32c(body)) + body
    return struct.pack(">qiib", 0, len(after_crc) + 5, -1, 2) + after_crc


def send_batch(service: Service, batch: bytes) -> int:
    """Write a ready-made batch; its offset."""
    topic = service.config.topic(NORMS)

    async def send() -> int:
        client = AIOKafkaClient(bootstrap_servers=service.kafka)
        await client.bootstrap()
        await client._wait_on_metadata(topic)
        leader = client.cluster.leader_for_partition(aiokafka.TopicPartition(topic, 0))
        request = ProduceRequest(
            required_acks=-1, timeout=30_000, topics=[(topic, [(0, batch)])], transactional_id=None
        )
        answer = await client.send(leader, request)
        await client.close()
        _, error, offset, *_ = answer.topics[0][1][0]
        assert error == 0
        return int(offset)

    return asyncio.run(send())


def rejected(service: Service, offset: int) -> Rejected:
    """What the rejects topic says of a record."""
    place = TopicPartition(service.config.topic(REJECTS), 0)
    consumer = KafkaConsumer(bootstrap_servers=service.kafka, group_id=None)
    try:
        consumer.assign([place])
        consumer.seek_to_beginning(place)

        def found() -> Rejected | None:
            for records in consumer.poll(timeout_ms=200).values():
                for record in records:
                    reject = msgspec.msgpack.decode(record.value, type=Rejected)
                    if reject.offset == offset:
                        return reject
            return None

        reject: Rejected = eventually(found)
        return reject
    finally:
        consumer.close()


def largest_resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_a_record_that_expands_without_bound_ends_neither_broker_nor_worker(
    service: Service,
) -> None:
    charge(service, "before")
    worker = service.stack.workers[0].pid
    assert worker is not None
    before = largest_resident_bytes(worker)
    batch = bomb(ZEROS)
    assert len(batch) < 1024 * 1024
    offset = send_batch(service, batch)
    reject = rejected(service, offset)
    assert reject.reason == "malformed"
    assert reject.record[1:] == batch[21:]
    charge(service, "after", steps=3)
    assert service.stack.workers[0].pid == worker
    assert largest_resident_bytes(worker) - before < ZEROS / 4
    service.stack.kill_worker(0)
    charge(service, "once-more")  # after a claim that compared the chain with the log


def test_a_batch_that_is_not_read_is_one_record_and_the_rest_is_passed_over(
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
