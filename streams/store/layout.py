"""The layout of a partition's state in Redis: keys, meta, and the entries of each key.

All keys of partition p have one hash tag, so that Redis Cluster stores them together:

    turnstile.{norms-p}:meta      hash   the log it belongs to, the progress, the number of entries
    turnstile.{norms-p}:changes   list   deltas that were not merged into pages yet
    turnstile.{norms-p}:pages     hash   policies, runs and pages of users
    turnstile.{norms-p}:outbox    hash   outputs, until they are published
    turnstile.{norms-p}:alive     hash   the owner's last heartbeat, and a summary; not state,
                                         and unknown if a digest differs (``with_digest``)
    turnstile.{norms-p}:suspended hash   why the partition is suspended, if it is; not state
    turnstile.{norms-p}:staged-*  pieces of a snapshot or a large batch, until it is written

The state is the pages, followed by the deltas in order. It is verified when it is read
(``stored_state``), so one flipped bit is damage and never another state:

    meta      has the digest of its fields, but for owner and version, which only fence, and for
              the numbers of entries, which are compared with the entries
    changes   (first, next, ...) each with its digest: contiguous from ``since`` to ``next``, as
              many as in meta
    pages     name -> (offset, value): their digest is the one in meta
    outbox    name -> outputs, each with its digest; as many as in meta

The digest of pages is a sum, so that a page can be replaced without reading the others:

    digest = sum over pages of SHA-256(length of name | name | offset | value)[:16]   modulo 2^128
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from streams.records.digests import HashChain, genesis

LAYOUT = 6
"""The version of this layout, of its contents and of the rules that led to them: a release that
decides or publishes anything differently raises it. A worker reads no other version, so it never
decides the records of another release again."""

STATE = ("meta", "changes", "pages", "outbox")
"""The keys of a partition's state."""
STAGED = ("staged-changes", "staged-pages", "staged-outbox")
"""The keys of pieces that are written to the state later, all at once."""
KEYS = (*STATE, "alive", "suspended", *STAGED)
"""All keys of a partition."""

CHANGE_BYTES = 128 * 1024 * 1024
"""The largest entry of ``changes`` (the limit of Redis is 512 MiB). Larger deltas are split."""

_MODULUS = 1 << 128
_DIGEST_BYTES = 16


class Damaged(Exception):
    """The stored state of a partition is not what was written. Nothing can be decided from it."""


class Identity(NamedTuple):
    """The log and the layout of a state by its own account, as text: they are read first."""

    layout: str
    topic: str  # the id of the topic norms, hexadecimal
    partitions: str  # P of the topic

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Identity:
        """Return the identity in a meta, which may be of another layout, or raise ``Damaged``."""
        found = cls(*(fields.get(name, "none") for name in cls._fields))
        # The layout itself may be the damaged field, so the digest is that of a meta of this one.
        is_intact = is_whole({**fields, "layout": str(LAYOUT)})
        if is_intact != (found.layout == str(LAYOUT)):
            raise Damaged("meta is not what was written: its digest differs")
        return found


class Meta(msgspec.Struct, frozen=True):
    """The meta of a partition: the log it belongs to, the progress, the number of entries."""

    layout: int
    topic: str  # the id of the topic, hexadecimal
    partitions: int  # P of the topic
    next: int  # the offset to apply next
    head: str  # of the hash chain, hexadecimal
    before: str  # the head before it
    last: int  # the offset of the last record in the chain; -1: none
    leader_epoch: int  # of that record; -1: none, or not known
    since: int  # the offset at which the deltas begin
    changes: int  # number of entries
    pages: int
    outbox: int
    digest: str  # of the pages, hexadecimal
    owner: str
    version: int  # incremented by every write of state

    @property
    def identity(self) -> Identity:
        """Its identity."""
        return Identity(str(self.layout), self.topic, str(self.partitions))

    @property
    def chain(self) -> HashChain:
        """The hash chain of the applied records."""
        return HashChain(bytes.fromhex(self.head), bytes.fromhex(self.before), self.last)

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Meta:
        """Return the meta that a store or a snapshot has, or raise ``Damaged``."""
        if not is_whole(fields):
            raise Damaged("meta is not what was written: its digest differs")
        try:
            return msgspec.convert(fields, cls, strict=False)
        except msgspec.ValidationError as error:
            raise Damaged(f"meta is incomplete: {error}") from error


COVERED_FIELDS = (
    *("layout", "topic", "partitions", "next", "head", "before", "last", "leader_epoch"),
    *("since", "digest"),
)
"""The fields of meta that its digest covers."""
SAVED_FIELDS = (*COVERED_FIELDS, "changes", "pages", "outbox", "meta_digest")
"""The fields of meta that a snapshot has: all but the owner and its version."""


def chain_fields(chain: HashChain) -> dict[str, str]:
    """Return the fields of a hash chain in meta."""
    return {"head": chain.head.hex(), "before": chain.before.hex(), "last": str(chain.last)}


def with_meta_digest(fields: Mapping[str, str]) -> dict[str, str]:
    """Return fields of meta with their digest."""
    text = "\n".join(f"{name}={fields.get(name)}" for name in COVERED_FIELDS)
    return {**fields, "meta_digest": hashlib.sha256(text.encode()).hexdigest()[:32]}


def is_whole(fields: Mapping[str, str]) -> bool:
    """Return whether a meta has the digest of its fields."""
    return with_meta_digest(fields) == fields


def fields_of_nothing(topic: bytes, partition: int, partitions: int) -> dict[str, str]:
    """Return the meta of a log of which nothing has been applied, without an owner."""
    fields = {
        "layout": str(LAYOUT),
        "topic": topic.hex(),
        "partitions": str(partitions),
        "owner": "",
        "version": "0",
        "next": "0",
        **chain_fields(genesis(topic, partition, partitions)),
        "leader_epoch": "-1",
        "since": "0",
        "changes": "0",
        "pages": "0",
        "digest": hexadecimal(0),
        "outbox": "0",
    }
    return with_meta_digest(fields)


class Change(msgspec.Struct, frozen=True, array_like=True):
    """The changes made by the records first to next - 1; a large delta is split into parts."""

    first: int
    next: int
    part: int
    parts: int
    packed: bytes


def pack_change(first: int, next_offset: int, packed: bytes) -> list[bytes]:
    """Return the entries of ``changes`` for the delta of a batch."""
    parts = max(1, -(-len(packed) // CHANGE_BYTES))
    cuts = (packed[part * CHANGE_BYTES : (part + 1) * CHANGE_BYTES] for part in range(parts))
    return [
        with_digest(msgspec.msgpack.encode(Change(first, next_offset, part, parts, cut)))
        for part, cut in enumerate(cuts)
    ]


def unpack_change(entry: bytes) -> Change:
    """Return an entry of ``changes``, or raise ``Damaged``."""
    try:
        return msgspec.msgpack.decode(without_digest(entry), type=Change)
    except msgspec.MsgspecError as error:
        raise Damaged(f"an entry of changes cannot be read: {error}") from error


def with_digest(content: bytes, name: str = "") -> bytes:
    """Return bytes with the digest of a name and them, for ``without_digest``."""
    return page_hash(name, content).to_bytes(_DIGEST_BYTES, "big") + content


def without_digest(packed: bytes, name: str = "") -> bytes:
    """Return the content that was given to ``with_digest``, or raise ``Damaged``."""
    content = packed[_DIGEST_BYTES:]
    if with_digest(content, name) != packed:
        raise Damaged(f"{name or 'an entry'} is not what was written: its digest differs")
    return content


def pack_page(offset: int, value: bytes) -> bytes:
    """Return a page as it is stored: the offset up to which it is applied, then its value."""
    return offset.to_bytes(8, "big") + value


def page_value(page: bytes) -> bytes:
    """Return the value that was given to ``pack_page``."""
    return page[8:]


def page_hash(name: str, page: bytes) -> int:
    """Return the summand of a page in the digest."""
    label = name.encode()
    digest = hashlib.sha256(len(label).to_bytes(4, "big") + label)
    digest.update(page)
    return int.from_bytes(digest.digest()[:16], "big")


def digest_of(hashes: Iterable[int]) -> int:
    """Return the digest of pages with these hashes."""
    return sum(hashes) % _MODULUS


def hexadecimal(digest: int) -> str:
    """Return a digest as it is stored in meta."""
    return f"{digest:032x}"


def outbox_entry_name(first: int, number: int) -> str:
    """Return the name of entry ``number`` of the outputs of the batch that begins at ``first``."""
    return f"{first}/{number}"


def outbox_entry_place(name: str) -> tuple[int, int]:
    """Return the arguments of ``outbox_entry_name``, or raise ``Damaged``."""
    try:
        first, number = name.split("/")
        return int(first), int(number)
    except ValueError as error:
        raise Damaged(f"the outbox has an entry {name!r}, which no worker wrote") from error


def key_of(prefix: str, partition: int, name: str) -> str:
    """Return the Redis key of a part of a partition's state."""
    return f"{prefix}{{norms-{partition}}}:{name}"
