"""What a store keeps of a partition, and whether all of it is there.

State = pages, then changes in order. Values are absolute, so pages that are newer than some of the
changes do no harm: those changes set the same values again. What is kept proves itself:

    changes   (first, next, ...) each: contiguous from ``since`` to ``next``, as many as meta says
    pages     name -> (offset, value): their digest is the one in meta
    outbox    as many as meta says

The digest of pages is a sum, so that a page can be exchanged without reading the others:

    digest = sum over pages of SHA-256(length of name | name | offset | value)[:16]   modulo 2^128

A page or a change that is missing, older or foreign therefore raises ``Damaged``. It is never read
as "nobody spent anything".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from streams.wire.chain import Chain

LAYOUT = 2
"""Of what is kept. The first release had 1, without a version, a chain or a digest."""

CHANGE_BYTES = 128 * 1024 * 1024
"""The longest value of an entry of ``changes``: Redis takes 512 MiB. Longer ones become parts."""

_MODULUS = 1 << 128


class Damaged(Exception):
    """What is kept of a partition is not whole. Nothing can be decided from it."""


class Change(msgspec.Struct, frozen=True, array_like=True):
    """What applying the records first to next - 1 changed; of large changes, one part."""

    first: int
    next: int
    part: int
    parts: int
    packed: bytes


@dataclass(frozen=True)
class Meta:
    """The head of a partition: what it belongs to, how far it is, how much there is of it."""

    layout: int
    topic: str  # the id of the topic, hexadecimal
    partitions: int  # P of the topic
    owner: str
    version: int  # moves with every write
    next: int  # the offset to apply next
    chain: Chain
    since: int  # where the changes begin
    changes: int
    pages: int
    digest: int  # of the pages
    outbox: int

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Meta:
        """From what Redis has.

        Raises:
            Damaged: a field is missing or is not what it should be.
        """
        try:
            head, before = bytes.fromhex(fields["head"]), bytes.fromhex(fields["before"])
            return cls(
                topic=fields["topic"],
                owner=fields["owner"],
                chain=Chain(head, before, int(fields["last"])),
                digest=int(fields["digest"], 16),
                **{name: int(fields[name]) for name in _NUMBERS},
            )
        except (KeyError, ValueError) as error:
            raise Damaged(f"meta is not whole: {error!r}") from error


_NUMBERS = ("layout", "partitions", "version", "next", "since", "changes", "pages", "outbox")


@dataclass(frozen=True)
class Snapshot:
    """All that is kept of a partition, as of one moment; verified."""

    meta: Meta
    pages: dict[str, bytes]
    changes: list[bytes]  # in the order of the log
    changes_bytes: int
    outbox: list[tuple[str, bytes]]  # name -> packed outputs, in the order of the log
    hashes: dict[str, int]  # of the pages as they are kept

    @property
    def next(self) -> int:
        """The offset to apply next."""
        return self.meta.next


def verified(
    meta: Meta,
    pages: Mapping[str, bytes],
    changes: Sequence[bytes],
    outbox: Mapping[str, bytes],
) -> Snapshot:
    """A snapshot of what was kept.

    Raises:
        Damaged: something is missing, older than it should be, or unreadable.
    """
    for name, kept, counted in (
        ("pages", len(pages), meta.pages),
        ("changes", len(changes), meta.changes),
        ("outbox", len(outbox), meta.outbox),
    ):
        if kept != counted:
            raise Damaged(f"{name} has {kept} entries where {counted} were written")
    hashes = {name: page_hash(name, page) for name, page in pages.items()}
    if sum(hashes.values()) % _MODULUS != meta.digest:
        raise Damaged("pages are not those that were written last: their digest is another")
    return Snapshot(
        meta=meta,
        pages={name: page[8:] for name, page in pages.items()},
        changes=_joined(meta, changes),
        changes_bytes=sum(map(len, changes)),
        outbox=sorted(outbox.items(), key=lambda entry: _place(entry[0])),
        hashes=hashes,
    )


def pack_change(first: int, next_offset: int, packed: bytes) -> list[bytes]:
    """The entries of ``changes`` for what a batch changed."""
    parts = max(1, -(-len(packed) // CHANGE_BYTES))
    cuts = (packed[part * CHANGE_BYTES : (part + 1) * CHANGE_BYTES] for part in range(parts))
    return [
        msgspec.msgpack.encode(Change(first, next_offset, part, parts, cut))
        for part, cut in enumerate(cuts)
    ]


def pack_page(offset: int, value: bytes) -> bytes:
    """A page as it is kept: the offset up to which it is applied, then its value."""
    return offset.to_bytes(8, "big") + value


def page_hash(name: str, page: bytes) -> int:
    """What a page adds to the digest."""
    label = name.encode()
    digest = hashlib.sha256(len(label).to_bytes(4, "big") + label)
    digest.update(page)
    return int.from_bytes(digest.digest()[:16], "big")


def digest_of(hashes: Iterable[int]) -> int:
    """The digest of pages with these hashes."""
    return sum(hashes) % _MODULUS


def outbox_name(first: int, number: int) -> str:
    """Parcel ``number`` of the outputs of the batch that begins at ``first``."""
    return f"{first}/{number}"


def _place(name: str) -> tuple[int, int]:
    try:
        first, number = name.split("/")
        return int(first), int(number)
    except ValueError as error:
        raise Damaged(f"outbox has an entry {name!r}, which no worker wrote") from error


def _joined(meta: Meta, entries: Sequence[bytes]) -> list[bytes]:
    """The packed changes, if they lead from ``since`` to ``next`` without a gap."""
    whole: list[bytes] = []
    parts: list[bytes] = []
    reached = meta.since
    for entry in entries:
        try:
            change = msgspec.msgpack.decode(entry, type=Change)
        except msgspec.DecodeError as error:
            raise Damaged(f"changes has an entry that cannot be read: {error}") from error
        if change.first != reached or change.part != len(parts) or change.next <= change.first:
            raise Damaged(
                f"changes has part {change.part} of offset {change.first} where part "
                f"{len(parts)} of {reached} has to follow"
            )
        parts.append(change.packed)
        if len(parts) == change.parts:
            whole.append(b"".join(parts))
            parts, reached = [], change.next
    if parts or reached != meta.next:
        raise Damaged(f"changes lead to offset {reached}, not to {meta.next}")
    return whole
