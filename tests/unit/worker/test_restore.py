"""Redis loses a state, or a part of it: the state comes from snapshot and log, or not at all."""

import asyncio
from unittest.mock import patch

import pytest

from streams.ledger.ledger import Delta
from streams.records import Erase, encode
from streams.records.users import partitions_of
from streams.store.layout import is_whole, pack_change, with_digest
from streams.store.snapshot import FORMAT, MANIFEST, deletable
from streams.store.store_port import SuspensionReason
from streams.worker import processor
from streams.worker.ports import Ending
from tests.doubles.memory_broker import last_snapshot
from tests.unit.ledger.ledgers import Log
from tests.unit.worker.processors import Ended
from tests.unit.worker.test_ownership import (
    Cluster,
    Worker,
    add_partitions,
    create_the_topic_again,
    decided,
    lose_the_end,
    write_the_log_anew,
)


class Past(Cluster):
    """A cluster of which somebody has decided all, and written a snapshot of each partition."""

    async def happen(self, erases=True):
        before = Worker(self, "before")
        with patch.object(processor, "FORGET_AFTER", 0.001 if erases else 60.0):
            await before.acquire()
            await before.decide()
            for partition, owned in before.partitions.by_partition.items():
                if erases:
                    await self.until_outbox_is_empty(partition)
                await owned.snapshot()
                await owned.heartbeat.beat(None)
            await before.leave()
        return self

    async def until_outbox_is_empty(self, partition):
        """Wait until the owner has deleted from Redis what it has published."""
        async with asyncio.timeout(20):
            while self.store.contents(partition).outbox:
                await asyncio.sleep(0.01)

    def flush(self):
        self.store.restore({})

    async def until_rejected(self, times):
        """Wait until as many answers are there, and see that they are these."""
        async with asyncio.timeout(20):
            while self.rejected(0).total() < sum(times.values()):
                await asyncio.sleep(0)
        assert self.rejected(0) == times

    def snapshots(self, partition=0):
        return self.broker.snapshots(partition)


def flush(cluster):
    cluster.flush()


def flush_and_trim(cluster):
    cluster.flush()
    cluster.broker.norms(0).delete_before(deletable(last_snapshot(cluster.broker, 0)))


def flush_and_delete_all_that_is_covered(cluster):
    cluster.flush()
    cluster.broker.norms(0).delete_before(4)


def go_back_behind_the_log(cluster):
    kept = cluster.store.contents(0).copy()
    cluster.flush()
    kept.changes, kept.outbox = [], {}
    kept.seal(next="2", since="2")
    cluster.store.restore({0: kept})
    cluster.broker.norms(0).delete_before(3)


REBUILT = [flush, flush_and_trim, flush_and_delete_all_that_is_covered, go_back_behind_the_log]


@pytest.mark.parametrize("lose", REBUILT, ids=lambda lose: lose.__name__)
async def test_lost_state_is_restored_from_the_snapshot(lose):
    cluster = await Past().happen()
    before = cluster.store.contents(0).copy()
    lose(cluster)
    after = Worker(cluster, "after")
    assert (await after.acquire())[0] == 4
    kept = cluster.store.contents(0)
    for name in ("next", "head", "before", "last", "leader_epoch", "digest"):
        assert kept.meta[name] == before.meta[name]
    assert kept.pages == before.pages
    cluster.broker.norms(0).append(b"one more")
    await after.deliver(0)
    await cluster.until_rejected(dict.fromkeys(range(5), 1))
    await after.leave()


def forget_the_snapshot(cluster):
    """As if the records of the partition were deleted from the topic."""
    cluster.snapshots().delete_before(cluster.snapshots().end)


def lose_a_part(cluster):
    snapshots = cluster.snapshots()
    (first,) = [offset for offset, (key, _) in snapshots.records.items() if key == b"0"]
    snapshots.remove(first, first + 1)


def spoil_the_manifest(cluster):
    snapshots = cluster.snapshots()
    (offset,) = [offset for offset, (key, _) in snapshots.records.items() if key == MANIFEST]
    snapshots.records[offset] = MANIFEST, b"no manifest"


def trim(cluster):
    cluster.broker.norms(0).delete_before(3)


def never_have_had_a_snapshot(cluster):
    cluster.snapshots().remove(0, cluster.snapshots().end)


def write_a_snapshot_of_a_later_format(cluster):
    records = cluster.snapshots().records
    (offset,) = (n for n, (key, value) in records.items() if key == MANIFEST and value)
    later = with_digest(encode([FORMAT + 1, "something new"]), "its manifest")
    records[offset] = MANIFEST, later


def delete_what_no_snapshot_covers(cluster):
    log = cluster.broker.norms(0)
    log.append(b"one more")
    log.delete_before(5)


SUSPENSIONS = [
    ((never_have_had_a_snapshot, trim), SuspensionReason.LOG_BEGINS_LATE),
    ((delete_what_no_snapshot_covers,), SuspensionReason.LOG_BEGINS_LATE),
    ((lose_a_part, trim), SuspensionReason.SNAPSHOT),
    ((spoil_the_manifest, trim), SuspensionReason.SNAPSHOT),
    ((create_the_topic_again,), SuspensionReason.OTHER_LOG),
    ((create_the_topic_again, lose_a_part), SuspensionReason.OTHER_LOG),
    ((add_partitions,), SuspensionReason.OTHER_PARTITIONS),
    ((lose_the_end,), SuspensionReason.LOG_ENDS_EARLY),
    ((lose_the_end, lose_a_part), SuspensionReason.LOG_ENDS_EARLY),
    ((write_the_log_anew,), SuspensionReason.LOG_REWRITTEN),
    ((write_the_log_anew, lose_a_part), SuspensionReason.LOG_REWRITTEN),
    ((write_a_snapshot_of_a_later_format,), SuspensionReason.OTHER_LAYOUT),
]


@pytest.mark.parametrize(("damages", "reason"), SUSPENSIONS)
async def test_a_snapshot_that_does_not_fit_suspends_the_partition(damages, reason):
    cluster = await Past().happen()
    cluster.flush()
    for damage in damages:
        damage(cluster)
    after = Worker(cluster, "after")
    assert 0 not in await after.acquire()
    suspended = cluster.store.contents(0).suspended
    assert suspended["reason"] == reason
    assert cluster.store.contents(0).meta["next"] == "0"
    assert not after.partitions.decides(0)
    assert 0 not in await after.acquire()  # it has not become a state of which nothing is known
    await after.leave()


def lose(key):
    def lose_a_key(cluster):
        cluster.store.lose(0, key)

    lose_a_key.__name__ = f"lose_{key}"
    return lose_a_key


def rename_an_outbox_entry(cluster):
    kept = cluster.store.contents(0)
    kept.outbox = {"nonsense": b""}
    kept.seal()


def spoil_the_head(cluster):
    cluster.store.contents(0).meta["digest"] = "nonsense"


def have_an_older_change(cluster):
    kept = cluster.store.contents(0)
    kept.changes[-1] = pack_change(0, 1, encode(Delta({}, [])))[0]


DAMAGES = [
    lose("meta"),
    lose("changes"),
    rename_an_outbox_entry,
    spoil_the_head,
    have_an_older_change,
]


async def with_changes_since_the_snapshot():
    """A cluster whose partitions have decided one record since their snapshots."""
    cluster = await Past().happen()
    for partition in range(2):
        cluster.broker.norms(partition).append(b"one more")
    return await decided(cluster)


FROM_WHERE = {  # what else happens to the log or the snapshot -> where the worker continues
    "from the snapshot": ((), 4),
    "from the snapshot, with the log before it trimmed": ((trim,), 4),
    "from the beginning of the log": ((never_have_had_a_snapshot,), 0),
    "from the beginning of the log, with a damaged snapshot": ((lose_a_part,), 0),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize(("besides", "continues"), FROM_WHERE.values(), ids=FROM_WHERE)
async def test_a_state_that_lost_a_part_is_replaced(damage, besides, continues):
    cluster = await with_changes_since_the_snapshot()
    before = cluster.store.contents(0).copy()
    damage(cluster)
    for other in besides:
        other(cluster)
    after = Worker(cluster, "after")
    assert await after.acquire() == {0: continues, 1: 5}
    await after.deliver(0)
    await cluster.until_rejected({n: 2 if n >= continues else 1 for n in range(5)})
    kept = cluster.store.contents(0)
    assert kept.suspended == {}
    for name in ("next", "head", "before", "last", "leader_epoch"):
        assert kept.meta[name] == before.meta[name]
    await after.leave()


UNRECOVERABLE = [  # what else happens, the reason with a head that can be read, and without one
    ((never_have_had_a_snapshot, trim), SuspensionReason.DAMAGED, SuspensionReason.DAMAGED),
    ((lose_a_part, trim), SuspensionReason.DAMAGED, SuspensionReason.DAMAGED),
    ((delete_what_no_snapshot_covers,), SuspensionReason.DAMAGED, SuspensionReason.DAMAGED),
    ((lose_the_end,), SuspensionReason.LOG_ENDS_EARLY, SuspensionReason.LOG_ENDS_EARLY),
    ((create_the_topic_again,), SuspensionReason.OTHER_LOG, SuspensionReason.DAMAGED),
    ((add_partitions,), SuspensionReason.OTHER_PARTITIONS, SuspensionReason.OTHER_PARTITIONS),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize(("besides", "reason", "headless"), UNRECOVERABLE)
async def test_damaged_state_stays_if_nothing_can_replace_it(damage, besides, reason, headless):
    cluster = await with_changes_since_the_snapshot()
    damage(cluster)
    for other in besides:
        other(cluster)
    left = cluster.store.contents(0).copy()
    after = Worker(cluster, "after")
    for _ in range(2):
        assert 0 not in await after.acquire()
        kept = cluster.store.contents(0)
        assert kept.suspended["reason"] == (reason if is_whole(left.meta) else headless)
        assert kept.changes == left.changes
        assert kept.outbox == left.outbox
        assert kept.meta.get("next") == left.meta.get("next")
    await after.leave()


async def test_a_damaged_state_behind_which_the_log_was_rewritten_stays():
    cluster = await with_changes_since_the_snapshot()
    lose("changes")(cluster)
    cluster.broker.norms(0).records[4] = None, b"another record"
    after = Worker(cluster, "after")
    assert 0 not in await after.acquire()
    assert cluster.store.suspension == SuspensionReason.LOG_REWRITTEN
    assert cluster.next(0) == 5
    await after.leave()


async def test_damage_during_a_replacement_suspends_the_partition():
    cluster = await with_changes_since_the_snapshot()
    rename_an_outbox_entry(cluster)
    real = cluster.store.write

    async def write(guard, fields, **entries):
        verdict = await real(guard, fields, **entries)
        rename_an_outbox_entry(cluster)
        return verdict

    cluster.store.write = write
    after = Worker(cluster, "after")
    assert 0 not in await after.acquire()
    assert cluster.store.suspension == SuspensionReason.DAMAGED
    await after.leave()


async def test_a_rebuild_that_is_interrupted_begins_again(monkeypatch):
    cluster = await Past().happen(erases=False)
    before = cluster.store.contents(0).copy()
    cluster.flush()
    first, second = Worker(cluster, "first"), Worker(cluster, "second")
    real = cluster.store.write

    async def fenced(guard, fields, **entries):
        await cluster.store.acquire(0, "somebody else", cluster.broker.topic, 2)
        return await real(guard, fields, **entries)

    with monkeypatch.context() as patch:
        patch.setattr(cluster.store, "write", fenced)
        with pytest.raises(Ended) as ended:
            await first.acquire()
    assert ended.value.reason is Ending.FENCED
    assert cluster.store.contents(0).meta["next"] == "0"
    assert (await second.acquire())[0] == 4
    assert cluster.store.contents(0).pages == before.pages
    await second.leave()


class Keyed(Worker):
    """A worker that has an erasure key."""

    def __init__(self, cluster, owner, key):
        super().__init__(cluster, owner, erasure_keys=key)

    @property
    def processor(self):
        return self.partitions.by_partition[0]

    async def decide(self):
        await self.deliver(0)
        async with asyncio.timeout(20):
            while self.processor.next < self.cluster.end(0):
                await asyncio.sleep(0)


async def whose_key_is_lost():
    """A cluster whose Redis and snapshot have a name by a key that nobody has any more."""
    cluster, log = Past(), Log(2, 0)
    user = next(user for user in range(9) if partitions_of([user], 2)[0] == 0)
    log.create()
    log.open()
    log.charge(0, [user], [1.0])
    log.send(Erase(request="f", user=user))
    cluster.broker.norms(0).remove(0, 4)
    cluster.broker.norms(0).end = 0
    for value in log.records:
        cluster.broker.norms(0).append(value)
    before = Keyed(cluster, "before", "the-key-that-is-lost")
    await before.acquire()
    await before.decide()
    await before.processor.outbox.settle(20)
    await before.processor.snapshot()
    await before.leave()
    return cluster


@pytest.mark.parametrize(
    ("damages", "reason"),
    [
        ((), SuspensionReason.ERASURE_KEY),
        ((flush,), SuspensionReason.ERASURE_KEY),
        ((flush_and_trim,), SuspensionReason.ERASURE_KEY),
        ((forget_the_snapshot,), SuspensionReason.ERASURE_KEY),
        ((flush_and_trim, forget_the_snapshot), SuspensionReason.LOG_BEGINS_LATE),
    ],
)
async def test_partition_without_its_erasure_key_is_suspended(damages, reason):
    cluster = await whose_key_is_lost()
    for damage in damages:
        damage(cluster)
    after = Keyed(cluster, "after", "another-key-of-theirs")
    assert 0 not in await after.acquire()
    suspended = cluster.store.contents(0).suspended
    assert suspended["reason"] == reason
    if reason is SuspensionReason.ERASURE_KEY:
        assert "docs/operate/erasure.md" in suspended["remedy"]
    await after.leave()
