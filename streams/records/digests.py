"""Digests: the hash chain of a log, and the digests by which requests and rosters are recognised.

The hash chain is a running digest of all applied records of a partition:

    head(0)     = SHA-256("dp-turnstile log 1" | topic id | partition | P)
    head(i + 1) = SHA-256(head(i) | offset | 1 | value)      for each record that is applied
                  SHA-256(head(i) | offset | 0)              for a tombstone

Numbers are 8 bytes, big-endian; the topic id has 16 bytes. Offsets without a record (control
records of transactions) are skipped. A reader of the log can compute the head again: it is the
receipt of everything that was charged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Raw

from streams.records.codec import encode
from streams.records.packing import pack_norms, unpack_norms
from streams.records.requests import Charge, ChargeRoster
from streams.records.users import UserIds

NO_TOPIC = bytes(16)
ROSTER_PAGE = 4096
"""The number of members of a roster that have one digest."""
PAGE_DIGEST_BYTES = 16
_PURPOSE = b"dp-turnstile log 1"


class HashChain(NamedTuple):
    """The head of a hash chain, with the head before it."""

    head: bytes  # the digest after the last applied record
    before: bytes = b""  # the digest before that record, so that the record alone can be checked
    last: int = -1  # the offset of that record; -1 before the first

    def after(self, offset: int, value: bytes | None) -> HashChain:
        """Return the chain after one more record."""
        return HashChain(_link(self.head, offset, value), self.head, offset)

    def ends_with(self, value: bytes | None) -> bool:
        """Return whether the last applied record has this value; False before the first."""
        return self.last >= 0 and self.head == _link(self.before, self.last, value)


def genesis(topic: bytes, partition: int, partitions: int) -> HashChain:
    """Return the chain of a log before its first record; ``topic`` is its id, of 16 bytes."""
    return HashChain(
        hashlib.sha256(_PURPOSE + topic + _number(partition) + _number(partitions)).digest()
    )


def _link(head: bytes, offset: int, value: bytes | None) -> bytes:
    digest = hashlib.sha256(head + _number(offset) + (b"\0" if value is None else b"\1"))
    if value is not None:
        digest.update(value)
    return digest.digest()


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")


def charge_digest(charge: Charge, names: Raw | None = None) -> bytes:
    """Return the digest of a charge's content without its attempt, which identifies the step.

    It does not depend on the encoding of the charge. ``names`` are its users, encoded, if the
    caller has them and not all are integers.
    """
    digest = hashlib.sha256()
    for part in _content(charge, names):
        digest.update(part)
    return digest.digest()[:16]


def _content(charge: Charge, names: Raw | None) -> Iterator[bytes]:
    norms = charge.norms
    users = charge.users if names is None else bytes(names)
    if not isinstance(users, bytes):
        users = UserIds(users).pack()
    are_integers = names is None and isinstance(users, bytes)
    content = users if isinstance(users, bytes) else encode(users)
    reserve = (float(charge.reserve),) if charge.reserve else ()
    collected = ("collected",) if charge.collected is True else ()
    yield encode(
        (
            (charge.dataset, charge.run, charge.step, charge.mechanism),
            (float(charge.scale), None if charge.clip_norm is None else float(charge.clip_norm)),
            (are_integers, len(content)),
            *reserve,
            *collected,
        )
    )
    yield content
    yield norms if isinstance(norms, bytes) else pack_norms(unpack_norms(norms))


def roster_digest(charge: ChargeRoster) -> bytes:
    """Return the digest of a roster step's content without its attempt, which identifies the step.

    It covers the digest of the cost table, so it is the same with and without the table's units.
    """
    head = encode(
        (
            (charge.dataset, charge.run, charge.step, charge.members, charge.mechanism),
            (float(charge.scale), float(charge.sampling_rate), charge.cost_table_digest),
            (len(charge.positions), len(charge.levels)),
        )
    )
    digest = hashlib.sha256(b"charge-roster" + head)
    digest.update(charge.positions)
    digest.update(charge.levels)
    return digest.digest()[:16]


def cost_table_digest(units: bytes) -> bytes:
    """Return the digest by which a roster step names its cost table."""
    return hashlib.sha256(b"cost-table" + units).digest()[:16]


def page_digests(users: UserIds) -> bytes:
    """Return the digests of a roster: 16 bytes for each page of its users, in their order."""
    pages = range(0, len(users), ROSTER_PAGE)
    return b"".join(_page_digest(users[start : start + ROSTER_PAGE]) for start in pages)


def _page_digest(users: UserIds) -> bytes:
    packed = users.pack()
    kind, content = (b"i", packed) if isinstance(packed, bytes) else (b"s", encode(packed))
    return hashlib.sha256(kind + content).digest()[:PAGE_DIGEST_BYTES]
