"""Compaction keeps a user's newest odometer record, even if a paused worker continues."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiokafka
import msgspec
import numpy as np
import pytest
from aiokafka.errors import KafkaError
from kafka import KafkaConsumer, TopicPartition

from streams.config import Config
from streams.kafka.fenced_producer import KafkaFencedProducer
from streams.kafka.results import Origin
from streams.kafka.topics import ODOMETER, SETTINGS, ensure_topics
from streams.ledger.ledger import Channel, Output
from streams.local import KafkaBroker
from streams.operations.status import read_owners
from streams.records import OdometerRecord, encode, odometer_key
from streams.worker.odometers import OdometerPublisher
from tests.integration.service import ServiceFactory, eventually
from tests.waiting import HANGS_AFTER

pytestmark = pytest.mark.fault

ORIGIN = Origin(b"topic of 16 byte", 0)


def odometer(offset: int, user: int = 1) -> Output:
    value = OdometerRecord(
        dataset="d", user=user, partition=0, offset=offset, bound=[float(offset)]
    )
    return Output(Channel.ODOMETER, odometer_key("d", user), encode(value))


class Publishes:
    """The odometer producer of a worker that believes it is the owner."""

    def __init__(self, config: Config) -> None:
        self.producer = KafkaFencedProducer(config, 0)
        self.odometers = OdometerPublisher(0, self.producer, self._is_held, self._is_in_log)
        self.running = asyncio.create_task(self.odometers.run())

    async def send(self, *offsets: int) -> None:
        outputs = [odometer(offset) for offset in offsets]
        sent = await self.odometers.publish(offsets[0], ORIGIN, outputs)
        await asyncio.wait((sent, self.running), return_when=asyncio.FIRST_COMPLETED)
        if self.running.done():
            self.running.result()

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.wait_for(self.odometers.stop(), HANGS_AFTER)

    async def _is_in_log(self, offset: int, origin: Origin) -> bool:
        return origin == ORIGIN

    async def _is_held(self) -> bool:
        return True


def offsets_written(config: Config) -> list[int]:
    """Return the offsets in user 1's odometer records, in the order of the topic."""
    place = TopicPartition(config.topic(ODOMETER), 0)
    consumer = KafkaConsumer(bootstrap_servers=config.kafka, group_id=None)
    try:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        found = []
        while consumer.position(place) < end:
            for record in consumer.poll(timeout_ms=200).get(place, []):
                found.append(msgspec.msgpack.decode(record.value, type=OdometerRecord).offset)
        return found
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def eager_cleaner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Start a broker that compacts as soon as possible."""
    settings = {"log.cleaner.backoff.ms": "100"}
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), settings=settings) as broker:
        yield broker


def test_compaction_keeps_the_newest_of_repeated_and_aborted_odometer_records(
    eager_cleaner: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End a worker within a transaction; its records are aborted and sent again."""
    at_once = {"segment.ms": "200", "min.cleanable.dirty.ratio": "0.0"}
    monkeypatch.setitem(SETTINGS, ODOMETER, {**SETTINGS[ODOMETER], **at_once})
    config = Config(kafka=eager_cleaner.address, prefix="cleaned.", partitions=1)
    ensure_topics(config)

    async def scenario() -> None:
        older = Publishes(config)
        await older.send(1, 2)
        paused: list[aiokafka.AIOKafkaProducer] = []

        async def pause(producer: aiokafka.AIOKafkaProducer) -> None:
            paused.append(producer)
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:  # the worker is paused just before the commit
            patch.setattr(aiokafka.AIOKafkaProducer, "commit_transaction", pause)
            await older.odometers.publish(3, ORIGIN, [odometer(3)])
            while not paused:
                await asyncio.sleep(0.01)
        while 3 not in await asyncio.to_thread(offsets_written, config):
            await asyncio.sleep(0.05)
        newer = Publishes(config)
        await newer.send(3)
        await newer.send(4)
        with pytest.raises(KafkaError):
            await paused[0].commit_transaction()
        await older.stop()
        await newer.stop()
        later = Publishes(config)
        async with asyncio.timeout(HANGS_AFTER):
            # A segment is compacted once a later one has begun.
            while set(found := await asyncio.to_thread(offsets_written, config)) != {4}:
                assert found[-1] == 4
                await later.send(4)
        await later.stop()

    asyncio.run(scenario())


PAUSES_BEFORE_PUBLISHING = """
import os, pathlib, signal, sys
from streams.cli.main import main
from streams.worker.odometers import OdometerPublisher
publish = OdometerPublisher.publish

async def pausing(self, *arguments):
    flag = pathlib.Path({flag!r})
    if flag.exists():
        flag.write_text(str(os.getpid()))
        flag.rename(flag.with_suffix(".paused"))
        os.kill(os.getpid(), signal.SIGSTOP)
        flag.with_suffix(".woke").touch()
    return await publish(self, *arguments)

OdometerPublisher.publish = pausing
sys.exit(main(["worker"]))
"""


@pytest.mark.parametrize("began", [True, False], ids=["had begun", "had not begun"])
def test_a_worker_paused_between_commit_and_publishing_writes_no_older_odometer_record(
    start_service: ServiceFactory, tmp_path: Path, began: bool
) -> None:
    flag = tmp_path / "pause"
    command = (sys.executable, "-c", PAUSES_BEFORE_PUBLISHING.format(flag=str(flag)))
    users, norms = np.arange(10), np.full(10, 1.0)
    with start_service(partitions=1, worker_command=command) as service:
        service.client.create_dataset("d", measure="zcdp", budget=10.0, odometer_step=0.1)
        run = service.client.run("d", "r")
        if began:
            run.charge(users, norms, noise_stddev=1.0)
            service.settle()
        before = read_owners(service.config, 1)
        flag.touch()
        pause_file = flag.with_suffix(".paused")
        with ThreadPoolExecutor(1) as aside:
            # The paused worker has its answer as well; the next owner publishes it.
            charged = aside.submit(run.charge, users, norms, noise_stddev=1.0)
            eventually(pause_file.exists)
            paused = int(pause_file.read_text())
            try:
                service.stack.start_worker()
                charged.result(HANGS_AFTER)
                assert read_owners(service.config, 1) != before
                for _ in range(4):
                    run.charge(users, norms, noise_stddev=1.0)
                service.settle()
            finally:
                os.kill(paused, signal.SIGCONT)
        eventually(flag.with_suffix(".woke").exists)
        for _ in range(20):  # for other users, so that no record follows those of the paused worker
            run.charge(users + 100, norms, noise_stddev=10.0)
        service.audit()
        newest: dict[int, int] = {}
        written: dict[int, int] = {}
        for _, _, value in service.log.records["odometer"]:
            found = msgspec.msgpack.decode(value or b"", type=OdometerRecord)
            written[int(found.user)] = found.offset
            newest[int(found.user)] = max(found.offset, newest.get(int(found.user), -1))
        assert written == newest
        assert set(users.tolist()) <= written.keys()
