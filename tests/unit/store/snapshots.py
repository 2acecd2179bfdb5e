"""Snapshots for tests: an invented stored state, and a topic with a snapshot of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from streams.records.digests import genesis
from streams.store.layout import (
    chain_fields,
    fields_of_nothing,
    pack_change,
    pack_page,
    page_hash,
    with_digest,
)
from streams.store.snapshot import Record, Snapshot, SnapshotBuilder, find_last
from streams.store.store_port import Unpaged
from tests.doubles.memory_store import Contents

TOPIC = b"topic of 16 byte"
P, PARTITIONS = 1, 2


@dataclass
class Kept:
    """What a store keeps of a partition that has applied its first records."""

    next: int = 10
    pages: Mapping[str, bytes] = field(default_factory=lambda: {"page:d/0": b"zero" * 99})
    since: int = 8
    outbox: Mapping[str, bytes] = field(default_factory=lambda: {"9/0": b"an answer"})
    topic: bytes = TOPIC
    partitions: int = PARTITIONS

    @property
    def packed(self) -> dict[str, bytes]:
        return {name: pack_page(self.since, page) for name, page in self.pages.items()}

    @property
    def hashes(self) -> dict[str, int]:
        return {name: page_hash(name, page) for name, page in self.packed.items()}

    @property
    def unpaged(self) -> Unpaged:
        changes = [
            entry
            for offset in range(self.since, self.next)
            for entry in pack_change(offset, offset + 1, b"changed by %d" % offset)
        ]
        chain = genesis(self.topic, P, self.partitions)
        for offset in range(self.next):
            chain = chain.after(offset, b"record %d" % offset)
        outbox = {name: with_digest(packed, name) for name, packed in self.outbox.items()}
        nothing = fields_of_nothing(self.topic, P, self.partitions)
        kept = Contents(nothing, changes, self.packed, outbox)
        kept.seal(**chain_fields(chain), next=str(self.next), since=str(self.since))
        return Unpaged(kept.meta, changes, outbox)


def drawn(kept: Kept, last: Snapshot | None = None) -> tuple[list[Record], Record, list[Record]]:
    """The parts of a snapshot of what is kept, its manifest, and what empties other slots."""
    builder, parts = SnapshotBuilder(last), []
    for name in builder.keep(kept.hashes):
        parts += builder.add(name, kept.packed[name])
    rest, manifest, snapshot = builder.finish(kept.unpaged)
    return [*parts, *rest], manifest, builder.emptied(snapshot)


def written(kept: Kept, last: Snapshot | None = None) -> list[Record]:
    """All records of a snapshot, in order."""
    parts, manifest, emptied = drawn(kept, last)
    return [*parts, manifest, *emptied]


def found(
    records: Sequence[Record], stretch: int = 3, with_contents: bool = True
) -> Snapshot | None:
    """The last snapshot in a topic with these records."""
    ends = range(len(records), 0, -stretch)
    return find_last((records[max(0, end - stretch) : end] for end in ends), with_contents)


def compacted(records: Iterable[Record]) -> list[Record]:
    """What compaction leaves of these records."""
    kept: dict[bytes, bytes | None] = {}
    for key, value in records:
        kept.pop(key, None)
        if value is not None:
            kept[key] = value
    return list(kept.items())
