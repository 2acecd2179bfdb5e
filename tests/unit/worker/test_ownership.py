"""Acquiring partitions: the owner, the offset it decides from, and what suspends it."""

import asyncio
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from msgspec import Raw

from streams.ledger.ledger import Channel, Delta
from streams.records import Rejected, encode
from streams.store.layout import pack_change, pack_page
from streams.store.store_port import SuspensionReason
from streams.worker.ownership import STUCK_AFTER, OwnedPartitions
from streams.worker.ports import Ending
from tests.doubles.memory_broker import SNAPSHOTS, Effect, MemoryBroker, MemoryClient
from tests.unit.worker.processors import (
    Ended,
    Ends,
    Gate,
    Record,
    Store,
    world_of,
)

PARTITIONS = 2


class Cluster:
    """A broker and a store, which workers share."""

    def __init__(self):
        self.broker = MemoryBroker(PARTITIONS)
        self.store = Store(Gate(Ends()))
        for partition in range(PARTITIONS):
            for number in range(4):
                self.broker.norms(partition).append(b"record %d" % number)

    def end(self, partition):
        return self.broker.norms(partition).end

    def rejected(self, partition):
        """How often each offset was answered."""
        values = self.broker.outputs(Channel.REJECTS, partition).values
        return Counter(msgspec.msgpack.decode(value, type=Rejected).offset for value in values)

    def next(self, partition):
        return int(self.store.contents(partition).meta["next"])


class Worker:
    """Owned partitions in a world of memory, and the stream that feeds them."""

    def __init__(self, cluster, owner, **settings):
        self.cluster = cluster
        self.ends = Ends()
        self.gate = Gate(self.ends)
        client = MemoryClient(cluster.broker, self.gate)
        world = world_of(owner, cluster.store, client, self.ends)
        self.partitions = OwnedPartitions(replace(world, **settings))

    async def acquire(self):
        self.positions = await self.partitions.acquire(range(PARTITIONS))
        return self.positions

    async def deliver(self, partition):
        """Hand over what the log has, from where the acquisition said."""
        log = self.cluster.broker.norms(partition)
        for offset in range(self.positions[partition], log.end):
            value, leader_epoch = log.records[offset][1], log.leader_epochs[offset]
            await self.partitions.arrive(partition, Record(offset, value, leader_epoch))

    async def decide(self):
        """Until all that is in the log is decided and answered."""
        for partition in self.positions:
            await self.deliver(partition)
        async with asyncio.timeout(20):
            for partition in range(PARTITIONS):
                while len(self.cluster.rejected(partition)) < self.cluster.end(partition):
                    self.ends.refuse()
                    await asyncio.sleep(0)

    async def leave(self):
        await self.partitions.acquire([])


async def decided(cluster=None):
    """Return a cluster of which a worker has decided all records, and has left."""
    cluster = cluster or Cluster()
    before = Worker(cluster, "before")
    await before.acquire()
    await before.decide()
    await before.leave()
    return cluster


async def test_a_partition_that_kafka_does_not_show_ends_the_worker():
    worker = Worker(Cluster(), "any")
    with pytest.raises(Ended) as ended:
        await worker.partitions.acquire([2])
    assert ended.value.reason is Ending.UNKNOWN_PARTITION


def create_the_topic_again(cluster):
    cluster.broker.topic = b"another 16 bytes"


def add_partitions(cluster):
    cluster.broker.partitions += 1


def let_records_be_deleted(cluster):
    cluster.broker.problem = "retention is 5 s"


def lose_the_end(cluster):
    log = cluster.broker.norms(0)
    log.remove(2, 4)
    log.end = 2


def delete_what_was_not_applied(cluster):
    log = cluster.broker.norms(0)
    log.append(b"not applied")
    log.delete_before(5)


def write_the_log_anew(cluster):
    cluster.broker.norms(0).records[3] = None, b"another record"


def write_the_log_anew_with_the_same_last_record(cluster):
    """Who asked for what is lost asks again, and others have asked in between."""
    log = cluster.broker.norms(0)
    log.lose_from(1)
    for value in (b"another record", b"yet another", b"record 3"):
        log.append(value)


def compact_the_last_record_away(cluster):
    cluster.broker.norms(0).remove(3, 4)


def let_another_release_write(cluster):
    kept = cluster.store.contents(0)
    kept.meta = {**kept.meta, "layout": "1", "meta_digest": "of other fields"}


def let_a_later_release_write_a_page(cluster):
    kept, page = cluster.store.contents(0), pack_page(4, b"news")
    kept.pages["invention:d"] = page
    kept.seal()


def let_a_later_release_write_a_change(cluster):
    kept = cluster.store.contents(0)
    later = Delta({"invention:d": Raw(encode("news"))}, [])
    kept.changes = pack_change(0, 4, encode(later))
    kept.seal(since="0")


def let_a_later_release_write_a_field(cluster):
    kept, policy = cluster.store.contents(0), {"dataset": "d", "invention": 1}
    later = Delta({"policy:d": Raw(encode(policy))}, [])
    kept.changes = pack_change(0, 4, encode(later))
    kept.seal(since="0")


def lose_the_key_of_names(cluster):
    kept = cluster.store.contents(0)
    names = Delta({"erasure:0123456789abcdef": Raw(encode(True))}, [])
    kept.changes = pack_change(0, 4, encode(names))
    kept.seal(since="0")


SUSPENSIONS = {
    let_another_release_write: SuspensionReason.OTHER_LAYOUT,
    let_a_later_release_write_a_page: SuspensionReason.OTHER_LAYOUT,
    let_a_later_release_write_a_change: SuspensionReason.OTHER_LAYOUT,
    let_a_later_release_write_a_field: SuspensionReason.OTHER_LAYOUT,
    lose_the_key_of_names: SuspensionReason.ERASURE_KEY,
    create_the_topic_again: SuspensionReason.OTHER_LOG,
    add_partitions: SuspensionReason.OTHER_PARTITIONS,
    let_records_be_deleted: SuspensionReason.TOPICS,
    lose_the_end: SuspensionReason.LOG_ENDS_EARLY,
    delete_what_was_not_applied: SuspensionReason.LOG_BEGINS_LATE,
    write_the_log_anew: SuspensionReason.LOG_REWRITTEN,
    write_the_log_anew_with_the_same_last_record: SuspensionReason.LOG_REWRITTEN,
    compact_the_last_record_away: SuspensionReason.LOG_REWRITTEN,
}


@pytest.mark.parametrize(
    ("damage", "reason"), SUSPENSIONS.items(), ids=lambda case: getattr(case, "__name__", "")
)
async def test_acquired_state_that_does_not_fit_is_suspended(damage, reason):
    cluster = await decided()
    damage(cluster)
    after = Worker(cluster, "after")
    assert 0 not in await after.acquire()
    assert cluster.store.contents(0).suspended["reason"] == SUSPENSIONS[damage]
    assert not after.partitions.decides(0)
    await after.partitions.arrive(0, Record(4))
    assert cluster.next(0) == 4
    await after.leave()


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [([0], SuspensionReason.OTHER_PARTITIONS), ([0, 1], SuspensionReason.DAMAGED)],
)
async def test_an_added_partition_is_noticed_beside_a_flipped_bit(damaged, reason):
    """It has no state, so other states must show it. Its users would have a second budget."""
    cluster = await decided()
    added = cluster.broker.partitions
    for partition in damaged:
        cluster.store.contents(partition).meta["before"] = "flipped"
    cluster.broker.partitions += 1
    after = Worker(cluster, "after")
    for _ in range(2):  # a state that was built again would say that there always were so many
        assert await after.partitions.acquire(range(added + 1)) == {}
        for partition in range(added + 1):
            assert cluster.store.contents(partition).suspended["reason"] == reason
    await after.leave()


async def test_a_flipped_number_of_partitions_is_not_believed():
    """No other meta is intact, and this one has its digest with the topic's number."""
    cluster = await decided()
    for partition in range(cluster.broker.partitions):
        cluster.store.contents(partition).meta["partitions"] = "0"
    after = Worker(cluster, "after")
    assert 0 in await after.acquire()
    await after.leave()


async def test_decisions_until_the_fence_are_within_the_log():
    cluster = Cluster()
    older, newer = Worker(cluster, "older"), Worker(cluster, "newer")
    await older.acquire()
    newer.gate.hold(Effect.OPEN)
    acquiring = asyncio.create_task(newer.acquire())
    while not newer.gate.waiting[Effect.OPEN]:
        await asyncio.sleep(0)
    cluster.broker.norms(0).append(b"one more")
    await older.decide()
    newer.gate.waiting.pop(Effect.OPEN)[0].set_result(None)
    assert await acquiring == {0: 5, 1: 4}
    assert cluster.store.suspension is None
    await newer.leave()


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("cause", [None, "a commit hangs", "records do not arrive"])
async def test_a_worker_that_applies_none_of_its_waiting_records_ends(cause):
    cluster = Cluster()
    gate = Gate(Ends())
    cluster.store = Store(gate)
    worker = Worker(cluster, "only")
    await worker.acquire()
    if cause == "a commit hangs":
        gate.hold("store.commit")
    for partition in worker.positions:
        if cause != "records do not arrive":
            await worker.deliver(partition)
    tasks = keep(worker)
    await asyncio.sleep(STUCK_AFTER - 1)
    assert worker.ends.first is None
    await asyncio.sleep(20)
    ended = worker.ends.first
    assert (ended and ended.reason) is (Ending.STUCK if cause else None)
    for task in tasks:
        task.cancel()


def keep(worker):
    """Let a worker report its progress, and check that there is any."""
    work = worker.partitions.keep_watch(), worker.partitions.keep_alive(lambda _: 4)
    return [asyncio.create_task(each) for each in work]


@pytest.mark.usefixtures("virtual_time")
async def test_the_time_of_a_rebalance_does_not_count_as_waiting():
    cluster = Cluster()
    worker = Worker(cluster, "only")
    await worker.acquire()
    tasks = keep(worker)
    await asyncio.sleep(10)
    await worker.partitions.pause()
    await asyncio.sleep(2 * STUCK_AFTER)
    await worker.acquire()
    await asyncio.sleep(20)
    assert worker.ends.first is None
    for task in tasks:
        task.cancel()


async def test_compacted_topics_of_a_quiet_partition_get_markers(monkeypatch):
    """Kafka closes a segment, and compacts it, only when something is appended behind it."""
    monkeypatch.setattr("streams.worker.ownership.FIRST_MARK_AFTER", 0.0)
    monkeypatch.setattr("streams.worker.ownership.MARK_EVERY", 0.0)
    cluster = Cluster()
    worker = Worker(cluster, "only", snapshot_every=600.0)
    await worker.acquire()
    keeping = asyncio.create_task(worker.partitions.keep_cleanable())
    topics = [
        cluster.broker.of(name, p) for name in ("odometer", SNAPSHOTS) for p in range(PARTITIONS)
    ]
    async with asyncio.timeout(20):
        while min(topic.end for topic in topics) < 3:
            worker.ends.refuse()
            await asyncio.sleep(0)
    assert not any(topic.records for topic in topics)
    keeping.cancel()
    await worker.leave()
