"""Snapshots are written by the owner alone, whole, in the order of the log, and hold nobody up."""

import asyncio
import logging

import pytest

from streams.kafka.results import NotSent
from streams.store.snapshot import MANIFEST
from streams.worker.ports import Ending
from tests.doubles.memory_broker import Effect, last_snapshot
from tests.unit.worker.processors import Ended
from tests.unit.worker.test_ownership import Cluster, Worker


def processor_of(worker, partition=0):
    return worker.partitions._owned[partition].processor


async def at_work(cluster, name="owner"):
    worker = Worker(cluster, name)
    await worker.acquire()
    await worker.decide()
    return worker


def manifests(cluster):
    return [key for key, _ in cluster.broker.snapshots(0).records.values()].count(MANIFEST)


def test_a_snapshot_goes_out_with_its_manifest_last():
    async def scenario():
        cluster = Cluster()
        worker = await at_work(cluster)
        processor = processor_of(worker)
        assert processor.snapshots.reached is None
        await processor.snapshot()
        snapshot = last_snapshot(cluster.broker, 0)
        assert snapshot.manifest.next == processor.snapshots.reached == 4
        assert list(cluster.broker.snapshots(0).records.values())[-1][0] == MANIFEST
        await processor.snapshot()  # there is nothing new
        assert manifests(cluster) == 1
        await worker.leave()

    asyncio.run(scenario())


def test_an_owner_that_was_replaced_before_it_begins_writes_nothing():
    async def scenario():
        cluster = Cluster()
        older = await at_work(cluster, "older")
        newer = Worker(cluster, "newer")
        await newer.acquire()
        await processor_of(older).snapshot()
        assert last_snapshot(cluster.broker, 0) is None
        await newer.leave()

    asyncio.run(scenario())


def test_a_late_manifest_is_not_written(caplog):
    async def scenario():
        cluster = Cluster()
        older = await at_work(cluster, "older")
        older.gate.hold(Effect.COMMIT)
        writer = asyncio.create_task(processor_of(older).snapshot())
        while not older.gate.waiting[Effect.COMMIT]:
            await asyncio.sleep(0)
        newer = Worker(cluster, "newer")
        await newer.acquire()
        cluster.broker.norms(0).append(b"one more")
        await newer.decide()
        await processor_of(newer).snapshot()
        older.gate.waiting.pop(Effect.COMMIT)[0].set_result(None)
        await writer
        assert last_snapshot(cluster.broker, 0).manifest.next == 5
        await newer.leave()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_state_that_went_back_is_not_written_over_one_that_was_further():
    async def scenario():
        cluster = Cluster()
        worker = await at_work(cluster, "first")
        await worker.partitions.pause()
        older = cluster.store.copy()
        cluster.broker.norms(0).append(b"one more")
        await worker.acquire()
        await worker.decide()
        await processor_of(worker).snapshot()
        await worker.leave()
        cluster.store.restore(older)
        second = Worker(cluster, "second")
        assert (await second.acquire())[0] == 4
        await processor_of(second).snapshot()
        assert last_snapshot(cluster.broker, 0).manifest.next == 5
        assert manifests(cluster) == 1
        await second.leave()

    asyncio.run(scenario())


def test_a_failed_snapshot_delays_no_decision(caplog):
    async def scenario():
        cluster = Cluster()
        worker = await at_work(cluster)
        writer = processor_of(worker).snapshots
        real = writer._topic.send

        async def fail(_):
            raise NotSent("no answer")

        writer._topic.send = fail
        await processor_of(worker).snapshot()
        assert worker.ends.first is None
        cluster.broker.norms(0).append(b"one more")
        await worker.acquire()
        await worker.decide()
        writer = processor_of(worker).snapshots
        writer._topic.send = real
        await processor_of(worker).snapshot()
        await worker.leave()

    asyncio.run(scenario())
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_store_that_is_not_where_it_was_left_ends_the_worker_before_a_manifest_is_out():
    async def scenario():
        cluster = Cluster()
        worker = await at_work(cluster)
        cluster.store.contents(0).outbox.clear()
        with pytest.raises(Ended) as ended:
            await processor_of(worker).snapshot()
        assert ended.value.reason is Ending.DAMAGED
        assert last_snapshot(cluster.broker, 0) is None

    asyncio.run(scenario())


def test_a_page_that_is_not_what_was_written_ends_the_worker_and_never_comes_into_a_snapshot():
    async def scenario():
        cluster = Cluster()
        worker = await at_work(cluster)
        writer = processor_of(worker).writer
        await writer.merge(4, {"run:d/r": b"newer"})
        cluster.store.contents(0).pages["run:d/r"] = b"older"
        with pytest.raises(Ended) as ended:
            await processor_of(worker).snapshot()
        assert ended.value.reason is Ending.DAMAGED
        assert last_snapshot(cluster.broker, 0) is None

    asyncio.run(scenario())


def test_a_snapshot_is_due_after_its_time_and_only_if_there_is_anything_new():
    async def scenario():
        cluster = Cluster()
        worker = await at_work(cluster)
        processor, now = processor_of(worker), [0.0]
        writer = processor.snapshots
        assert not writer.is_due(4)  # none are wanted
        writer._time, writer._every, writer._due_at = lambda: now[0], 600.0, 60.0
        assert not writer.is_due(4)
        now[0] = 60.0
        assert writer.is_due(4)
        await processor.snapshot()
        now[0] = 659.0
        assert not writer.is_due(5)
        now[0] = 660.0
        assert writer.is_due(5)
        assert not writer.is_due(4)
        await worker.leave()

    asyncio.run(scenario())


def test_snapshots_take_no_more_than_their_share_of_the_time():
    async def scenario():
        cluster = Cluster()
        worker = await at_work(cluster)
        processor, now = processor_of(worker), [0.0]
        writer = processor.snapshots
        writer._time, writer._every = lambda: now[0], 1.0
        real = writer._topic.send

        async def slow(records):
            now[0] += 10.0
            await real(records)

        writer._topic.send = slow
        await processor.snapshot()
        assert writer._due_at == now[0] + now[0] / 0.05
        await worker.leave()

    asyncio.run(scenario())
