"""What is read for a snapshot is of one moment, and a snapshot is put back wholly or not at all."""

import pytest

from streams.store.layout import with_meta_digest
from streams.store.store_port import Installation, Stage, Verdict
from tests.conformance.store.bench import CHAIN, PARTITIONS, TOPIC, P, commit, guard_of
from tests.unit.store.snapshots import Kept, found, written

SNAPSHOT = found(written(Kept(pages={"page:d/0": b"p", "run:d/r": b"r"})))


def installation(**differing) -> Installation:
    manifest = SNAPSHOT.manifest
    fields = with_meta_digest(
        {**manifest.fields, "topic": TOPIC.hex(), "partitions": str(PARTITIONS)}
    )
    counts = {
        "pages": manifest.pages,
        "changes": manifest.changes,
        "outbox_entries": manifest.outbox,
    }
    return Installation(fields, **{**counts, **differing})


async def stage_all(bench, guard):
    pages = list(SNAPSHOT.pages.items())
    for number, stage in enumerate(
        [
            Stage(dict(pages[:1]), SNAPSHOT.changes[:1], {}, is_first=True),
            Stage(dict(pages[1:]), SNAPSHOT.changes[1:], SNAPSHOT.outbox, is_first=False),
        ]
    ):
        assert await bench.store.stage(guard, stage) is Verdict.OK, number


def test_a_moment_is_what_is_kept_besides_pages(run):
    async def scenario(bench):
        writer = await bench.owner("a").acquire()
        await commit(writer, 0, 3, b"one", (b"answers",))
        await writer.merge(3, {"page:d/0": b"p", "run:d/r": b"r"})
        moment = await writer.moment()
        kept = bench.hand.read(P)
        assert (list(moment.changes), moment.outbox) == (kept.changes, kept.outbox)
        assert (moment.meta.next, moment.meta.chain, moment.meta.pages) == (3, CHAIN, 2)
        assert await writer.pages(writer.hashes) == kept.pages
        wrong = {**writer.hashes, "run:d/r": 7}
        assert await writer.pages(wrong) is None
        assert await writer.pages({"page:d/1": 7}) is None

    run(scenario)


SPOILED = {
    Verdict.FENCED: lambda kept: kept.meta.update(owner="b"),
    Verdict.REWOUND: lambda kept: kept.meta.update(version="1"),
    Verdict.DAMAGED: lambda kept: kept.outbox.clear(),
}


@pytest.mark.parametrize("verdict", SPOILED)
def test_who_is_not_where_the_store_is_reads_no_moment_and_puts_nothing_back(run, verdict):
    async def scenario(bench):
        writer = await bench.owner("a").acquire()
        await commit(writer, 0, 5)
        guard = guard_of(writer)
        await stage_all(bench, guard)
        kept = bench.hand.read(P)
        SPOILED[verdict](kept)
        bench.hand.write(P, kept)
        assert await writer.moment() is verdict
        assert await bench.store.stage(guard, Stage({}, [], {}, is_first=True)) is verdict
        assert await bench.store.install(guard, installation()) is verdict
        assert bench.hand.read(P).meta == kept.meta

    run(scenario)


def test_what_is_staged_is_nothing_until_it_is_installed(run):
    async def scenario(bench):
        owner = bench.owner("a")
        writer = await owner.acquire()
        await commit(writer, 0, 5, b"before")
        before = await owner.load()
        guard = guard_of(writer)
        await stage_all(bench, guard)
        assert await owner.load() == before
        assert await bench.store.install(guard, installation()) is Verdict.OK
        kept = await owner.load()
        assert (kept.meta.owner, kept.meta.version) == ("a", guard.version + 1)
        assert (kept.pages, kept.next) == ({"page:d/0": b"p", "run:d/r": b"r"}, 10)
        assert kept.meta.chain == SNAPSHOT.manifest.chain
        assert (kept.changes, kept.outbox) == (
            [b"changed by 8", b"changed by 9"],
            [("9/0", b"an answer")],
        )
        writer = await bench.owner("b").acquire()
        assert await commit(writer, 10, 11) is Verdict.OK

    run(scenario)


@pytest.mark.parametrize("what", ["pages", "changes", "outbox_entries"])
def test_what_is_not_all_there_is_not_installed(run, what):
    async def scenario(bench):
        owner = bench.owner("a")
        writer = await owner.acquire()
        await commit(writer, 0, 5, b"before")
        before = await owner.load()
        await stage_all(bench, guard_of(writer))
        more = getattr(installation(), what) + 1
        refused = await bench.store.install(guard_of(writer), installation(**{what: more}))
        assert refused is Verdict.DAMAGED
        assert await owner.load() == before

    run(scenario)


def test_who_stages_first_drops_what_another_left_there(run):
    async def scenario(bench):
        owner = bench.owner("a")
        writer = await owner.acquire()
        leftover = Stage({"page:d/9": b"x"}, [b"x"], {"1/1": b"x"}, is_first=True)
        assert await bench.store.stage(guard_of(writer), leftover) is Verdict.OK
        writer = await bench.owner("b").acquire()
        await stage_all(bench, guard_of(writer))
        assert await bench.store.install(guard_of(writer), installation()) is Verdict.OK
        assert "page:d/9" not in (await owner.load()).pages

    run(scenario)
