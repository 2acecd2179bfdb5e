"""A snapshot of a partition: its whole stored state as of one time, in a compacted topic.

Per partition of the log, the topic ``snapshots`` has records of two kinds. Compaction keeps the
last record of each key, so a key is a slot that is written again and again:

    chunk       key: the number of a slot   bytes of a page, the deltas, the outbox or the listing
    manifest    key: ``manifest``           the log of the snapshot, and the slots of its listing

    manifest -> listing -> pages, deltas, outbox      each with its hash and the slots of its chunks

Invariants:

- Chunks go to slots that the last snapshot does not use, and the manifest is sent when the broker
  has all of them. So there is always one complete snapshot, however much of the next is written.
- What has not changed since the last snapshot stays in its slots and is only listed again.
- A slot that no snapshot needs is emptied by a record without a value. So there are at most twice
  as many chunks as a snapshot has, and nothing stays that was erased.
- A snapshot is read as a whole only. Every chunk is there and has the hash in the listing, and the
  listing has the hash in the manifest. Then the state is verified like that in a store
  (``stored_state``). Otherwise it is ``Damaged``, and nothing of it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias, TypeVar

import msgspec

from streams.records import encode
from streams.store.layout import (
    LAYOUT,
    SAVED_FIELDS,
    Damaged,
    Identity,
    Meta,
    page_hash,
    with_digest,
    without_digest,
)
from streams.store.store_port import Unpaged
from streams.store.stored_state import StoredState, verified

FORMAT = 2
"""The version of the format of manifest and listing."""
MANIFEST = b"manifest"
CHUNK_BYTES = 512 * 1024
"""The largest chunk; the topic accepts records of twice that size."""

Record: TypeAlias = tuple[bytes, bytes | None]
"""The key and value of a record of the topic."""
Value = TypeVar("Value")
_HASH_BYTES = 16


class UnusableSnapshot(Damaged):
    """The last snapshot is incomplete.

    Attributes:
        manifest: the manifest, if at least that could be read.
        is_foreign: whether another release wrote it, in a format that this one cannot read.
    """

    def __init__(self, why: str, manifest: Manifest | None, is_foreign: bool) -> None:
        super().__init__(why)
        self.manifest = manifest
        self.is_foreign = is_foreign


class OtherFormat(Damaged):
    """Another release wrote the manifest."""


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that are stored in chunks."""

    hash: bytes  # of name and bytes, see ``layout.page_hash``
    places: Sequence[int]  # the slots of the chunks, in order


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a snapshot and their slots."""

    pages: dict[str, Block]  # by name, as they are stored
    changes: Block  # the packed list of deltas
    outbox: Block  # the packed mapping of outbox entries

    @property
    def blocks(self) -> dict[str, Block]:
        """All blocks, by the names under which they are hashed."""
        return {**self.pages, _CHANGES: self.changes, _OUTBOX: self.outbox}


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The head of a snapshot."""

    format: int
    saved: dict[str, str]  # the fields of meta, without owner and version
    listing: Block
    places: int  # no slot from this number on has ever been written

    @property
    def fields(self) -> dict[str, str]:
        """The meta of the state, without an owner."""
        return {**self.saved, "owner": "", "version": "0"}

    @property
    def identity(self) -> Identity:
        """The identity of the state, which may be of another layout."""
        return Identity.of(self.fields)

    @property
    def meta(self) -> Meta:
        """The meta of the state; raises ``Damaged`` if it is of another layout."""
        return Meta.of(self.fields)


@dataclass(frozen=True)
class Snapshot:
    """The last snapshot of a partition: its listing, and its contents if they were requested."""

    manifest: Manifest
    listing: Listing
    written: frozenset[int]  # slots that may hold chunks, including those of this snapshot
    pages: Mapping[str, bytes] = field(default_factory=dict)  # as a store has them
    changes: Sequence[bytes] = ()
    outbox: Mapping[str, bytes] = field(default_factory=dict)

    def state(self) -> StoredState:
        """Return the verified state, or raise ``Damaged``."""
        return verified(self.manifest.fields, self.pages, self.changes, self.outbox)


class SnapshotBuilder:
    """A snapshot that is being written: the slots of its chunks, and what the topic already has of
    them.

    Steps of the writer: ``keep`` what has not changed, send what ``add`` returns for the other
    pages, send what ``finish`` returns, and then the records of ``emptied``.
    """

    def __init__(self, last: Snapshot | None) -> None:
        self._last = last
        self._used = _places(last.listing, last.manifest) if last else frozenset()
        self._written = set(last.written) if last else set()
        self._places: Iterator[int] = (n for n in count() if n not in self._used)
        self._pages: dict[str, Block] = {}

    def keep(self, hashes: Mapping[str, int]) -> list[str]:
        """Keep the pages that the last snapshot has; return the names of those to be added."""
        known = self._last.listing.pages if self._last else {}
        self._pages = {
            name: known[name]
            for name, hashed in hashes.items()
            if name in known and known[name].hash == _packed(hashed)
        }
        return [name for name in hashes if name not in self._pages]

    def add(self, name: str, page: bytes) -> list[Record]:
        """Return the records of a page's chunks."""
        self._pages[name], records = self._cut(name, page)
        return records

    def finish(self, unpaged: Unpaged) -> tuple[list[Record], Record, Snapshot]:
        """Return the remaining chunks, the manifest, to be sent when the broker has all chunks, and
        the snapshot without its contents.
        """
        changes, of_changes = self._cut(_CHANGES, encode(list(unpaged.changes)))
        outbox, of_outbox = self._cut(_OUTBOX, encode(dict(unpaged.outbox)))
        listing = Listing(self._pages, changes, outbox)
        block, of_listing = self._cut(_LISTING, encode(listing))
        fields = {name: unpaged.fields[name] for name in SAVED_FIELDS}
        manifest = Manifest(FORMAT, fields, block, 1 + max(self._written, default=-1))
        record = MANIFEST, with_digest(encode(manifest), _MANIFEST)
        snapshot = Snapshot(manifest, listing, _places(listing, manifest))
        return of_changes + of_outbox + of_listing, record, snapshot

    def emptied(self, snapshot: Snapshot) -> list[Record]:
        """Return records that empty the slots that a snapshot, whose manifest is sent, does not
        use.
        """
        return [(_key(place), None) for place in sorted(self._written - snapshot.written)]

    def _cut(self, name: str, content: bytes) -> tuple[Block, list[Record]]:
        parts = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
        places = [next(self._places) for _ in parts]
        self._written.update(places)
        records: list[Record] = [
            (_key(place), part) for place, part in zip(places, parts, strict=True)
        ]
        return Block(_packed(page_hash(name, content)), places), records


def find_last(stretches: Iterable[Iterable[Record]], with_contents: bool) -> Snapshot | None:
    """Return the last snapshot in a topic that is read backwards; None if there is none.

    So a snapshot is found without reading what was written before it, and only its own chunks stay
    in memory.

    Args:
        stretches: parts of the topic, the last one first, each in the order of its records. No
            more of them are read than needed.
        with_contents: whether the contents are wanted, or the listing alone.

    Raises:
        UnusableSnapshot: it is incomplete.
    """
    manifest, search = None, _Search(stretches)
    try:
        if not search.reaches([MANIFEST]):
            return None
        manifest = _manifest(search.found[MANIFEST])
        listing = _decoded(search.content(_LISTING, manifest.listing), Listing, "its listing")
        later = (int(key) for key in search.found if key.isdigit())
        written = frozenset(range(manifest.places)).union(later)
        if not with_contents:
            return Snapshot(manifest, listing, written)
        blocks = listing.blocks
        search.forget_all_but(_key(place) for block in blocks.values() for place in block.places)
        contents = {name: search.content(name, block) for name, block in blocks.items()}
        changes = _decoded(contents.pop(_CHANGES), list[bytes], "changes")
        outbox = _decoded(contents.pop(_OUTBOX), dict[str, bytes], "the outbox")
        snapshot = Snapshot(manifest, listing, written, contents, changes, outbox)
        snapshot.state()
    except Damaged as damaged:
        is_foreign = isinstance(damaged, OtherFormat)
        raise UnusableSnapshot(str(damaged), manifest, is_foreign) from damaged
    return snapshot


class _Search:
    """The last value of each key of a topic, as far as it was read backwards."""

    def __init__(self, stretches: Iterable[Iterable[Record]]) -> None:
        self.found: dict[bytes, bytes | None] = {}
        self._stretches = iter(stretches)
        self._wanted: frozenset[bytes] | None = None  # None: all keys

    def reaches(self, keys: Iterable[bytes]) -> bool:
        """Read on until all of these keys are found; return whether they are."""
        missing = set(keys) - self.found.keys()
        while missing and (stretch := next(self._stretches, None)) is not None:
            # Within a stretch the later record counts, and those of earlier stretches follow it.
            earlier = {k: v for k, v in stretch if self._wanted is None or k in self._wanted}
            self.found = earlier | self.found
            missing -= earlier.keys()
        return not missing

    def forget_all_but(self, keys: Iterable[bytes]) -> None:
        """Hold no other keys from now on."""
        self._wanted = frozenset(keys)
        self.found = {key: value for key, value in self.found.items() if key in self._wanted}

    def content(self, name: str, block: Block) -> bytes:
        """Return the content of a block, reading on as far as needed, or raise ``Damaged``."""
        keys = [_key(place) for place in block.places]
        self.reaches(keys)
        parts = [self.found.get(key) for key in keys]
        content = b"".join(part for part in parts if part is not None)
        if None in parts:
            raise Damaged(f"{parts.count(None)} of {len(parts)} chunks of {name} are missing")
        if _packed(page_hash(name, content)) != block.hash:
            raise Damaged(f"{name} is not what was written: its hash differs")
        return content


def changed_since(
    snapshot: Snapshot | None, next_offset: int, topic: bytes, partitions: int
) -> bool:
    """Return whether a state of this log should be written as a snapshot.

    A state that is not ahead of the last snapshot is not written: Redis was rolled back, and will
    get there again. A snapshot of another log, or with another P, counts as older.
    """
    if snapshot is None:
        return next_offset > 0
    manifest = snapshot.manifest
    is_of_log = manifest.identity == Identity(str(LAYOUT), topic.hex(), str(partitions))
    return next_offset > (manifest.meta.next if is_of_log else 0)


def deletable(snapshot: Snapshot) -> int:
    """Return the offset before which the log may be deleted, because the snapshot covers it.

    The last record that the snapshot covers is excluded: a new owner compares it with the log.
    """
    return max(0, snapshot.manifest.meta.last)


_CHANGES, _OUTBOX, _LISTING, _MANIFEST = "*changes", "*outbox", "*list", "its manifest"
"""The names of the other blocks. No page has such a name: theirs begin with a kind."""


def _places(listing: Listing, manifest: Manifest) -> frozenset[int]:
    blocks = (*listing.blocks.values(), manifest.listing)
    return frozenset(place for block in blocks for place in block.places)


def _key(place: int) -> bytes:
    return b"%d" % place


def _packed(hashed: int) -> bytes:
    return hashed.to_bytes(_HASH_BYTES, "big")


def _manifest(value: bytes | None) -> Manifest:
    body = without_digest(value or b"", _MANIFEST)
    (found, *_) = _decoded(body, list[msgspec.Raw], "its manifest")
    if bytes(found) != encode(FORMAT):
        raise OtherFormat("another release wrote its manifest: run that release")
    return _decoded(body, Manifest, "its manifest")


def _decoded(packed: bytes, kind: type[Value], what: str) -> Value:
    try:
        return msgspec.msgpack.decode(packed, type=kind)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{what} cannot be read: {error}") from error
