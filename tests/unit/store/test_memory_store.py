"""What a simulation does to a store: back to any earlier contents, single keys lost, any time."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from streams.records.digests import HashChain
from streams.store.layout import Damaged
from streams.store.port import Commit, Guard, Verdict
from streams.store.writer import PartitionWriter
from tests.doubles.memory_store import MemoryStore

T = TypeVar("T")
TOPIC = b"topic of 16 byte"
CHAIN = HashChain(b"head", b"before", 7)


def now(asked: Awaitable[T]) -> T:
    """The answer of a verb, which waits for nothing: no event loop is there."""
    try:
        asked.__await__().send(None)
    except StopIteration as answered:
        return answered.value
    raise AssertionError("it waits")


def acquired(store: MemoryStore, partition: int = 0) -> PartitionWriter:
    now(store.acquire(partition, "a", TOPIC, 4))
    return PartitionWriter(store, partition, "a", now(store.load(partition)))


def batch(writer: PartitionWriter, first: int) -> Verdict:
    return now(writer.commit(first, first + 1, CHAIN, 3, b"c", {f"{first}/0": b"o"}, []))


def test_a_copy_put_back_is_what_was_kept_however_often():
    store = MemoryStore(clock=lambda: 0.0)
    acquired(store, 1)
    writer = acquired(store)
    batch(writer, 0)
    now(writer.merge(1, {"page:d/0": b"p"}))
    copied, kept = store.copy(), [now(store.load(partition)) for partition in range(3)]
    for _ in range(2):
        assert batch(writer, 1) is Verdict.OK
        assert now(writer.merge(2, {"page:d/0": None, "page:d/1": b"q"})) is Verdict.OK
        assert now(writer.drop(writer.backlog, 2)) is Verdict.OK
        assert now(writer.beat(b"pulse", b"")) is Verdict.OK
        assert batch(acquired(store, 1), 0) is Verdict.OK
        acquired(store, 2)
        store.restore(copied)
        assert [now(store.load(partition)) for partition in range(3)] == kept
        assert now(store.glance(0)).seen is None
        assert batch(writer, 2) is Verdict.REWOUND
        writer = PartitionWriter(store, 0, "a", now(store.load(0)))


@pytest.mark.parametrize("key", ["changes", "pages", "outbox"])
def test_a_key_that_is_lost_damages_the_partition_and_no_other(key):
    store = MemoryStore(clock=lambda: 0.0)
    writers = [acquired(store, partition) for partition in range(2)]
    for writer in writers:
        batch(writer, 0)
        now(writer.merge(1, {"page:d/0": b"p"}))
    store.lose(0, key)
    assert [batch(writer, 1) for writer in writers] == [Verdict.DAMAGED, Verdict.OK]
    with pytest.raises(Damaged):
        now(store.load(0))


def test_a_head_that_is_lost_fences_its_owner_and_is_not_taken_for_nothing():
    store = MemoryStore(clock=lambda: 0.0)
    writer = acquired(store)
    batch(writer, 0)
    store.lose(0, "meta")
    assert batch(writer, 1) is Verdict.FENCED
    assert now(store.acquire(0, "b", TOPIC, 4)).verdict is Verdict.DAMAGED


def test_signs_of_life_have_the_time_of_the_clock_that_was_handed_in():
    times = iter([10.9, 70.0, 75.5])
    store = MemoryStore(clock=lambda: next(times))
    writer = acquired(store)
    now(writer.beat(b"pulse", b""))
    now(writer.keep_suspension("hole", "a hole", "fill it"))
    glance = now(store.glance(0))
    assert (glance.seen, glance.suspended["time"], glance.now) == (10, "70", 75)


def test_what_the_caller_changes_later_is_not_what_was_written():
    store = MemoryStore(clock=lambda: 0.0)
    version = acquired(store).version
    changes, outbox_entries = [b"c"], {"0/0": b"o"}
    now(store.commit(Guard(0, "a", version), Commit(0, 1, CHAIN, 3, changes, outbox_entries, [])))
    changes.clear()
    outbox_entries.clear()
    contents = store.contents(0)
    assert (contents.changes, contents.outbox) == ([b"c"], {"0/0": b"o"})
    now(store.glance(0)).meta.clear()
    assert asyncio.run(store.owner(0)) == "a"
