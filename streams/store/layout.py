"""How the state of a partition is kept: its keys, its head, and what an entry of each key is.

Per partition p, under one hash tag so that Redis Cluster keeps them together:

    turnstile.{norms-p}:meta      hash   what it belongs to, how far it is, how much there is of it
    turnstile.{norms-p}:changes   list   state changes since they were last compacted into pages
    turnstile.{norms-p}:pages     hash   policies, runs and pages of users
    turnstile.{norms-p}:outbox    hash   outputs of a batch, until they are published
    turnstile.{norms-p}:alive     hash   when its owner was last seen, and a summary; no state
    turnstile.{norms-p}:stopped   hash   why nothing is decided, if so; no state
    turnstile.{norms-p}:staged-*  the same as changes, pages and outbox, while an image is put back

State = pages, then changes in order. What is kept proves itself (``snapshot``):

    changes   (first, next, ...) each: contiguous from ``since`` to ``next``, as many as meta says
    pages     name -> (offset, value): their digest is the one in meta
    outbox    as many as meta says

The digest of pages is a sum, so that a page can be exchanged without reading the others:

    digest = sum over pages of SHA-256(length of name | name | offset | value)[:16]   modulo 2^128
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from streams.wire.chain import Chain, genesis

LAYOUT = 3
"""The version of this layout and of what is stored in it. Other versions are refused."""

STATE = ("meta", "changes", "pages", "outbox")
"""What the state of a partition is kept in."""
STAGED = ("staged-changes", "staged-pages", "staged-outbox")
"""Where they are put together from an image, before they take their place."""
KEYS = (*STATE, "alive", "stopped", *STAGED)
"""All keys of a partition."""

CHANGE_BYTES = 128 * 1024 * 1024
"""The longest value of an entry of ``changes``: Redis takes 512 MiB. Longer ones become parts."""

_MODULUS = 1 << 128


class Damaged(Exception):
    """What is kept of a partition is not whole. Nothing can be decided from it."""


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
    leader_epoch: int  # of the last record of it, as Kafka counts them; -1: none, or not known
    since: int  # where the changes begin
    changes: int
    pages: int
    digest: int  # of the pages
    outbox: int

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Meta:
        """From what a store has.

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


_NUMBERS = (
    "layout",
    "leader_epoch",
    "partitions",
    "version",
    "next",
    "since",
    "changes",
    "pages",
    "outbox",
)


def chain_fields(chain: Chain) -> dict[str, str]:
    """A chain, as meta has it."""
    return {"head": chain.head.hex(), "before": chain.before.hex(), "last": str(chain.last)}


def fields_of_nothing(topic: bytes, partition: int, partitions: int) -> dict[str, str]:
    """Meta of a log of which nothing has been applied, before its first claim."""
    return {
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


class Change(msgspec.Struct, frozen=True, array_like=True):
    """What applying the records first to next - 1 changed; of large changes, one part."""

    first: int
    next: int
    part: int
    parts: int
    packed: bytes


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


def page_value(page: bytes) -> bytes:
    """What ``pack_page`` was given."""
    return page[8:]


def page_hash(name: str, page: bytes) -> int:
    """What a page adds to the digest."""
    label = name.encode()
    digest = hashlib.sha256(len(label).to_bytes(4, "big") + label)
    digest.update(page)
    return int.from_bytes(digest.digest()[:16], "big")


def digest_of(hashes: Iterable[int]) -> int:
    """The digest of pages with these hashes."""
    return sum(hashes) % _MODULUS


def hexadecimal(digest: int) -> str:
    """The digest of pages, as meta has it."""
    return f"{digest:032x}"


def parcel_name(first: int, number: int) -> str:
    """Parcel ``number`` of the outputs of the batch that begins at ``first``."""
    return f"{first}/{number}"


def parcel_place(name: str) -> tuple[int, int]:
    """What ``parcel_name`` was given.

    Raises:
        Damaged: it is not such a name.
    """
    try:
        first, number = name.split("/")
        return int(first), int(number)
    except ValueError as error:
        raise Damaged(f"outbox has an entry {name!r}, which no worker wrote") from error


def key_of(prefix: str, partition: int, name: str) -> str:
    """The key of one part of what is kept of a partition."""
    return f"{prefix}{{norms-{partition}}}:{name}"
