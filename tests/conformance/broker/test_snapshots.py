"""The last complete snapshot of a partition is read, whichever writer dies or comes late."""

import asyncio
from contextlib import suppress

import pytest

from streams.kafka.results import NotSent
from streams.kafka.topics import SNAPSHOTS
from streams.store.snapshot import CHUNK_BYTES, MANIFEST, UnusableSnapshot
from tests.unit.store.snapshots import Kept, drawn, found, written

P = 1
OTHER = 0


async def write(topic, kept, last=None):
    """All of a snapshot, in several transactions; what it is, without its contents."""
    parts, manifest, emptied = drawn(kept, last)
    await topic.send(parts[:1])
    await topic.send(parts[1:])
    await topic.send([manifest])
    if emptied:
        await topic.send(emptied)
    return found([*parts, manifest], with_contents=False)


async def test_what_is_read_is_what_was_written_last_of_this_partition(bench):
    topic, other = bench.snapshots_of(P), bench.snapshots_of(OTHER)
    assert await topic.read(with_contents=True) is None
    await topic.start()
    many = {f"page:d/{n}": b"%d" % n * CHUNK_BYTES for n in range(3)}  # in several parts
    last = await write(topic, Kept(pages=many))
    read = await topic.read(with_contents=True)
    assert read.pages == Kept(pages=many).packed
    assert (await topic.read(with_contents=False)).listing == last.listing
    second = Kept(next=12, pages={**many, "run:d/r": b"r"})
    await write(topic, second, await topic.read(with_contents=False))
    read = await topic.read(with_contents=True)
    assert (read.manifest.meta.next, read.pages) == (12, second.packed)
    unpaged = second.unpaged
    assert (read.changes, read.outbox) == (list(unpaged.changes), dict(unpaged.outbox))
    assert await other.read(with_contents=True) is None
    await topic.stop()


async def test_empty_transaction_leaves_the_snapshot(bench):
    topic = bench.snapshots_of(P)
    await topic.start()
    last = await write(topic, Kept(next=10))
    before = await bench.hand.end_of(SNAPSHOTS, P)
    await topic.send([])
    while await bench.hand.end_of(SNAPSHOTS, P) == before:  # the broker answers before that
        await asyncio.sleep(0)
    assert (await topic.read(with_contents=True)).manifest == last.manifest
    await topic.stop()


async def test_who_comes_late_writes_no_manifest(bench):
    older, newer = bench.snapshots_of(P), bench.snapshots_of(P)
    await older.start()
    parts, manifest, _ = drawn(Kept(next=10))
    await older.send(parts)
    await newer.start()
    last = await write(newer, Kept(next=20))
    with pytest.raises(NotSent):
        await older.send([manifest])
    assert (await newer.read(with_contents=True)).manifest == last.manifest
    await older.stop()
    await older.start()  # it may begin again, and then is the one who is not late
    await older.send([])
    with pytest.raises(NotSent):
        await newer.send([])
    await older.stop()
    await newer.stop()


async def test_uncommitted_manifest_is_not_read(bench):
    topic = bench.snapshots_of(P)
    await topic.start()
    first = await write(topic, Kept(next=10))
    await bench.hand.abort_snapshot(P, written(Kept(next=20), first))
    assert (await topic.read(with_contents=True)).manifest == first.manifest
    await topic.start()
    assert (await topic.read(with_contents=True)).manifest == first.manifest
    await write(topic, Kept(next=30), await topic.read(with_contents=False))
    assert (await topic.read(with_contents=True)).manifest.meta.next == 30
    await topic.stop()


async def test_a_snapshot_with_a_missing_chunk_is_unusable(bench):
    topic = bench.snapshots_of(P)
    await topic.start()
    parts, manifest, _ = drawn(Kept(next=10))
    await topic.send([*parts[1:], manifest])
    with pytest.raises(UnusableSnapshot) as raised:
        await topic.read(with_contents=True)
    assert raised.value.manifest.meta.next == 10
    assert (await topic.read(with_contents=False)).manifest.meta.next == 10
    await topic.send([(MANIFEST, b"no manifest")])
    with pytest.raises(UnusableSnapshot):
        await topic.read(with_contents=False)
    await topic.stop()


async def test_sending_fails_if_the_topic_is_stopped_meanwhile(bench):
    topic = bench.snapshots_of(P)
    await topic.start()
    first = await write(topic, Kept(next=10))
    await topic.stop()
    await topic.start()  # which ends what is under way, if anything is
    many = {f"page:d/{n}": b"%d" % n * CHUNK_BYTES for n in range(3)}
    sending = asyncio.create_task(topic.send(written(Kept(next=20, pages=many), first)))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await topic.stop()
        with suppress(NotSent):
            await sending
    await topic.start()
    assert (await topic.read(with_contents=True)).manifest.meta.next in (10, 20)
    await topic.stop()
