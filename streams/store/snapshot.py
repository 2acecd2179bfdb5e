"""A snapshot of a partition: its whole stored state as of one moment, in a compacted topic.

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
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias, TypeVar

import msgspec

from streams.records import encode
from streams.records.digests import HashChain
from streams.store.layout import (
    LAYOUT,
    SAVED_FIELDS,
    Damaged,
    Identity,
    Meta,
    page_hash,
    with_digest,
    with_meta_digest,
    without_digest,
)
from streams.store.stored_state import StoredState, verified

FORMAT = 1
"""The version of the format of manifest and listing."""
MANIFEST = b"manifest"
CHUNK_BYTES = 512 * 1024
"""The largest chunk; the topic accepts records of twice that size."""

Record: TypeAlias = tuple[bytes, bytes | None]
"""The key and value of a record of the topic."""
Value = TypeVar("Value")
Entry = TypeVar("Entry", bound=tuple[str | bytes, bytes | None])
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
    layout: int
    topic: str  # the id of norms, hexadecimal
    partition: int
    partitions: int  # P
    next: int
    head: str
    before: str
    last: int
    leader_epoch: int
    since: int
    changes: int  # number of entries
    pages: int
    outbox: int  # number of entries
    digest: str  # of the pages
    listing: Block
    places: int  # no slot from this number on has ever been written

    @property
    def identity(self) -> Identity:
        """The identity of the state."""
        return Identity(str(self.layout), self.topic, str(self.partitions))

    @property
    def chain(self) -> HashChain:
        """The hash chain of the applied records."""
        return HashChain(bytes.fromhex(self.head), bytes.fromhex(self.before), self.last)

    @property
    def fields(self) -> dict[str, str]:
        """The meta of the same state, without owner and version."""
        return with_meta_digest({name: str(getattr(self, name)) for name in SAVED_FIELDS})


@dataclass(frozen=True)
class Snapshot:
    """The last snapshot of a partition: its listing, and its contents if they were requested."""

    manifest: Manifest
    listing: Listing
    written: frozenset[int]  # slots that may hold chunks, including those of this snapshot
    contents: Mapping[str, bytes]

    @property
    def pages(self) -> dict[str, bytes]:
        """The pages as a store has them."""
        return {name: self.contents[name] for name in self.listing.pages}

    @property
    def changes(self) -> list[bytes]:
        """The entries of changes."""
        return _decoded(self.contents[_CHANGES], list[bytes], "changes")

    @property
    def outbox(self) -> dict[str, bytes]:
        """The outbox entries."""
        return _decoded(self.contents[_OUTBOX], dict[str, bytes], "the outbox")

    def state(self) -> StoredState:
        """Return the verified state.

        Raises:
            Damaged: the state is incomplete.
        """
        fields = self.manifest.fields | {"owner": "", "version": "0"}
        return verified(fields, self.pages, self.changes, self.outbox)


@dataclass(frozen=True)
class Moment:
    """The stored state of a partition without its pages, as of one moment."""

    meta: Meta
    changes: Sequence[bytes]
    outbox: Mapping[str, bytes]


class Draft:
    """A snapshot that is being written: the slots of its chunks, and what the topic already has of
    them.

    Steps of the writer: ``keep`` what has not changed, send what ``add`` returns for the other
    pages, send what ``finish`` returns, and then the records of ``emptied``.

    Attributes:
        snapshot: the finished snapshot, without its contents; set by ``finish``.
    """

    snapshot: Snapshot

    def __init__(self, last: Snapshot | None) -> None:
        self._last = last
        self._used = _places(last.listing, last.manifest) if last else frozenset()
        self._written = set(last.written) if last else set()
        self._places: Iterator[int] = (n for n in count() if n not in self._used)
        self._pages: dict[str, Block] = {}

    def keep(self, hashes: Mapping[str, int]) -> list[str]:
        """Keep the pages that the last snapshot has.

        Args:
            hashes: the hashes of all pages, by name.

        Returns:
            The names of the other pages: each has to be added.
        """
        known = self._last.listing.pages if self._last else {}
        behind = []
        for name, hashed in hashes.items():
            if name in known and known[name].hash == _packed(hashed):
                self._pages[name] = known[name]
            else:
                behind.append(name)
        return behind

    def add(self, name: str, page: bytes) -> list[Record]:
        """Return the records of a page's chunks."""
        self._pages[name], records = self._cut(name, page)
        return records

    def finish(self, moment: Moment, partition: int) -> tuple[list[Record], Record]:
        """Return the remaining chunks, and the manifest, to be sent when the broker has all
        chunks.
        """
        changes, of_changes = self._cut(_CHANGES, encode(list(moment.changes)))
        outbox, of_outbox = self._cut(_OUTBOX, encode(dict(moment.outbox)))
        listing = Listing(self._pages, changes, outbox)
        block, of_listing = self._cut(_LISTING, encode(listing))
        meta = moment.meta
        manifest = Manifest(
            format=FORMAT,
            layout=meta.layout,
            topic=meta.topic,
            partition=partition,
            partitions=meta.partitions,
            next=meta.next,
            head=meta.chain.head.hex(),
            before=meta.chain.before.hex(),
            last=meta.chain.last,
            leader_epoch=meta.leader_epoch,
            since=meta.since,
            changes=meta.changes,
            pages=meta.pages,
            outbox=meta.outbox,
            digest=f"{meta.digest:032x}",
            listing=block,
            places=1 + max(self._written, default=-1),
        )
        self.snapshot = Snapshot(manifest, listing, _places(listing, manifest), {})
        body = encode(manifest)
        return of_changes + of_outbox + of_listing, (MANIFEST, with_digest(body, _MANIFEST))

    def emptied(self) -> list[Record]:
        """Return records that empty the slots that this snapshot, whose manifest is sent, does not
        use.
        """
        return [(_key(place), None) for place in sorted(self._written - self.snapshot.written)]

    def _cut(self, name: str, content: bytes) -> tuple[Block, list[Record]]:
        parts = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
        places = [next(self._places) for _ in parts]
        self._written.update(places)
        records: list[Record] = [
            (_key(place), part) for place, part in zip(places, parts, strict=True)
        ]
        return Block(_packed(page_hash(name, content)), places), records


class Search:
    """Looks for the last snapshot in a topic that is read backwards in stretches.

    So a snapshot is found without reading what was written before it, and only its own chunks stay
    in memory.
    """

    def __init__(self, with_contents: bool) -> None:
        """Start a search.

        Args:
            with_contents: whether the contents are wanted, or the listing alone.
        """
        self._with_contents = with_contents
        self._found: dict[bytes, bytes | None] = {}
        self._wanted: frozenset[int] | None = None  # None: all slots, until the listing is known
        self._later: set[int] = set()  # written slots, as far as the topic was read
        self._manifest: Manifest | None = None
        self._listing: Listing | None = None
        self.is_over = False

    def take(self, records: Iterable[Record]) -> None:
        """Take a stretch, in the order of its records; it lies before the stretches taken so far.

        Raises:
            UnusableSnapshot: the last snapshot cannot be read.
        """
        with self._telling():
            self._take(records)

    def _take(self, records: Iterable[Record]) -> None:
        stretch: dict[bytes, bytes | None] = {}
        for key, value in records:
            if key not in self._found and (self._wanted is None or _place(key) in self._wanted):
                stretch[key] = value
        self._found |= stretch
        if self._manifest is None and MANIFEST in self._found:
            self._manifest = _manifest(self._found[MANIFEST])
        if self._manifest and self._listing is None and self._has(self._manifest.listing.places):
            self._list(self._manifest)
        if self._wanted is not None:
            self.is_over = self._has(self._wanted)

    def snapshot(self) -> Snapshot | None:
        """Return the last snapshot, when the search is over or the start of the topic was reached.

        Raises:
            UnusableSnapshot: it is incomplete.
        """
        with self._telling():
            return self._snapshot()

    def _snapshot(self) -> Snapshot | None:
        if self._manifest is None:
            return None
        if self._listing is None:
            raise Damaged("chunks of its listing are missing")
        contents = {}
        if self._with_contents:
            contents = {
                name: self._content(name, block) for name, block in self._listing.blocks.items()
            }
        written = self._later.union(range(self._manifest.places))
        snapshot = Snapshot(self._manifest, self._listing, frozenset(written), contents)
        if self._with_contents:
            snapshot.state()
        return snapshot

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Convert ``Damaged`` to ``UnusableSnapshot``, with the manifest."""
        try:
            yield
        except Damaged as damaged:
            is_foreign = isinstance(damaged, OtherFormat)
            raise UnusableSnapshot(str(damaged), self._manifest, is_foreign) from damaged

    def _list(self, manifest: Manifest) -> None:
        packed = self._content(_LISTING, manifest.listing)
        self._listing = _decoded(packed, Listing, "its listing")
        places: set[int] = set()
        if self._with_contents:
            places = {p for block in self._listing.blocks.values() for p in block.places}
        self._later = {place for key in self._found if (place := _place(key)) is not None}
        self._wanted = frozenset(places)
        self._found = {
            key: value for key, value in self._found.items() if _place(key) in self._wanted
        }

    def _has(self, places: Iterable[int]) -> bool:
        return all(_key(place) in self._found for place in places)

    def _content(self, name: str, block: Block) -> bytes:
        parts = [self._found.get(_key(place)) for place in block.places]
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
    last = snapshot.manifest
    is_of_log = (last.topic, last.partitions) == (topic.hex(), partitions)
    return next_offset > (last.next if is_of_log and last.layout == LAYOUT else 0)


def pieces(entries: Iterable[Entry], least: int) -> Iterator[list[Entry]]:
    """Split entries into pieces, each of which ends with the entry that makes it large enough.

    Args:
        entries: pairs of a name and bytes.
        least: the number of bytes of a piece.
    """
    piece: list[Entry] = []
    size = 0
    for entry in entries:
        piece.append(entry)
        size += len(entry[0]) + len(entry[1] or b"")
        if size >= least:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def deletable(snapshot: Snapshot) -> int:
    """Return the offset before which the log may be deleted, because the snapshot covers it.

    The last record that the snapshot covers is excluded: a new owner compares it with the log.
    """
    return max(0, snapshot.manifest.chain.last)


_CHANGES, _OUTBOX, _LISTING, _MANIFEST = "*changes", "*outbox", "*list", "its manifest"
"""The names of the other blocks. No page has such a name: theirs begin with a kind."""


def _places(listing: Listing, manifest: Manifest) -> frozenset[int]:
    blocks = (*listing.blocks.values(), manifest.listing)
    return frozenset(place for block in blocks for place in block.places)


def _key(place: int) -> bytes:
    return b"%d" % place


def _place(key: bytes) -> int | None:
    return int(key) if key.isdigit() else None


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
