"""The running digest of a log: what was applied, in which order, of which topic.

    head(0)     = SHA-256("dp-turnstile log 1" | topic id | partition | P)
    head(i + 1) = SHA-256(head(i) | offset | 1 | value)      for each record that is applied
                  SHA-256(head(i) | offset | 0)              for a tombstone

with the numbers as 8 bytes big-endian and the topic id as 16 bytes. Offsets that hold no record
(control records of transactions) are passed over. Whoever holds the log can compute the head
again: it is the receipt of everything that was charged.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

_PURPOSE = b"dp-turnstile log 1"
NO_TOPIC = bytes(16)


class Chain(NamedTuple):
    """The digest, and what it was before.

    Attributes:
        head: after the last record applied.
        before: before that record, so that the record alone can be checked against ``head``.
        last: the offset of that record; -1 before the first.
    """

    head: bytes
    before: bytes = b""
    last: int = -1

    def then(self, offset: int, value: bytes | None) -> Chain:
        """The chain after one more record."""
        return Chain(_link(self.head, offset, value), self.head, offset)

    def ends_with(self, value: bytes | None) -> bool:
        """Whether ``value`` is the last record that was applied; never, if none was."""
        return self.last >= 0 and self.head == _link(self.before, self.last, value)


def genesis(topic: bytes, partition: int, partitions: int) -> Chain:
    """The chain of a log of which nothing has been applied.

    Args:
        topic: the 16 bytes of the topic's id in Kafka.
        partition: which of its partitions.
        partitions: P, how many it has.
    """
    return Chain(
        hashlib.sha256(_PURPOSE + topic + _number(partition) + _number(partitions)).digest()
    )


def _link(head: bytes, offset: int, value: bytes | None) -> bytes:
    digest = hashlib.sha256(head + _number(offset) + (b"\0" if value is None else b"\1"))
    if value is not None:
        digest.update(value)
    return digest.digest()


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")
