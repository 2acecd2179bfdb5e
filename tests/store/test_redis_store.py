"""The atomic verbs on a real Redis: only the owner writes, each batch once, nothing half-way."""

import asyncio
from uuid import uuid4

import pytest

from streams.local import RedisServer
from streams.redis_store import RedisStore, StoreUnavailable, Verdict

P = 3


@pytest.fixture
def store_of(redis_url):
    """Run a scenario against a fresh set of keys."""

    def run(scenario):
        async def connected():
            async with RedisStore(redis_url, f"t{uuid4().hex}.") as store:
                await scenario(store)

        asyncio.run(connected())

    return run


async def commit(store, owner, first, following, delta=b"d", outputs=b"o", published=()):
    return await store.commit(P, owner, first, following, delta, outputs, published)


def test_a_commit_moves_next_and_keeps_delta_and_outputs_together(store_of):
    async def scenario(store):
        assert await store.claim(P, "a") == (0, "")
        assert await commit(store, "a", 0, 3, b"one", b"out") is Verdict.OK
        assert await commit(store, "a", 3, 4, b"two", b"", published=[0]) is Verdict.OK
        kept = await store.load(P)
        assert (kept.next, kept.owner) == (4, "a")
        assert kept.deltas == [b"one", b"two"]
        assert kept.outbox == []

    store_of(scenario)


REFUSED = [
    # owner, first offset of the batch when 5 comes next, verdict
    ("b", 5, Verdict.FENCED),
    ("b", 4, Verdict.FENCED),
    ("a", 4, Verdict.DUPLICATE),
    ("a", 0, Verdict.DUPLICATE),
    ("a", 6, Verdict.GAP),
]


@pytest.mark.parametrize(("owner", "first", "verdict"), REFUSED)
def test_a_commit_that_is_not_next_changes_nothing(store_of, owner, first, verdict):
    async def scenario(store):
        await store.claim(P, "a")
        await commit(store, "a", 0, 5)
        before = await store.load(P)
        assert await commit(store, owner, first, first + 1, b"x", b"x", [0]) is verdict
        assert await store.load(P) == before

    store_of(scenario)


def test_a_claim_fences_the_owner_before(store_of):
    async def scenario(store):
        await store.claim(P, "a")
        await commit(store, "a", 0, 2)
        assert await store.claim(P, "b") == (2, "a")
        assert await commit(store, "a", 2, 3) is Verdict.FENCED
        assert await store.fold(P, "a", 2, {"page:d/0": b"old"}, drop=1) is Verdict.FENCED
        assert await commit(store, "b", 2, 3) is Verdict.OK
        kept = await store.load(P)
        assert kept.folded == {}
        assert len(kept.deltas) == 2

    store_of(scenario)


def test_a_fold_replaces_the_oldest_deltas_only(store_of):
    async def scenario(store):
        await store.claim(P, "a")
        for offset in range(3):
            await commit(store, "a", offset, offset + 1, b"%d" % offset)
        assert await store.fold(P, "a", 3, {"page:d/0": b"p"}) is Verdict.OK
        assert await store.fold(P, "a", 3, {}, drop=2) is Verdict.OK
        kept = await store.load(P)
        assert kept.folded == {"page:d/0": b"p"}
        assert kept.deltas == [b"2"]

    store_of(scenario)


@pytest.mark.parametrize(("position", "verdict"), [(2, Verdict.DUPLICATE), (4, Verdict.GAP)])
def test_state_that_is_not_of_this_moment_is_never_folded(store_of, position, verdict):
    """A fold from memory that is ahead of a Redis that rolled back would charge twice."""

    async def scenario(store):
        await store.claim(P, "a")
        await commit(store, "a", 0, 3)
        assert await store.fold(P, "a", position, {"page:d/0": b"p"}, drop=1) is verdict
        kept = await store.load(P)
        assert (kept.folded, len(kept.deltas)) == ({}, 1)

    store_of(scenario)


def test_the_outbox_keeps_what_was_not_published_in_the_order_of_the_log(store_of):
    async def scenario(store):
        await store.claim(P, "a")
        for offset in range(12):
            await commit(store, "a", offset, offset + 1, outputs=b"%d" % offset)
        await store.forget_published(P, [0, 7])
        kept = await store.load(P)
        assert [first for first, _ in kept.outbox] == [1, 2, 3, 4, 5, 6, 8, 9, 10, 11]

    store_of(scenario)


def test_partitions_do_not_touch_each_other(store_of):
    async def scenario(store):
        await store.claim(0, "a")
        await store.claim(1, "b")
        await store.commit(0, "a", 0, 9, b"d", b"o", [])
        kept = await store.load(1)
        assert (kept.next, kept.owner, kept.deltas) == (0, "b", [])

    store_of(scenario)


def test_a_redis_that_does_not_answer_is_an_error_that_says_so():
    async def scenario():
        async with RedisStore("redis://127.0.0.1:1/0", "t.") as store:
            await store.claim(P, "a")

    with pytest.raises(StoreUnavailable, match="partition 3"):
        asyncio.run(scenario())


def test_a_redis_that_may_forget_is_refused(tmp_path):
    settings = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}

    async def scenario(url):
        async with RedisStore(url, "t.") as store:
            await store.check()

    with (
        RedisServer(tmp_path, settings=settings) as server,
        pytest.raises(StoreUnavailable, match="noeviction"),
    ):
        asyncio.run(scenario(server.url))
