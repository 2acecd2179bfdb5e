"""A snapshot is read as of one time, and restored completely or not at all."""

import pytest

from streams.store.layout import Meta, with_meta_digest
from streams.store.store_port import Verdict
from tests.conformance.store.bench import CHAIN, PARTITIONS, TOPIC, P, commit, guard_of
from tests.doubles.memory_store import MemoryStore
from tests.unit.store.snapshots import Kept, found, written

SNAPSHOT = found(written(Kept(pages={"page:d/0": b"p", "run:d/r": b"r"})))


FIELDS = with_meta_digest(
    {**SNAPSHOT.manifest.saved, "topic": TOPIC.hex(), "partitions": str(PARTITIONS)}
)


async def restore(bench, guard):
    return await bench.store.write(
        guard,
        FIELDS,
        replaces=True,
        changes=SNAPSHOT.changes,
        pages=SNAPSHOT.pages,
        outbox=SNAPSHOT.outbox,
    )


async def test_unpaged_is_the_state_besides_pages(bench):
    writer = await bench.owner("a").acquire()
    await commit(writer, 0, 3, b"one", (b"answers",))
    await writer.merge(3, {"page:d/0": b"p", "run:d/r": b"r"})
    unpaged = await writer.unpaged()
    kept = bench.hand.read(P)
    assert (list(unpaged.changes), unpaged.outbox) == (kept.changes, kept.outbox)
    meta = Meta.of(unpaged.fields)
    assert (meta.next, meta.chain, meta.pages) == (3, CHAIN, 2)
    assert await writer.pages(writer.hashes) == kept.pages
    wrong = {**writer.hashes, "run:d/r": 7}
    assert await writer.pages(wrong) is None
    assert await writer.pages({"page:d/1": 7}) is None


SPOILED = {
    Verdict.FENCED: lambda kept: kept.meta.update(owner="b"),
    Verdict.REWOUND: lambda kept: kept.meta.update(version="1"),
    Verdict.DAMAGED: lambda kept: kept.outbox.clear(),
}


@pytest.mark.parametrize("verdict", SPOILED)
@pytest.mark.parametrize("command_bytes", [1, 1 << 20])
async def test_a_write_of_another_state_than_the_owners_changes_nothing(
    bench, verdict, command_bytes, monkeypatch
):
    monkeypatch.setattr("streams.store.redis_store._COMMAND_BYTES", command_bytes)
    writer = await bench.owner("a").acquire()
    await commit(writer, 0, 5)
    kept = bench.hand.read(P)
    SPOILED[verdict](kept)
    bench.hand.write(P, kept)
    assert await writer.unpaged() is verdict
    assert await restore(bench, guard_of(writer)) is verdict
    assert bench.hand.read(P) == kept


@pytest.mark.parametrize("command_bytes", [1, 20, 1 << 20])
async def test_a_snapshot_replaces_everything_at_once(bench, command_bytes, monkeypatch):
    monkeypatch.setattr("streams.store.redis_store._COMMAND_BYTES", command_bytes)
    owner = bench.owner("a")
    writer = await owner.acquire()
    await commit(writer, 0, 5, b"before")
    await writer.merge(5, {"page:d/9": b"before"})
    bench.hand.stage(P, [b"left"], {"page:d/8": b"left"}, {"1/1": b"left"})
    guard = guard_of(writer)
    assert await restore(bench, guard) is Verdict.OK
    assert bench.hand.staged(P) == 0
    kept = await owner.load()
    assert (kept.meta.owner, kept.meta.version) == ("a", guard.version + 1)
    assert (kept.pages, kept.next) == ({"page:d/0": b"p", "run:d/r": b"r"}, 10)
    assert kept.meta.chain == SNAPSHOT.manifest.meta.chain
    assert (kept.changes, kept.outbox) == (
        [b"changed by 8", b"changed by 9"],
        [("9/0", b"an answer")],
    )
    writer = await bench.owner("b").acquire()
    assert await commit(writer, 10, 11) is Verdict.OK


@pytest.mark.parametrize("lose", ["staged-changes", "staged-pages", "staged-outbox"])
async def test_large_write_that_lost_a_piece_changes_nothing(bench, lose, monkeypatch):
    monkeypatch.setattr("streams.store.redis_store._COMMAND_BYTES", 1)

    if isinstance(bench.store, MemoryStore):
        return
    owner = bench.owner("a")
    writer = await owner.acquire()
    await commit(writer, 0, 5, b"before")
    before = await owner.load()
    guarded = bench.store._guarded

    async def losing(name, *arguments):
        if name == "write":
            bench.hand.delete(P, lose)
        return await guarded(name, *arguments)

    monkeypatch.setattr(bench.store, "_guarded", losing)
    assert await restore(bench, guard_of(writer)) is Verdict.DAMAGED
    assert await owner.load() == before
