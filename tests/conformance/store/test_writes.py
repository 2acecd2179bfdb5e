"""The atomic verbs: only the owner writes, each batch once, nothing half-way."""

import pytest

from streams.store.layout import CHANGE_BYTES, pack_change
from streams.store.store_port import Verdict
from streams.store.writer import Backlog
from tests.conformance.store.bench import CHAIN, P, commit


async def test_commit_stores_offset_chain_and_outputs_together(bench):
    owner = bench.owner("a")
    writer = await owner.acquire()
    assert await commit(writer, 0, 3, b"one", (b"answers", b"odometers")) is Verdict.OK
    assert await commit(writer, 3, 4, b"two", (), published=("0/0",)) is Verdict.OK
    kept = await owner.load()
    assert (kept.next, kept.meta.chain, kept.meta.leader_epoch) == (4, CHAIN, 3)
    assert kept.changes == [b"one", b"two"]
    assert kept.outbox == [("0/1", b"odometers")]


async def test_every_write_needs_and_moves_the_version(bench):
    owner = bench.owner("a")
    writer = await owner.acquire()
    writes = {
        "commit": lambda: commit(writer, 0, 1),
        "merge": lambda: writer.merge(1, {"page:d/0": b"p"}),
        "drop": lambda: writer.drop(writer.backlog, 1),
        "forget": lambda: writer.forget(["0/0"]),
    }
    for other in (writer.version - 1, writer.version + 1):
        writer.version, known = other, writer.version
        assert await writer.beat(b"pulse", b"") is Verdict.REWOUND
        writer.version = known
    for name, write in writes.items():
        known = writer.version
        before = bench.hand.read(P)
        for other in (known - 1, known + 1):
            writer.version = other
            assert await write() is Verdict.REWOUND, name
        assert bench.hand.read(P) == before
        writer.version = known
        assert await write() is Verdict.OK, name
        assert (await owner.load()).meta.version == known + 1 == writer.version


REFUSED = [
    # first offset of the batch when 5 comes next, verdict
    (4, Verdict.DUPLICATE),
    (0, Verdict.DUPLICATE),
    (6, Verdict.GAP),
]


@pytest.mark.parametrize(("first", "verdict"), REFUSED)
async def test_a_commit_that_is_not_next_changes_nothing(bench, first, verdict):
    writer = await bench.owner("a").acquire()
    await commit(writer, 0, 5)
    before = bench.hand.read(P)
    assert await commit(writer, first, first + 1, b"x", (b"x",), ("0/0",)) is verdict
    assert bench.hand.read(P) == before
    assert await commit(writer, 5, 6) is Verdict.OK


async def test_pages_take_the_place_of_the_oldest_changes_only(bench):
    owner = bench.owner("a")
    writer = await owner.acquire()
    for offset in range(2):
        await commit(writer, offset, offset + 1, b"%d" % offset)
    covered = writer.backlog
    await commit(writer, 2, 3, b"2")
    assert await writer.merge(2, {"page:d/0": b"p", "run:d/r": b"r"}) is Verdict.OK
    assert (await owner.load()).changes == [b"0", b"1", b"2"]
    assert await writer.drop(covered, 2) is Verdict.OK
    assert await writer.merge(3, {"page:d/0": b"q", "run:d/r": None}) is Verdict.OK
    kept = await owner.load()
    assert (kept.pages, kept.changes, kept.meta.since) == ({"page:d/0": b"q"}, [b"2"], 2)
    assert writer.backlog == Backlog(1, kept.changes_bytes)


async def test_new_owner_continues_with_pages_and_backlog(
    bench,
):
    before = await bench.owner("a").acquire()
    await commit(before, 0, 1)
    await before.merge(1, {"page:d/0": b"p", "page:d/1": b"p"})
    await commit(before, 1, 2)
    owner = bench.owner("b")
    writer = await owner.acquire()
    assert writer.backlog == before.backlog
    assert await writer.merge(2, {"page:d/0": b"q", "page:d/1": None}) is Verdict.OK
    assert await writer.drop(writer.backlog, 2) is Verdict.OK
    kept = await owner.load()
    assert (kept.pages, kept.changes, kept.meta.since) == ({"page:d/0": b"q"}, [], 2)


async def test_changes_too_large_for_one_value_are_kept_in_parts(bench, monkeypatch):
    monkeypatch.setattr("streams.store.layout.CHANGE_BYTES", 10)
    assert len(pack_change(0, 1, b"x" * 25)) == 3
    assert CHANGE_BYTES < 512 * 1024 * 1024
    owner = bench.owner("a")
    writer = await owner.acquire()
    whole = bytes(range(35))
    await commit(writer, 0, 1, whole)
    await commit(writer, 1, 2, b"short")
    kept = await owner.load()
    assert kept.changes == [whole, b"short"]
    assert writer.backlog.entries == kept.meta.changes == 5
    await writer.drop(writer.backlog, 2)
    assert (await owner.load()).changes == []


async def test_a_commit_with_many_outbox_entries_is_written_completely(bench):
    """`unpack` in a script has a limit, which would be met after the first write."""
    owner = bench.owner("a")
    writer = await owner.acquire()
    many = 20_000
    assert await commit(writer, 0, 1, outputs=(b"o",) * many) is Verdict.OK
    kept = await owner.load()
    assert len(kept.outbox) == many
    names = tuple(name for name, _ in kept.outbox)
    assert await commit(writer, 1, 2, outputs=(), published=names) is Verdict.OK
    assert (await owner.load()).outbox == []


async def test_commit_larger_than_a_command_is_atomic(bench, monkeypatch):
    monkeypatch.setattr("streams.store.layout.CHANGE_BYTES", 10)
    monkeypatch.setattr("streams.store.redis_store._COMMAND_BYTES", 20)
    owner = bench.owner("a")
    writer = await owner.acquire()
    await commit(writer, 0, 1, b"first")
    large, outputs = bytes(range(75)), (b"o" * 30, b"p", b"q" * 12)
    bench.hand.stage(P, [b"old"], {"page:d/9": b"old"}, {"9/9": b"old"})
    assert await commit(writer, 1, 2, large, outputs, published=("0/0",)) is Verdict.OK
    kept = await owner.load()
    assert kept.changes == [b"first", large]
    assert kept.outbox == [(f"1/{number}", packed) for number, packed in enumerate(outputs)]
    before = bench.hand.read(P)
    for first, verdict in ((1, Verdict.DUPLICATE), (3, Verdict.GAP)):
        assert await commit(writer, first, 4, large, outputs) is verdict
        assert bench.hand.read(P) == before
    other = await bench.owner("b").acquire()
    before = bench.hand.read(P)
    assert await commit(writer, 2, 3, large, outputs) is Verdict.FENCED
    assert bench.hand.read(P) == before
    assert await commit(other, 2, 3, large, outputs) is Verdict.OK
    assert (await owner.load()).changes == [b"first", large, large]


async def test_a_sign_of_life_is_no_state_and_takes_a_stop_away(bench):
    owner = bench.owner("a")
    writer = await owner.acquire()
    await bench.store.keep_suspension(P, "hole", "a hole", "fill it")
    suspended = (await bench.store.glance(P)).suspended
    assert (suspended["reason"], suspended["problem"]) == ("hole", "a hole")
    assert suspended["remedy"] == "fill it"
    before = await owner.load()
    assert await writer.beat(b"pulse", b"summary") is Verdict.OK
    assert await writer.beat(b"later", b"") is Verdict.OK
    glance = await bench.store.glance(P)
    assert (glance.pulse, glance.summary, glance.suspended) == (b"later", b"summary", {})
    assert 0 <= glance.now - glance.seen < 60
    assert await owner.load() == before
    assert (before.pulse, (await owner.load()).pulse) == (b"", b"later")
