"""The writes of a partition's owner. Each is guarded by what the owner knows.

The owner knows its own token, the version and the meta after its last write and the hash of every
page. A write that finds another owner, another version or other counts is rejected and changes
nothing. It stores the digest of meta as the owner knows meta, so a bit of meta that was flipped
meanwhile is found when the state is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streams.records.digests import HashChain
from streams.store.layout import (
    Damaged,
    Meta,
    chain_fields,
    digest_of,
    hexadecimal,
    pack_change,
    pack_page,
    page_hash,
    with_digest,
    with_meta_digest,
)
from streams.store.store_port import Guard, Store, Unpaged, Verdict
from streams.store.stored_state import StoredState, check_counts, joined, opened


@dataclass(frozen=True)
class Backlog:
    """The deltas that no page covers yet."""

    entries: int
    bytes: int

    def __add__(self, other: Backlog) -> Backlog:
        return Backlog(self.entries + other.entries, self.bytes + other.bytes)

    def __sub__(self, other: Backlog) -> Backlog:
        return Backlog(self.entries - other.entries, self.bytes - other.bytes)


class PartitionWriter:
    """Writes the state of one partition while its ownership lasts; never two writes at once."""

    def __init__(self, store: Store, partition: int, owner: str, stored: StoredState) -> None:
        self.partition = partition
        self.owner = owner
        self.version = stored.meta.version
        self.backlog = Backlog(stored.meta.changes, stored.changes_bytes)
        self._fields = stored.fields  # of meta, after the last write
        self._hashes = stored.hashes
        self._digest = int(stored.meta.digest, 16)
        self._store = store

    async def commit(
        self,
        first: int,
        next_offset: int,
        chain: HashChain,
        leader_epoch: int,
        changes: bytes,
        outbox_entries: Mapping[str, bytes],
        published: Sequence[str],
    ) -> Verdict:
        """Write a batch, offsets first to next_offset - 1, and delete published outbox entries."""
        entries = pack_change(first, next_offset, changes)
        reached = {"next": str(next_offset), "leader_epoch": str(leader_epoch)}
        verdict = await self._write(
            {**reached, **chain_fields(chain)},
            first=first,
            changes=entries,
            outbox={name: with_digest(packed, name) for name, packed in outbox_entries.items()},
            published=published,
        )
        if verdict is Verdict.OK:
            self.backlog += Backlog(len(entries), sum(map(len, entries)))
        return verdict

    async def merge(self, offset: int, pages: Mapping[str, bytes | None]) -> Verdict:
        """Write pages as of an offset, and delete those that are None."""
        written = {
            name: pack_page(offset, page) for name, page in pages.items() if page is not None
        }
        deleted = [name for name, page in pages.items() if page is None and name in self._hashes]
        hashes = {name: page_hash(name, page) for name, page in written.items()}
        replaced = [self._hashes[name] for name in (*hashes, *deleted) if name in self._hashes]
        digest = digest_of((self._digest, *hashes.values(), -sum(replaced)))
        changed = {"digest": hexadecimal(digest)}
        verdict = await self._write(changed, pages=written, deleted=deleted)
        if verdict is Verdict.OK:
            self._digest = digest
            self._hashes |= hashes
            for name in deleted:
                del self._hashes[name]
        return verdict

    async def drop(self, covered: Backlog, since: int) -> Verdict:
        """Drop the oldest deltas, which pages cover; the others begin at ``since``."""
        verdict = await self._write({"since": str(since)}, dropped=covered.entries)
        if verdict is Verdict.OK:
            self.backlog -= covered
        return verdict

    async def forget(self, published: Sequence[str]) -> Verdict:
        """Delete outbox entries that have been published."""
        return await self._write({}, published=published)

    @property
    def hashes(self) -> dict[str, int]:
        """The present hashes of all pages, by name."""
        return dict(self._hashes)

    async def unpaged(self) -> Unpaged | Verdict:
        """Return the state without its pages, or why it is not what the owner left."""
        found = await self._store.unpaged(self.partition)
        if found.fields.get("owner") != self.owner:
            return Verdict.FENCED
        if found.fields.get("version") != str(self.version):
            return Verdict.REWOUND
        try:  # it replaces the last snapshot, so it must be whole
            meta = Meta.of(found.fields)
            check_counts(meta, self._hashes, found.changes, found.outbox)
            joined(meta, found.changes)
            opened(found.outbox)
        except Damaged:
            return Verdict.DAMAGED
        return found

    async def pages(self, hashes: Mapping[str, int]) -> dict[str, bytes] | None:
        """Return the pages with these hashes; None if one is missing or has another hash."""
        found = await self._store.read_pages(self.partition, list(hashes))
        is_right = all(
            name in found and page_hash(name, found[name]) == hashed
            for name, hashed in hashes.items()
        )
        return found if is_right else None

    async def beat(self, pulse: bytes, summary: bytes) -> Verdict:
        """Report that the partition is decided; an empty summary means that it is unchanged."""
        return await self._store.beat(self._guard, pulse, summary)

    async def is_held(self) -> bool:
        """Return whether this worker still owns the partition."""
        glance = await self._store.glance(self.partition)
        return glance.meta.get("owner") == self.owner

    @property
    def _guard(self) -> Guard:
        return Guard(self.partition, self.owner, self.version)

    async def _write(self, changed: Mapping[str, str], **entries: Any) -> Verdict:
        """Make a write of state that changes these fields of meta; count the version."""
        fields = with_meta_digest({**self._fields, **changed})
        written = {**changed, "meta_digest": fields["meta_digest"]}
        verdict = await self._store.write(self._guard, written, **entries)
        if verdict is Verdict.OK:
            self.version += 1
            self._fields = fields
        return verdict
