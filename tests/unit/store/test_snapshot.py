"""A snapshot is read whole and as it was written, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.store import snapshot
from streams.store.layout import Damaged
from streams.store.snapshot import (
    MANIFEST,
    Record,
    Snapshot,
    UnusableSnapshot,
    changed_since,
    deletable,
)
from streams.store.store_port import Unpaged
from tests.unit.store.snapshots import PARTITIONS, TOPIC, Kept, compacted, drawn, found, written


def whole(records: list[Record], **how: int) -> Snapshot:
    read = found(records, **how)
    assert read is not None
    return read


def is_of(read: Snapshot, kept: Kept) -> bool:
    return (
        read.manifest.saved.items() <= kept.unpaged.fields.items()
        and read.pages == kept.packed
        and read.changes == list(kept.unpaged.changes)
        and read.outbox == dict(kept.unpaged.outbox)
    )


KEPT = {
    "pages, changes and an outbox": Kept(),
    "nothing but an offset": Kept(next=8, pages={}, outbox={}),
    "a page that is empty": Kept(pages={"run:d/r": b""}),
    "many pages": Kept(pages={f"page:d/{n}": b"%d" % n * n for n in range(50)}),
}


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT.keys())
@pytest.mark.parametrize("stretch", [1, 2, 1000])
def test_what_is_read_is_what_was_kept(kept: Kept, stretch: int) -> None:
    with patch.object(snapshot, "CHUNK_BYTES", 50):
        assert is_of(whole(written(kept), stretch=stretch), kept)


def test_a_topic_without_a_manifest_has_no_snapshot() -> None:
    assert found([]) is None
    assert found(drawn(Kept())[0]) is None


def test_a_page_that_has_not_changed_is_not_sent_again() -> None:
    first = Kept(pages={f"page:d/{n}": b"%d" % n * 99 for n in range(20)})
    second = replace(first, pages={**first.pages, "page:d/7": b"moved"}, next=12)
    records = written(first)
    parts, _, _ = drawn(second, whole(records))
    assert sum(value is not None and b"moved" in value for _, value in parts) == 1
    assert len(parts) == 1 + 3  # with changes, outbox and list
    assert is_of(whole(records + written(second, whole(records))), second)


PAGES = st.dictionaries(
    st.sampled_from(["page:d/0", "page:d/1", "run:d/r", "policy:d"]), st.binary(max_size=90)
)


@given(st.lists(st.tuples(PAGES, st.integers(0, 30), st.booleans()), min_size=1, max_size=6))
def test_last_whole_snapshot_survives_writes_and_cleaning(
    steps: list[tuple[dict[str, bytes], int, bool]],
) -> None:
    """Each snapshot is written up to some record, and compaction may follow any record."""
    records: list[Record] = []
    last: Kept | None = None
    with patch.object(snapshot, "CHUNK_BYTES", 20):
        for number, (pages, cut, cleans) in enumerate(steps):
            kept = Kept(next=10 + number, pages=pages, outbox={"9/0": b"answer %d" % number})
            before = found(records)
            sent = written(kept, before)
            sent = sent[: len(sent) - cut] if cut < len(sent) else []
            records += sent
            if MANIFEST in [key for key, _ in sent]:
                last = kept
            if cleans:
                records = compacted(records)
            after = found(records)
            assert after is None if last is None else after and is_of(after, last)


@given(st.lists(PAGES, min_size=1, max_size=8))
def test_chunks_are_at_most_twice_those_of_a_snapshot(
    pages: list[dict[str, bytes]],
) -> None:
    records: list[Record] = []
    most = 0
    with patch.object(snapshot, "CHUNK_BYTES", 20):
        for number, kept in enumerate(pages):
            last = found(records)
            records = compacted(records + written(Kept(next=10 + number, pages=kept), last))
            most = max(most, len(records) - 1)
            assert max(int(key) for key, _ in records if key != MANIFEST) < 2 * most


def test_chunks_that_a_snapshot_does_not_need_are_emptied() -> None:
    first = Kept(pages={f"page:d/{n}": b"secret" for n in range(9)})
    records = written(first)
    unfinished, _, _ = drawn(replace(first, pages={"page:d/0": b"secret, too"}), whole(records))
    records += unfinished
    last = whole(records, with_contents=False)
    records = compacted(records + written(Kept(next=20, pages={}), last))
    assert not any(b"secret" in (value or b"") for _, value in records)


def spoil(records: list[Record], at: int, value: bytes | None) -> list[Record]:
    return [*records[:at], (records[at][0], value), *records[at + 1 :]]


SPOILED: dict[str, Callable[[list[Record]], list[Record]]] = {
    "a page is missing": lambda records: records[1:],
    "a page is empty": lambda records: spoil(records, 0, None),
    "a page is another": lambda records: spoil(records, 0, b"another"),
    "the changes are missing": lambda records: [*records[:1], *records[2:]],
    "the outbox is another": lambda records: spoil(records, 2, b"\x80"),
    "the list is missing": lambda records: [*records[:-2], records[-1]],
    "the list is another": lambda records: spoil(records, -2 + len(records), b"another"),
    "the manifest is cut": lambda records: spoil(
        records, len(records) - 1, (records[-1][1] or b"")[:-1]
    ),
    "the manifest is empty": lambda records: spoil(records, len(records) - 1, None),
}


@pytest.mark.parametrize("spoils", SPOILED.values(), ids=SPOILED.keys())
def test_a_snapshot_with_a_missing_or_changed_piece_is_unusable(
    spoils: Callable[[list[Record]], list[Record]],
) -> None:
    with pytest.raises(UnusableSnapshot):
        found(spoils(written(Kept())))


def test_snapshot_with_a_gap_in_its_deltas_is_damaged() -> None:
    class Gapped(Kept):
        @property
        def unpaged(self) -> Unpaged:
            unpaged = super().unpaged
            return unpaged._replace(changes=[unpaged.changes[0], unpaged.changes[0]])

    with pytest.raises(Damaged):
        found(written(Gapped()))


CHANGED = [
    # the state's next, topic, P; the last snapshot is at 10
    (10, TOPIC, PARTITIONS, False),
    (9, TOPIC, PARTITIONS, False),
    (11, TOPIC, PARTITIONS, True),
    (1, b"another topic!!!", PARTITIONS, True),
    (1, TOPIC, PARTITIONS + 1, True),
    (0, b"another topic!!!", PARTITIONS, False),
]


@pytest.mark.parametrize(("next_offset", "topic", "partitions", "changed"), CHANGED)
def test_an_older_state_of_the_same_log_is_never_worth_a_snapshot(
    next_offset: int, topic: bytes, partitions: int, changed: bool
) -> None:
    assert changed_since(whole(written(Kept())), next_offset, topic, partitions) is changed
    assert changed_since(None, next_offset, topic, partitions) is (next_offset > 0)


def test_the_last_record_that_a_snapshot_covers_is_not_deletable() -> None:
    assert deletable(whole(written(Kept(next=10)))) == 9
    assert deletable(whole(written(Kept(next=0, since=0, outbox={})))) == 0
