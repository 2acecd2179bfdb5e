"""Whatever is lost or put back is seen: by the next write, by the next acquisition, or at load.

Nothing that is missing may ever be read as "nobody spent anything".
"""

import pytest

from streams.store.layout import Damaged, fields_of_nothing
from streams.store.store_port import Verdict
from tests.conformance.store.bench import PARTITIONS, TOPIC, P, commit
from tests.doubles.memory_store import Contents


async def filled(bench):
    """Pages, changes and an outbox, with two entries each."""
    owner = bench.owner("a")
    writer = await owner.acquire()
    await commit(writer, 0, 1, b"zero")
    await commit(writer, 1, 2, b"one", outputs=(), published=("0/0",))
    covered = writer.backlog
    await writer.merge(2, {"page:d/0": b"p0", "page:d/1": b"p1"})
    await writer.drop(covered, 2)
    await commit(writer, 2, 3, b"two")
    await commit(writer, 3, 4, b"three")
    return owner, writer


COUNTED = {
    "the list of changes is gone": lambda kept: kept.changes.clear(),
    "the pages are gone": lambda kept: kept.pages.clear(),
    "the outbox is gone": lambda kept: kept.outbox.clear(),
    "one page is gone": lambda kept: kept.pages.pop("page:d/1"),
    "one outbox entry is gone": lambda kept: kept.outbox.pop("2/0"),
    "the oldest change is gone": lambda kept: kept.changes.pop(0),
    "the newest change is gone": lambda kept: kept.changes.pop(),
}


@pytest.mark.parametrize("lose", COUNTED.values(), ids=COUNTED.keys())
async def test_lost_key_is_seen_by_write_acquisition_and_load(bench, lose):
    owner, writer = await filled(bench)
    kept = bench.hand.read(P)
    lose(kept)
    bench.hand.write(P, kept)
    with pytest.raises(Damaged):
        await owner.load()
    assert await commit(writer, 4, 5) is Verdict.DAMAGED
    assert await writer.merge(4, {"page:d/0": b"new"}) is Verdict.DAMAGED
    assert await writer.drop(writer.backlog, 4) is Verdict.DAMAGED
    assert await writer.forget(["3/0"]) is Verdict.DAMAGED
    assert await writer.beat(b"pulse", b"") is Verdict.DAMAGED
    acquired = await bench.store.acquire(P, "b", TOPIC, PARTITIONS)
    assert (acquired.verdict, acquired.before) == (Verdict.DAMAGED, kept.meta)
    assert bench.hand.read(P) == kept


def with_an_older_page(kept):
    kept.pages["page:d/0"] = kept.pages["page:d/1"]


def with_a_page_renamed(kept):
    kept.pages["page:e/1"] = kept.pages.pop("page:d/1")


def with_a_change_twice(kept):
    kept.changes[1] = kept.changes[0]


def with_a_change_that_is_not_one(kept):
    kept.changes[0] = b"nonsense"


def with_an_outbox_entry_renamed(kept):
    kept.outbox["x"] = kept.outbox.pop("2/0")


UNCOUNTED = {
    "a page is an older one": with_an_older_page,
    "a page has another name": with_a_page_renamed,
    "a change appears twice": with_a_change_twice,
    "changes are in another order": lambda kept: kept.changes.reverse(),
    "a change cannot be read": with_a_change_that_is_not_one,
    "an outbox entry has another name": with_an_outbox_entry_renamed,
    "next is another": lambda kept: kept.meta.update(next="5"),
    "the changes begin elsewhere": lambda kept: kept.meta.update(since="1"),
    "there is no digest": lambda kept: kept.meta.pop("digest"),
    "the chain cannot be read": lambda kept: kept.meta.update(head="zz"),
}


@pytest.mark.parametrize("change", UNCOUNTED.values(), ids=UNCOUNTED.keys())
async def test_what_was_exchanged_is_seen_at_load(bench, change):
    owner, _ = await filled(bench)
    await owner.load()
    kept = bench.hand.read(P)
    change(kept)
    bench.hand.write(P, kept)
    with pytest.raises(Damaged):
        await owner.load()


FIELDS = {
    # a missing or invalid field of meta: the verdict of acquiring, and of the owner's commit
    "layout": (Verdict.MISFIT, Verdict.OK),
    "topic": (Verdict.MISFIT, Verdict.OK),
    "partitions": (Verdict.MISFIT, Verdict.OK),
    "owner": (Verdict.OK, Verdict.FENCED),
    "version": (Verdict.DAMAGED, Verdict.REWOUND),
    "next": (Verdict.OK, Verdict.DAMAGED),
    "changes": (Verdict.DAMAGED, Verdict.DAMAGED),
    "pages": (Verdict.DAMAGED, Verdict.DAMAGED),
    "outbox": (Verdict.DAMAGED, Verdict.DAMAGED),
}


@pytest.mark.parametrize("value", [None, "", "zz"])
@pytest.mark.parametrize(("field", "verdicts"), FIELDS.items(), ids=FIELDS.keys())
async def test_damaged_head_field_is_a_verdict_and_no_error(bench, field, verdicts, value):
    _, writer = await filled(bench)
    damaged = bench.hand.read(P)
    del damaged.meta[field]
    if value is not None:
        damaged.meta[field] = value
    bench.hand.write(P, damaged)
    found = [(await bench.store.acquire(P, "b", TOPIC, PARTITIONS)).verdict]
    bench.hand.write(P, damaged)
    found.append(await commit(writer, 4, 5))
    assert tuple(found) == verdicts


@pytest.mark.parametrize("version", [" 5", "5 ", "0x5", "5e0", "-5"])
async def test_version_that_is_no_number_is_discardable_damage(bench, version):
    await filled(bench)
    kept = bench.hand.read(P)
    kept.meta["version"] = version
    bench.hand.write(P, kept)
    acquired = await bench.store.acquire(P, "b", TOPIC, PARTITIONS)
    assert (acquired.verdict, acquired.before) == (Verdict.DAMAGED, kept.meta)
    assert bench.hand.read(P) == kept
    again = await bench.store.acquire(P, "b", TOPIC, PARTITIONS, acquired.before)
    assert (again.verdict, again.before) == (Verdict.OK, {})


HEADLESS = [
    Contents(changes=[b"state"]),
    Contents(pages={"page:d/0": b"state"}),
    Contents(outbox={"0/0": b"state"}),
]


@pytest.mark.parametrize("kept", HEADLESS, ids=["changes", "pages", "outbox"])
async def test_state_without_a_head_is_never_taken_for_nothing(bench, kept):
    bench.hand.write(P, kept)
    acquired = await bench.store.acquire(P, "a", TOPIC, PARTITIONS)
    assert (acquired.verdict, acquired.before) == (Verdict.DAMAGED, {})
    assert bench.hand.read(P) == kept


LEFT = {**COUNTED, "the head is gone": lambda kept: kept.meta.clear()}


@pytest.mark.parametrize("lose", LEFT.values(), ids=LEFT.keys())
async def test_discarded_state_fences_its_owner(bench, lose):
    _, writer = await filled(bench)
    bench.hand.stage(P, [b"staged"], {}, {})
    kept = bench.hand.read(P)
    lose(kept)
    bench.hand.write(P, kept)
    seen = (await bench.store.glance(P)).meta
    acquired = await bench.store.acquire(P, "b", TOPIC, PARTITIONS, seen)
    assert (acquired.verdict, acquired.before) == (Verdict.OK, {})
    nothing = {**fields_of_nothing(TOPIC, P, PARTITIONS), "owner": "b", "version": "1"}
    assert bench.hand.read(P) == Contents(nothing, alive=kept.alive, suspended=kept.suspended)
    assert bench.hand.staged(P) == 0
    assert await commit(writer, 4, 5) is Verdict.FENCED


MOVED_ON = {
    Verdict.FENCED: lambda meta: {**meta, "owner": "b"},
    Verdict.REWOUND: lambda meta: {**meta, "version": str(int(meta["version"]) - 1)},
}


@pytest.mark.parametrize("verdict", MOVED_ON)
async def test_state_that_moved_on_since_it_was_seen_is_not_discarded(bench, verdict):
    await filled(bench)
    kept = bench.hand.read(P)
    for seen, found in ((MOVED_ON[verdict](kept.meta), verdict), ({}, Verdict.FENCED)):
        acquired = await bench.store.acquire(P, "b", TOPIC, PARTITIONS, seen)
        assert (acquired.verdict, acquired.before) == (found, {})
    assert bench.hand.read(P) == kept
