"""Workers and all programs that replay the log read the same records from the same bytes.

The log contains every batch of ``tests.batches`` that a broker stores, and a worker has applied it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiokafka
import msgspec
import numpy as np
import pytest
from kafka import TopicPartition

from streams.kafka.kafka_clients import new_reader
from streams.kafka.log import KafkaLog
from streams.kafka.results import Missing
from streams.kafka.topics import NORMS, REJECTS
from streams.records import Rejected
from streams.replay.log_replay import LogReplay, compared_at
from streams.replay.receipts import Receipt
from streams.replay.service import ServiceArchive
from streams.store.stored_state import StoredState
from tests.batches import cases
from tests.integration.service import Service, ServiceFactory, eventually
from tests.waiting import HANGS_AFTER

USERS = np.arange(20)
Records = dict[int, bytes | None]


class Applied(NamedTuple):
    """A log that a worker has applied.

    Attributes:
        expected: the records of the handmade batches, by offset.
        unreadable: the offsets of records that stand for a whole batch.
        kept: the state in Redis.
    """

    service: Service
    expected: Records
    unreadable: set[int]
    kept: StoredState


@pytest.fixture(scope="module")
def applied(start_service: ServiceFactory) -> Iterator[Applied]:
    with start_service(workers=1, partitions=1) as service:
        service.client.create_dataset(
            "d", measure="zcdp", budget=100.0, assume_independent_timing=True
        )
        run = service.client.run("d", "r")
        run.charge(USERS, np.ones(len(USERS)), noise_stddev=4.0)
        expected: Records = {}
        unreadable: set[int] = set()
        stored = cases(open_run("one"), open_run("two")).values()
        for batch, values, is_stored in stored:
            if is_stored:
                offset = service.publish_batch(batch)
                unreadable |= {offset} if values is None else set()
                found = {0: b"\0" + batch[21:]} if values is None else values
                expected |= {offset + delta: value for delta, value in found.items()}
        in_transactions(service, open_run("committed"), open_run("aborted"))
        run.charge(USERS, np.ones(len(USERS)), noise_stddev=4.0)
        kept = service.settle()[0]
        yield Applied(service, expected, unreadable, kept)


def open_run(name: str) -> bytes:
    request = {"type": "open-run", "dataset": "d", "run": name, "attempt": 1, "request": "x"}
    return msgspec.msgpack.encode(request)


def in_transactions(service: Service, committed: bytes, aborted: bytes) -> None:
    """Write a committed and an aborted transaction, each followed by a control batch."""

    async def send() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=service.kafka, transactional_id=f"{service.prefix}other"
        )
        async with producer:
            for value, end in (
                (committed, producer.commit_transaction),
                (aborted, producer.abort_transaction),
            ):
                await producer.begin_transaction()
                await producer.send_and_wait(service.config.topic(NORMS), value, partition=0)
                await end()

    asyncio.run(send())


def read_by_client(service: Service, topic: str, end: int) -> Records:
    """Return the records that this project's client reads from a topic."""
    place = TopicPartition(service.config.topic(topic), 0)
    consumer = new_reader(service.config)
    found: Records = {}
    try:
        consumer.assign([place])
        consumer.seek_to_beginning(place)

        def is_read() -> bool:
            for record in consumer.poll(timeout_ms=200).get(place, ()):
                found[record.offset] = record.value
            return bool(consumer.position(place) >= end)

        eventually(is_read)
    finally:
        consumer.close()
    return found


def replayed(service: Service) -> tuple[LogReplay, Records, set[int]]:
    """Replay the log; return the ledger, the records, and the offsets of rejected records."""
    replay = LogReplay(ServiceArchive(service.config), 0)
    records: Records = {}
    refused: set[int] = set()
    for one in replay.steps():
        records[one.record.offset] = one.record.value
        refused |= {one.record.offset} if one.is_refused else set()
    return replay, records, refused


def test_a_replay_applies_and_rejects_the_same_records_as_the_worker(applied: Applied) -> None:
    service, expected, unreadable, kept = applied
    replay, records, refused = replayed(service)
    assert expected.items() <= records.items()
    assert replay.ledger.chain == kept.meta.chain
    assert compared_at(replay.heads)["redis"] == kept.next
    archive = ServiceArchive(service.config)
    reasons = {
        reject.offset: reject.reason
        for record in archive.read(REJECTS, 0, archive.extent(REJECTS, 0))
        for reject in [msgspec.msgpack.decode(record.value or b"", type=Rejected)]
    }
    assert reasons.keys() == refused
    assert {reasons[offset] for offset in unreadable} == {"malformed"}


def test_a_client_and_single_lookups_read_the_same_records(applied: Applied) -> None:
    service, *_, kept = applied
    _, records, _ = replayed(service)
    assert read_by_client(service, NORMS, kept.next) == records

    async def look_up() -> tuple[Records, set[Missing]]:
        async with KafkaLog(service.config) as log:
            found = {offset: (await log.record(0, offset)).value for offset in records}
            holes = set(range(kept.next)) - records.keys()
            return found, {await log.missing(0, hole, hole + 1) for hole in holes}

    assert asyncio.run(look_up()) == (records, {Missing.NOTHING_TO_APPLY})


def test_every_command_reads_the_log_that_was_applied(applied: Applied, tmp_path: Path) -> None:
    service, *_, kept = applied
    receipt = tmp_path / "receipt.json"
    verified = service.command("verify", "--json", "--receipt", str(receipt))
    partition, summary = verified.lines
    assert (verified.code, summary["fits"], partition["state_at"]) == (0, True, kept.next)
    (head,) = msgspec.json.decode(receipt.read_bytes(), type=Receipt).heads
    assert (head.next, bytes.fromhex(head.head)) == (kept.next, kept.meta.chain.head)
    explained = service.command("explain", "--user", "7", "--json")
    assert [line["what"] for line in explained.lines] == ["charged", "charged"]
    reported = service.command("report", "--json")
    assert [line["steps"] for line in reported.lines] == [2] * len(USERS)
    for done in (explained, reported):
        assert done.code == 0
        assert {line["compared"]["redis"] for line in done.lines} == {kept.next}


def test_a_new_owner_reads_the_same_records_as_the_previous_one(applied: Applied) -> None:
    """This is the last test of the module, because it extends the log."""
    service, *_, kept = applied
    service.stack.workers[0].kill()
    run = service.turnstile(HANGS_AFTER).run("d", "later")
    assert run.charge(USERS, np.ones(len(USERS)), noise_stddev=4.0).admitted.all()
    later = service.settle()[0]
    assert later.next > kept.next
    assert replayed(service)[0].ledger.chain == later.meta.chain
