"""An acquisition begins a partition or takes it over, and never for another log than its own."""

import pytest

from streams.records.digests import genesis
from streams.store.store_port import Verdict
from tests.conformance.store.bench import PARTITIONS, TOPIC, P, commit

NOTHING = genesis(TOPIC, P, PARTITIONS)


async def test_first_acquisition_begins_at_the_genesis(bench):
    assert await bench.store.load(P) is None
    assert (await bench.store.glance(P)).meta == {}
    acquired = await bench.store.acquire(P, "a", TOPIC, PARTITIONS)
    assert (acquired.verdict, acquired.before, acquired.version) == (Verdict.OK, {}, 0)
    kept = await bench.owner("a").load()
    assert (kept.next, kept.meta.owner, kept.meta.chain) == (0, "a", NOTHING)
    assert (kept.meta.topic, kept.meta.partitions) == (TOPIC.hex(), PARTITIONS)
    assert (kept.pages, kept.changes, kept.outbox) == ({}, [], [])


async def test_what_an_acquisition_of_nothing_writes_has_the_layout(bench):
    await bench.store.acquire(P, "a", TOPIC, PARTITIONS)
    assert bench.hand.read(P).meta == {
        "layout": "6",
        "topic": "746f706963206f662031362062797465",
        "partitions": "4",
        "owner": "a",
        "version": "1",
        "next": "0",
        "head": "fc64da80aa528df9bed919a408f59188f4c111cdd63f032e4246777cb2b41bc6",
        "before": "",
        "last": "-1",
        "leader_epoch": "-1",
        "since": "0",
        "changes": "0",
        "pages": "0",
        "digest": "0" * 32,
        "outbox": "0",
        "meta_digest": "06fbe89a043357e093df66b4ac7fe8d8",
    }


async def test_an_acquisition_fences_the_owner_before(bench):
    first = await bench.owner("a").acquire()
    await commit(first, 0, 2)
    acquired = await bench.store.acquire(P, "b", TOPIC, PARTITIONS)
    assert (acquired.before["owner"], acquired.version) == ("a", first.version)
    before = bench.hand.read(P)
    assert await commit(first, 2, 3) is Verdict.FENCED
    assert await first.merge(2, {"page:d/0": b"old"}) is Verdict.FENCED
    assert await first.drop(first.backlog, 2) is Verdict.FENCED
    assert await first.forget(["0/0"]) is Verdict.FENCED
    assert await first.beat(b"pulse", b"") is Verdict.FENCED
    assert not await first.is_held()
    assert bench.hand.read(P) == before


async def test_own_acquisition_moves_the_version(bench):
    before = await bench.owner("a").acquire()
    after = await bench.owner("a").acquire()
    assert after.version == before.version + 1
    assert await commit(before, 0, 1) is Verdict.REWOUND
    assert await commit(after, 0, 1) is Verdict.OK


OTHERS = [{"layout": "1"}, {"topic": b"another 16 bytes".hex()}, {"partitions": "5"}]


@pytest.mark.parametrize("field", OTHERS, ids=str)
@pytest.mark.parametrize("is_damaged", [False, True])
async def test_the_state_of_one_log_is_never_acquired_for_another(bench, field, is_damaged):
    await commit(await bench.owner("a").acquire(), 0, 5)
    kept = bench.hand.read(P)
    kept.meta.update(field)
    if is_damaged:
        kept.changes.clear()
    bench.hand.write(P, kept)
    acquired = await bench.store.acquire(P, "b", TOPIC, PARTITIONS)
    assert (acquired.verdict, acquired.before) == (Verdict.MISFIT, kept.meta)
    assert bench.hand.read(P) == kept


@pytest.mark.parametrize("layout", [None, "2", "5"])
async def test_another_layout_is_never_acquired(bench, layout):
    found = bench.hand.read(P)
    found.meta = {"owner": "old", "next": "4"} | ({"layout": layout} if layout else {})
    bench.hand.write(P, found)
    acquired = await bench.store.acquire(P, "a", TOPIC, PARTITIONS)
    assert (acquired.verdict, acquired.before) == (Verdict.MISFIT, found.meta)
    assert bench.hand.read(P) == found


async def test_partitions_do_not_touch_each_other(bench):
    writer = await bench.owner("a", 0).acquire()
    second = bench.owner("b", 1)
    await second.acquire()
    await commit(writer, 0, 9)
    kept = await second.load()
    assert (kept.next, kept.meta.owner, kept.changes) == (0, "b", [])
