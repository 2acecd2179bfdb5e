"""The atomic verbs on a real Redis: only the owner writes, each batch once, nothing half-way."""

import pytest

from streams.store.holding import Backlog
from streams.store.layout import CHANGE_BYTES, key_of, pack_change
from streams.store.port import Verdict
from streams.wire.chain import genesis
from tests.conformance.partitions import CHAIN, PARTITIONS, TOPIC, Owner, P, commit

NOTHING = genesis(TOPIC, P, PARTITIONS)


def test_a_claim_of_nothing_begins_at_the_genesis_of_the_log(store_of):
    async def scenario(store):
        claimed = await store.claim(P, "a", TOPIC, PARTITIONS)
        assert (claimed.verdict, claimed.before) == (Verdict.OK, {})
        kept = await store.load(P)
        assert (kept.next, kept.meta.owner, kept.meta.chain) == (0, "a", NOTHING)
        assert (kept.meta.topic, kept.meta.partitions) == (TOPIC.hex(), PARTITIONS)
        assert (kept.pages, kept.changes, kept.outbox) == ({}, [], [])

    store_of(scenario)


def test_a_commit_moves_next_and_chain_and_keeps_changes_and_outputs_together(store_of):
    async def scenario(store):
        owner = Owner(store, "a")
        holding = await owner.claim()
        assert await commit(holding, 0, 3, b"one", (b"answers", b"checkpoints")) is Verdict.OK
        assert await commit(holding, 3, 4, b"two", (), published=("0/0",)) is Verdict.OK
        kept = await owner.load()
        assert (kept.next, kept.meta.chain) == (4, CHAIN)
        assert kept.changes == [b"one", b"two"]
        assert kept.outbox == [("0/1", b"checkpoints")]

    store_of(scenario)


def test_every_write_moves_the_version_and_no_other_version_may_write(store_of):
    async def scenario(store):
        owner = Owner(store, "a")
        holding = await owner.claim()
        writes = {
            "commit": lambda: commit(holding, 0, 1),
            "compact": lambda: holding.compact(1, {"page:d/0": b"p"}),
            "drop": lambda: holding.drop(holding.backlog, 1),
            "forget": lambda: holding.forget(["0/0"]),
        }
        for name, write in writes.items():
            known = holding.version
            before = await owner.load()
            for other in (known - 1, known + 1):
                holding.version = other
                assert await write() is Verdict.REWOUND, name
            assert await owner.load() == before
            holding.version = known
            assert await write() is Verdict.OK, name
            assert (await owner.load()).meta.version == known + 1 == holding.version

    store_of(scenario)


REFUSED = [
    # first offset of the batch when 5 comes next, verdict
    (4, Verdict.DUPLICATE),
    (0, Verdict.DUPLICATE),
    (6, Verdict.GAP),
]


@pytest.mark.parametrize(("first", "verdict"), REFUSED)
def test_a_commit_that_is_not_next_changes_nothing(store_of, first, verdict):
    async def scenario(store):
        owner = Owner(store, "a")
        holding = await owner.claim()
        await commit(holding, 0, 5)
        before = await owner.load()
        assert await commit(holding, first, first + 1, b"x", (b"x",), ("0/0",)) is verdict
        assert await owner.load() == before

    store_of(scenario)


def test_a_claim_fences_the_owner_before(store_of):
    async def scenario(store):
        first = await Owner(store, "a").claim()
        await commit(first, 0, 2)
        claimed = await store.claim(P, "b", TOPIC, PARTITIONS)
        assert (claimed.before["owner"], claimed.version) == ("a", first.version)
        before = await Owner(store, "b").load()
        assert await commit(first, 2, 3) is Verdict.FENCED
        assert await first.compact(2, {"page:d/0": b"old"}) is Verdict.FENCED
        assert await first.drop(first.backlog, 2) is Verdict.FENCED
        assert await first.forget(["0/0"]) is Verdict.FENCED
        assert await first.beat(b"pulse", b"") is Verdict.FENCED
        assert not await first.is_held()
        assert await Owner(store, "b").load() == before

    store_of(scenario)


def test_pages_take_the_place_of_the_oldest_changes_only(store_of):
    async def scenario(store):
        owner = Owner(store, "a")
        holding = await owner.claim()
        for offset in range(2):
            await commit(holding, offset, offset + 1, b"%d" % offset)
        covered = holding.backlog
        await commit(holding, 2, 3, b"2")
        assert await holding.compact(2, {"page:d/0": b"p", "run:d/r": b"r"}) is Verdict.OK
        assert (await owner.load()).changes == [b"0", b"1", b"2"]
        assert await holding.drop(covered, 2) is Verdict.OK
        assert await holding.compact(3, {"page:d/0": b"q", "run:d/r": None}) is Verdict.OK
        kept = await owner.load()
        assert (kept.pages, kept.changes, kept.meta.since) == ({"page:d/0": b"q"}, [b"2"], 2)
        assert holding.backlog == Backlog(1, kept.changes_bytes)

    store_of(scenario)


def test_changes_too_large_for_one_value_are_kept_in_parts(store_of, monkeypatch):
    monkeypatch.setattr("streams.store.layout.CHANGE_BYTES", 10)
    assert len(pack_change(0, 1, b"x" * 25)) == 3
    assert CHANGE_BYTES < 512 * 1024 * 1024

    async def scenario(store):
        owner = Owner(store, "a")
        holding = await owner.claim()
        whole = bytes(range(35))
        await commit(holding, 0, 1, whole)
        await commit(holding, 1, 2, b"short")
        kept = await owner.load()
        assert kept.changes == [whole, b"short"]
        assert holding.backlog.entries == kept.meta.changes == 5
        await holding.drop(holding.backlog, 2)
        assert (await owner.load()).changes == []

    store_of(scenario)


def test_a_commit_with_very_many_parcels_is_written_whole(store_of):
    """`unpack` in a script has a limit, which would be met after the first write."""

    async def scenario(store):
        owner = Owner(store, "a")
        holding = await owner.claim()
        many = 20_000
        assert await commit(holding, 0, 1, outputs=(b"o",) * many) is Verdict.OK
        kept = await owner.load()
        assert len(kept.outbox) == many
        names = tuple(name for name, _ in kept.outbox)
        assert await commit(holding, 1, 2, outputs=(), published=names) is Verdict.OK
        assert (await owner.load()).outbox == []

    store_of(scenario)


def test_the_outbox_keeps_what_was_not_published_in_the_order_of_the_log(store_of):
    async def scenario(store):
        owner = Owner(store, "a")
        holding = await owner.claim()
        for offset in range(12):
            await commit(holding, offset, offset + 1, outputs=(b"x", b"y"))
        await holding.forget(["0/0", "0/1", "7/1"])
        places = [tuple(map(int, name.split("/"))) for name, _ in (await owner.load()).outbox]
        assert places == sorted(places)
        assert len(places) == 21

    store_of(scenario)


def test_partitions_do_not_touch_each_other(store_of):
    async def scenario(store):
        first, second = Owner(store, "a", 0), Owner(store, "b", 1)
        holding = await first.claim()
        await second.claim()
        await commit(holding, 0, 9)
        kept = await second.load()
        assert (kept.next, kept.meta.owner, kept.changes) == (0, "b", [])

    store_of(scenario)


OTHERS = [
    # the topic, P, verdict
    (b"another 16 bytes", PARTITIONS, Verdict.OTHER_LOG),
    (b"another 16 bytes", PARTITIONS + 1, Verdict.OTHER_LOG),
    (TOPIC, PARTITIONS + 1, Verdict.OTHER_PARTITIONS),
]


@pytest.mark.parametrize(("topic", "partitions", "verdict"), OTHERS)
def test_the_state_of_one_log_is_never_claimed_for_another(store_of, topic, partitions, verdict):
    async def scenario(store):
        owner = Owner(store, "a")
        await owner.claim()
        before = await owner.load()
        claimed = await store.claim(P, "b", topic, partitions)
        assert (claimed.verdict, claimed.before["owner"]) == (verdict, "a")
        assert await owner.load() == before

    store_of(scenario)


@pytest.mark.parametrize("layout", [None, "1", "3"])
def test_another_layout_is_never_claimed(store_of, client, layout):
    async def scenario(store):
        meta = key_of(store._prefix, P, "meta")
        client.hset(meta, mapping={"owner": "old", "next": 4})
        if layout:
            client.hset(meta, "layout", layout)
        before = client.hgetall(meta)
        claimed = await store.claim(P, "a", TOPIC, PARTITIONS)
        assert claimed.verdict is Verdict.OTHER_LAYOUT
        assert client.hgetall(meta) == before

    store_of(scenario)


def test_a_sign_of_life_is_no_state_and_takes_a_stop_away(store_of):
    async def scenario(store):
        owner = Owner(store, "a")
        holding = await owner.claim()
        await holding.keep_stop("hole", "a hole", "fill it")
        stopped = (await store.glance(P)).stopped
        assert (stopped["reason"], stopped["problem"]) == ("hole", "a hole")
        before = await owner.load()
        assert await holding.beat(b"pulse", b"summary") is Verdict.OK
        assert await holding.beat(b"later", b"") is Verdict.OK
        glance = await store.glance(P)
        assert (glance.pulse, glance.summary, glance.stopped) == (b"later", b"summary", {})
        assert 0 <= glance.now - glance.seen < 60
        assert await owner.load() == before

    store_of(scenario)
