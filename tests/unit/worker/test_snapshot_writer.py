"""Snapshots are written by the owner alone, whole, in the order of the log, and hold nobody up."""

import asyncio

import pytest

from streams.kafka.results import NotSent
from streams.store.snapshot import MANIFEST
from streams.worker.ports import Ending
from streams.worker.snapshot_writer import FIRST_AFTER, TIME_SHARE
from tests.doubles.memory_broker import Effect, last_snapshot
from tests.unit.worker.processors import Ended
from tests.unit.worker.test_ownership import Cluster, Worker


def processor_of(worker, partition=0):
    return worker.partitions.by_partition[partition]


async def at_work(cluster, name="owner", **settings):
    worker = Worker(cluster, name, **settings)
    await worker.acquire()
    await worker.decide()
    return worker


def manifests(cluster):
    return [key for key, _ in cluster.broker.snapshots(0).records.values()].count(MANIFEST)


async def held(worker, effect):
    """Wait until a worker is about to have an effect; hold no further one.

    Returns:
        The future that lets the effect happen, or fail.
    """
    while not worker.gate.waiting[effect]:
        await asyncio.sleep(0)
    return worker.gate.waiting.pop(effect)[0]


async def test_older_state_does_not_replace_a_newer_snapshot():
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
    assert last_snapshot(cluster.broker, 0).manifest.meta.next == 5
    assert manifests(cluster) == 1
    await second.leave()


async def test_a_failed_snapshot_delays_no_decision():
    cluster = Cluster()
    worker = await at_work(cluster)
    worker.gate.hold(Effect.SEND)
    snapshot = asyncio.create_task(processor_of(worker).snapshot())
    (await held(worker, Effect.SEND)).set_exception(NotSent("no answer"))
    await snapshot
    assert last_snapshot(cluster.broker, 0) is None
    assert worker.ends.first is None
    cluster.broker.norms(0).append(b"one more")
    await worker.acquire()
    await worker.decide()
    await processor_of(worker).snapshot()
    assert last_snapshot(cluster.broker, 0).manifest.meta.next == 5
    await worker.leave()


@pytest.mark.parametrize("what", ["pages", "outbox"])
async def test_changed_store_ends_the_worker_and_enters_no_snapshot(what):
    cluster = Cluster()
    worker = await at_work(cluster)
    await processor_of(worker).writer.merge(4, {"run:d/r": b"newer"})
    if what == "pages":
        cluster.store.contents(0).pages["run:d/r"] = b"older"
    else:
        cluster.store.contents(0).outbox.clear()
    with pytest.raises(Ended) as ended:
        await processor_of(worker).snapshot()
    assert ended.value.reason is Ending.DAMAGED
    assert last_snapshot(cluster.broker, 0) is None


@pytest.mark.usefixtures("virtual_time")
async def test_snapshot_is_due_only_if_there_is_anything_new():
    worker = await at_work(Cluster(), snapshot_every=600.0)
    processor = processor_of(worker)
    assert not processor.snapshots.is_due()
    await asyncio.sleep(FIRST_AFTER)
    assert processor.snapshots.is_due()
    await processor.snapshot()
    processor.next = 5
    await asyncio.sleep(599.0)
    assert not processor.snapshots.is_due()
    await asyncio.sleep(1.0)
    assert processor.snapshots.is_due()
    processor.next = 4
    assert not processor.snapshots.is_due()
    await worker.leave()
    without = await at_work(Cluster(), snapshot_every=0.0)
    await asyncio.sleep(10 * FIRST_AFTER)
    assert not processor_of(without).snapshots.is_due()
    await without.leave()


@pytest.mark.usefixtures("virtual_time")
async def test_snapshots_take_no_more_than_their_share_of_the_time():
    worker = await at_work(Cluster(), snapshot_every=1.0)
    processor = processor_of(worker)
    worker.gate.hold(Effect.SEND)
    snapshot = asyncio.create_task(processor.snapshot())
    send = await held(worker, Effect.SEND)
    await asyncio.sleep(10.0)
    send.set_result(None)
    await snapshot
    processor.next = 5
    await asyncio.sleep(10.0 / TIME_SHARE - 1.0)
    assert not processor.snapshots.is_due()
    await asyncio.sleep(1.0)
    assert processor.snapshots.is_due()
    await worker.leave()


async def test_replaced_owner_writes_no_snapshot_and_shuts_out_no_other():
    cluster = Cluster()
    older = await at_work(cluster, "older")
    newer = Worker(cluster, "newer")
    await newer.acquire()
    await processor_of(older).snapshot()
    assert last_snapshot(cluster.broker, 0) is None
    assert older.ends.first is None
    await newer.leave()
