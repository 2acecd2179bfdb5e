"""What the owner of a partition writes through: every write is guarded by what it knows.

The owner knows its own token, the version after its own last write and the hash of every page. A
write that finds another owner, another version or other counts changes nothing and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from streams.store.snapshot import Snapshot, digest_of, pack_change, pack_page, page_hash
from streams.wire.chain import Chain

STATE = ("meta", "changes", "pages", "outbox")
"""What the state of a partition is kept in."""


class Verdict(StrEnum):
    """What became of a write, in the order of the checks."""

    OTHER_LAYOUT = "OTHER_LAYOUT"  # a claim: another release wrote what is there
    OTHER_LOG = "OTHER_LOG"  # a claim: it belongs to another topic of that name
    OTHER_PARTITIONS = "OTHER_PARTITIONS"  # a claim: the topic had another number of them
    FENCED = "FENCED"  # somebody else owns the partition
    REWOUND = "REWOUND"  # Redis is not where the owner left it
    DAMAGED = "DAMAGED"  # something that was written is gone
    DUPLICATE = "DUPLICATE"  # it was written before
    GAP = "GAP"  # something before it is missing
    OK = "OK"


class Store(Protocol):
    """What keeps the state."""

    async def run(
        self, name: str, partition: int, keys: Sequence[str], arguments: Sequence[Any]
    ) -> Any:
        """Run one of the scripts."""

    async def keep_stop(self, partition: int, reason: str, problem: str, remedy: str) -> None:
        """Say why nothing is decided in a partition."""

    async def owner(self, partition: int) -> str:
        """Who owns a partition."""


@dataclass(frozen=True)
class Backlog:
    """Entries of changes that no page covers yet."""

    entries: int
    bytes: int

    def __add__(self, other: Backlog) -> Backlog:
        return Backlog(self.entries + other.entries, self.bytes + other.bytes)

    def __sub__(self, other: Backlog) -> Backlog:
        return Backlog(self.entries - other.entries, self.bytes - other.bytes)


class Holding:
    """The writes of one claim. They follow one another: never two at once."""

    def __init__(self, store: Store, partition: int, owner: str, snapshot: Snapshot) -> None:
        self.partition = partition
        self.owner = owner
        self.version = snapshot.meta.version
        self.backlog = Backlog(snapshot.meta.changes, snapshot.changes_bytes)
        self._since = snapshot.meta.since
        self._hashes = snapshot.hashes
        self._digest = snapshot.meta.digest
        self._store = store

    async def commit(
        self,
        first: int,
        next_offset: int,
        chain: Chain,
        changes: bytes,
        parcels: Mapping[str, bytes],
        published: Iterable[str],
    ) -> Verdict:
        """Write a batch, offsets first to next_offset - 1, and forget published parcels."""
        entries = pack_change(first, next_offset, changes)
        outputs = [part for parcel in parcels.items() for part in parcel]
        verdict = await self._write(
            "commit",
            [
                *(first, next_offset, chain.head.hex(), chain.before.hex(), chain.last),
                *(len(entries), *entries),
                *(len(parcels), *outputs),
                *published,
            ],
        )
        if verdict is Verdict.OK:
            self.backlog += Backlog(len(entries), sum(map(len, entries)))
        return verdict

    async def compact(self, offset: int, pages: Mapping[str, bytes | None]) -> Verdict:
        """Write pages as of an offset, or delete those that are None."""
        values = {name: pack_page(offset, page) for name, page in pages.items() if page is not None}
        gone = [name for name, page in pages.items() if page is None and name in self._hashes]
        hashes = {name: page_hash(name, page) for name, page in values.items()}
        replaced = [self._hashes[name] for name in (*hashes, *gone) if name in self._hashes]
        digest = digest_of((self._digest, *hashes.values(), -sum(replaced)))
        pairs = [part for pair in values.items() for part in pair]
        verdict = await self._write(
            "compact", [hexadecimal(digest), 0, self._since, len(values), *pairs, *gone]
        )
        if verdict is Verdict.OK:
            self._digest = digest
            self._hashes |= hashes
            for name in gone:
                del self._hashes[name]
        return verdict

    async def drop(self, covered: Backlog, since: int) -> Verdict:
        """Drop the oldest entries of changes, which pages cover; the rest begins at ``since``."""
        arguments = [hexadecimal(self._digest), covered.entries, since, 0]
        verdict = await self._write("compact", arguments)
        if verdict is Verdict.OK:
            self.backlog -= covered
            self._since = since
        return verdict

    async def forget(self, published: Sequence[str]) -> Verdict:
        """Drop parcels that have been published."""
        return await self._write("forget", published)

    async def beat(self, pulse: bytes, summary: bytes) -> Verdict:
        """Show that the partition is decided; an empty summary has not changed."""
        arguments = [self.owner, pulse, summary]
        keys = ("meta", "alive", "stopped")
        return _verdict(await self._store.run("beat", self.partition, keys, arguments))

    async def keep_stop(self, reason: str, problem: str, remedy: str) -> None:
        """Say why nothing is decided, until an owner decides there again."""
        await self._store.keep_stop(self.partition, reason, problem, remedy)

    async def is_held(self) -> bool:
        """Whether nobody else has claimed the partition."""
        return await self._store.owner(self.partition) == self.owner

    async def _write(self, name: str, arguments: Sequence[Any]) -> Verdict:
        guarded = [self.owner, self.version, *arguments]
        verdict = _verdict(await self._store.run(name, self.partition, STATE, guarded))
        if verdict is Verdict.OK:
            self.version += 1
        return verdict


def hexadecimal(digest: int) -> str:
    """The digest of pages, as it is kept."""
    return f"{digest:032x}"


def _verdict(reply: bytes) -> Verdict:
    return Verdict(reply.decode())
