"""An image of a partition: all that a store keeps of it, of one moment, in a compacted topic.

The topic ``checkpoints`` has, per partition of the log, records of two kinds. Compaction keeps the
last one of each key, so keys are places that are written again and again:

    part        key: the number of a place    bytes of a page, of changes, of an outbox, of a list
    manifest    key: ``manifest``             what the image is of, and where its list is

    manifest -> list -> pages, changes, outbox      each with its hash and the places of its parts

What always holds:

- Parts go to places that the last image does not use, and the manifest goes out when the broker has
  them all. So there is always a whole image, the last one, whatever has been written of the next.
- What has not changed since the last image stays where it is, and is only listed again.
- A place that no image needs any longer is emptied, by a record without a value: there are at most
  twice as many parts as an image has, and nothing stays that was forgotten.
- An image is read only whole: every part is there and has the hash that the list says, the list
  the one that the manifest says, and then it has to prove itself as what a store keeps does
  (``snapshot``). Else it is ``Damaged``, and nothing of it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias, TypeVar

import msgspec

from streams.schemas import encode
from streams.store.layout import LAYOUT, Damaged, Meta, chain_fields, page_hash
from streams.store.snapshot import Snapshot, verified
from streams.wire.chain import Chain

FORMAT = 1
"""Of manifest and list."""
MANIFEST = b"manifest"
PART_BYTES = 512 * 1024
"""The longest part; the topic takes records of twice that."""

Record: TypeAlias = tuple[bytes, bytes | None]
"""Key and value."""
Value = TypeVar("Value")
_HASH_BYTES = 16


class UnusableImage(Damaged):
    """The last image is not whole.

    Attributes:
        manifest: its head, if at least that could be read.
    """

    def __init__(self, why: str, manifest: Manifest | None) -> None:
        super().__init__(why)
        self.manifest = manifest


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that lie in parts."""

    hash: bytes  # of name and bytes, see ``layout.page_hash``
    places: Sequence[int]  # of its parts, in order


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """What an image consists of."""

    pages: dict[str, Block]  # as they are kept, by name
    changes: Block  # the packed list of entries
    outbox: Block  # the packed mapping of parcels

    @property
    def blocks(self) -> dict[str, Block]:
        """All of them, by the names under which they are hashed."""
        return {**self.pages, _CHANGES: self.changes, _OUTBOX: self.outbox}


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The head of an image."""

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
    changes: int  # entries
    pages: int
    outbox: int  # parcels
    digest: str  # of the pages
    listing: Block
    places: int  # no place from here on has ever been written

    @property
    def chain(self) -> Chain:
        """Of what was applied."""
        return Chain(bytes.fromhex(self.head), bytes.fromhex(self.before), self.last)

    @property
    def fields(self) -> dict[str, str]:
        """What meta says of the same state, apart from whose it is."""
        return {
            "layout": str(self.layout),
            "topic": self.topic,
            "partitions": str(self.partitions),
            "next": str(self.next),
            **chain_fields(self.chain),
            "leader_epoch": str(self.leader_epoch),
            "since": str(self.since),
            "changes": str(self.changes),
            "pages": str(self.pages),
            "digest": self.digest,
            "outbox": str(self.outbox),
        }


@dataclass(frozen=True)
class Image:
    """The last image of a partition: its list, and its contents if they were asked for."""

    manifest: Manifest
    listing: Listing
    written: frozenset[int]  # places that may hold something, those that it uses among them
    contents: Mapping[str, bytes]

    @property
    def pages(self) -> dict[str, bytes]:
        """The pages as a store keeps them."""
        return {name: self.contents[name] for name in self.listing.pages}

    @property
    def changes(self) -> list[bytes]:
        """The entries of changes."""
        return _decoded(self.contents[_CHANGES], list[bytes], "changes")

    @property
    def outbox(self) -> dict[str, bytes]:
        """The parcels that were not forgotten."""
        return _decoded(self.contents[_OUTBOX], dict[str, bytes], "the outbox")

    def snapshot(self) -> Snapshot:
        """The state that it holds.

        Raises:
            Damaged: it is not whole.
        """
        fields = self.manifest.fields | {"owner": "", "version": "0"}
        return verified(fields, self.pages, self.changes, self.outbox)


@dataclass(frozen=True)
class Moment:
    """What a store keeps of a partition besides its pages, of one moment."""

    meta: Meta
    changes: Sequence[bytes]
    outbox: Mapping[str, bytes]


class Draft:
    """An image that is being written: where its parts go, and what the topic has of them already.

    The steps of whoever writes it: ``keep`` what has not changed, send what ``add`` gives for the
    rest, send what ``finish`` gives, and then the records of ``emptied``.

    Attributes:
        image: what it has become, without its contents; to be looked at when all of it is out.
    """

    image: Image

    def __init__(self, last: Image | None) -> None:
        self._last = last
        self._used = _places(last.listing, last.manifest) if last else frozenset()
        self._written = set(last.written) if last else set()
        self._places: Iterator[int] = (n for n in count() if n not in self._used)
        self._pages: dict[str, Block] = {}

    def keep(self, hashes: Mapping[str, int]) -> list[str]:
        """Keep the pages that the last image has.

        Args:
            hashes: of all pages by name.

        Returns:
            The names of the others: each has to be added.
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
        """The parts of a page."""
        self._pages[name], records = self._cut(name, page)
        return records

    def finish(self, moment: Moment, partition: int) -> tuple[list[Record], Record]:
        """The rest of the parts, and the manifest, which goes out when the broker has all parts."""
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
        self.image = Image(manifest, listing, _places(listing, manifest), {})
        body = encode(manifest)
        return of_changes + of_outbox + of_listing, (MANIFEST, _body_hash(body) + body)

    def emptied(self) -> list[Record]:
        """What empties the places that the image, whose manifest is out, does not need."""
        return [(_key(place), None) for place in sorted(self._written - self.image.written)]

    def _cut(self, name: str, content: bytes) -> tuple[Block, list[Record]]:
        parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
        places = [next(self._places) for _ in parts]
        self._written.update(places)
        records: list[Record] = [
            (_key(place), part) for place, part in zip(places, parts, strict=True)
        ]
        return Block(_packed(page_hash(name, content)), places), records


class Search:
    """Looks for the last image in a topic whose records come in stretches, the last one first.

    So an image is found without reading what came before it, and no more of it is kept than it has.
    """

    def __init__(self, with_contents: bool) -> None:
        """Nothing is found yet.

        Args:
            with_contents: whether all of the image is wanted, or its list alone.
        """
        self._with_contents = with_contents
        self._found: dict[bytes, bytes | None] = {}
        self._wanted: frozenset[int] | None = None  # None: all, until the list is known
        self._later: set[int] = set()  # places that were written, as far as was read
        self._manifest: Manifest | None = None
        self._listing: Listing | None = None
        self.is_over = False

    def take(self, records: Iterable[Record]) -> None:
        """Take a stretch, in the order of its records; it lies before those that came earlier.

        Raises:
            UnusableImage: the last image cannot be read.
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

    def image(self) -> Image | None:
        """The last image, when the search is over or there is nothing before what was taken.

        Raises:
            UnusableImage: it is not whole.
        """
        with self._telling():
            return self._image()

    def _image(self) -> Image | None:
        if self._manifest is None:
            return None
        if self._listing is None:
            raise Damaged("parts of its list are missing")
        contents = {}
        if self._with_contents:
            contents = {
                name: self._content(name, block) for name, block in self._listing.blocks.items()
            }
        written = self._later.union(range(self._manifest.places))
        image = Image(self._manifest, self._listing, frozenset(written), contents)
        if self._with_contents:
            image.snapshot()
        return image

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Say of which image it is that something is damaged."""
        try:
            yield
        except Damaged as damaged:
            raise UnusableImage(str(damaged), self._manifest) from damaged

    def _list(self, manifest: Manifest) -> None:
        packed = self._content(_LISTING, manifest.listing)
        self._listing = _decoded(packed, Listing, "its list")
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
            raise Damaged(f"{parts.count(None)} of {len(parts)} parts of {name} are missing")
        if _packed(page_hash(name, content)) != block.hash:
            raise Damaged(f"{name} is not what was written: its hash is another")
        return content


def changed_since(image: Image | None, next_offset: int, topic: bytes, partitions: int) -> bool:
    """Whether a state of this log is worth an image by now.

    One that has not come further than the last image is none: Redis went back, and will be there
    again. Of another log, or of another P, every image is older.
    """
    if image is None:
        return next_offset > 0
    last = image.manifest
    is_of_log = (last.topic, last.partitions) == (topic.hex(), partitions)
    return next_offset > (last.next if is_of_log and last.layout == LAYOUT else 0)


def deletable(image: Image) -> int:
    """The offset before which the log need not be kept, because this image covers it.

    The last record that it covers is not below it: a claim compares that one with the log.
    """
    return max(0, image.manifest.chain.last)


_CHANGES, _OUTBOX, _LISTING = "*changes", "*outbox", "*list"
"""Names of blocks that no page has: theirs begin with a kind."""


def _places(listing: Listing, manifest: Manifest) -> frozenset[int]:
    blocks = (*listing.blocks.values(), manifest.listing)
    return frozenset(place for block in blocks for place in block.places)


def _key(place: int) -> bytes:
    return b"%d" % place


def _place(key: bytes) -> int | None:
    return int(key) if key.isdigit() else None


def _packed(hashed: int) -> bytes:
    return hashed.to_bytes(_HASH_BYTES, "big")


def _body_hash(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:_HASH_BYTES]


def _manifest(value: bytes | None) -> Manifest:
    packed = value or b""
    body = packed[_HASH_BYTES:]
    if _body_hash(body) != packed[:_HASH_BYTES]:
        raise Damaged("its manifest is not what was written: its hash is another")
    (found, *_) = _decoded(body, list[msgspec.Raw], "its manifest")
    if bytes(found) != encode(FORMAT):
        raise Damaged("its manifest has a format that a later release wrote: run that one")
    return _decoded(body, Manifest, "its manifest")


def _decoded(packed: bytes, kind: type[Value], what: str) -> Value:
    try:
        return msgspec.msgpack.decode(packed, type=kind)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{what} cannot be read: {error}") from error
