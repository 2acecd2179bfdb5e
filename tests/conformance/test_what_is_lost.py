"""Whatever is lost or put back in Redis is seen: by the next write, by the next claim, or at load.

Nothing that is missing may ever be read as "nobody spent anything".
"""

import pytest

from streams.store.layout import Damaged, key_of
from streams.store.port import Verdict
from tests.conformance.partitions import PARTITIONS, TOPIC, Owner, P, commit


async def filled(store):
    """Pages, changes and an outbox, with two entries each."""
    owner = Owner(store, "a")
    holding = await owner.claim()
    await commit(holding, 0, 1, b"zero")
    await commit(holding, 1, 2, b"one")
    covered = holding.backlog
    await holding.compact(2, {"page:d/0": b"p0", "page:d/1": b"p1"})
    await holding.drop(covered, 2)
    await commit(holding, 2, 3, b"two")
    await commit(holding, 3, 4, b"three")
    return owner, holding


def without(name):
    return lambda client, key: client.delete(key(name))


def without_one_page(client, key):
    client.hdel(key("pages"), "page:d/1")


def without_one_parcel(client, key):
    client.hdel(key("outbox"), "2/0")


def trimmed_in_front(client, key):
    client.lpop(key("changes"))


def trimmed_behind(client, key):
    client.rpop(key("changes"))


COUNTED = {
    "the list of changes is gone": without("changes"),
    "the pages are gone": without("pages"),
    "the outbox is gone": without("outbox"),
    "one page is gone": without_one_page,
    "one parcel is gone": without_one_parcel,
    "the oldest change is gone": trimmed_in_front,
    "the newest change is gone": trimmed_behind,
}


@pytest.mark.parametrize("lose", COUNTED.values(), ids=COUNTED.keys())
def test_what_is_gone_is_seen_by_the_next_write_the_next_claim_and_at_load(store_of, client, lose):
    async def scenario(store):
        owner, holding = await filled(store)
        lose(client, lambda name: key_of(store._prefix, P, name))
        with pytest.raises(Damaged):
            await owner.load()
        assert await commit(holding, 4, 5) is Verdict.DAMAGED
        assert await holding.compact(4, {"page:d/0": b"new"}) is Verdict.DAMAGED
        assert await holding.forget(["3/0"]) is Verdict.DAMAGED
        assert (await store.claim(P, "b", TOPIC, PARTITIONS)).verdict is Verdict.DAMAGED
        assert await store.owner(P) == "a"

    store_of(scenario)


def with_an_older_page(client, key):
    client.hset(key("pages"), "page:d/0", client.hget(key("pages"), "page:d/1"))


def with_a_page_renamed(client, key):
    page = client.hget(key("pages"), "page:d/1")
    client.hdel(key("pages"), "page:d/1")
    client.hset(key("pages"), "page:e/1", page)


def with_a_change_twice(client, key):
    client.lset(key("changes"), 1, client.lindex(key("changes"), 0))


def with_changes_in_another_order(client, key):
    client.rpush(key("changes"), client.lpop(key("changes")))


def with_a_change_that_is_not_one(client, key):
    client.lset(key("changes"), 0, b"nonsense")


def with_a_parcel_renamed(client, key):
    client.hdel(key("outbox"), "2/0")
    client.hset(key("outbox"), "x", b"o")


def with_another_next(client, key):
    client.hset(key("meta"), "next", 5)


def with_another_start(client, key):
    client.hset(key("meta"), "since", 1)


def without_a_digest(client, key):
    client.hdel(key("meta"), "digest")


def with_a_head_that_is_not_one(client, key):
    client.hset(key("meta"), "head", "zz")


UNCOUNTED = {
    "a page is an older one": with_an_older_page,
    "a page has another name": with_a_page_renamed,
    "a change stands in the place of another": with_a_change_twice,
    "changes are in another order": with_changes_in_another_order,
    "a change cannot be read": with_a_change_that_is_not_one,
    "a parcel has another name": with_a_parcel_renamed,
    "next is another": with_another_next,
    "the changes begin elsewhere": with_another_start,
    "there is no digest": without_a_digest,
    "the chain cannot be read": with_a_head_that_is_not_one,
}


@pytest.mark.parametrize("change", UNCOUNTED.values(), ids=UNCOUNTED.keys())
def test_what_was_exchanged_is_seen_at_load(store_of, client, change):
    async def scenario(store):
        owner, _ = await filled(store)
        await owner.load()
        change(client, lambda name: key_of(store._prefix, P, name))
        with pytest.raises(Damaged):
            await owner.load()

    store_of(scenario)


@pytest.mark.parametrize("name", ["changes", "pages", "outbox", "deltas", "folded"])
def test_state_without_a_head_is_never_taken_for_nothing(store_of, client, name):
    async def scenario(store):
        key = key_of(store._prefix, P, name)
        if name in ("changes", "deltas"):
            client.rpush(key, b"state")
        else:
            client.hset(key, "page:d/0", b"state")
        assert (await store.claim(P, "a", TOPIC, PARTITIONS)).verdict is Verdict.DAMAGED
        assert not client.exists(key_of(store._prefix, P, "meta"))

    store_of(scenario)


def test_a_key_of_another_kind_is_damage_and_no_error(store_of, client):
    async def scenario(store):
        await filled(store)
        key = key_of(store._prefix, P, "pages")
        client.delete(key)
        client.set(key, "what somebody else keeps")
        assert (await store.claim(P, "b", TOPIC, PARTITIONS)).verdict is Verdict.DAMAGED

    store_of(scenario)


def test_older_contents_put_back_are_seen_although_next_is_the_same(store_of, client):
    """A compaction moves pages and trims changes, and next stays: the version does not."""

    async def scenario(store):
        owner, holding = await filled(store)
        keys = client.keys(f"{store._prefix}*")
        older = {key: client.dump(key) for key in keys}
        offset = (await owner.load()).next
        await holding.compact(4, {"page:d/0": b"later"})
        await holding.drop(holding.backlog, 4)
        for key in client.keys(f"{store._prefix}*"):
            client.delete(key)
        for key, contents in older.items():
            client.restore(key, 0, contents)
        assert (await owner.load()).next == offset
        assert await holding.forget(["3/0"]) is Verdict.REWOUND
        assert await holding.drop(holding.backlog, 4) is Verdict.REWOUND
        assert await commit(holding, 4, 5) is Verdict.REWOUND

    store_of(scenario)


def test_an_emptied_redis_fences_its_owner(store_of, client):
    async def scenario(store):
        _, holding = await filled(store)
        client.delete(*client.keys(f"{store._prefix}*"))
        assert await commit(holding, 4, 5) is Verdict.FENCED

    store_of(scenario)
