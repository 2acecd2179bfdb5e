"""The signs of a partition's owner that can be read without the state.

These are its heartbeat, a summary of the state, and the reason if the partition is suspended.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from streams.ledger.ledger import Summary


class SuspensionReason(StrEnum):
    """The reasons for a suspension, in the order in which an acquisition checks them."""

    OTHER_LAYOUT = "other-layout"  # another release wrote the state
    DAMAGED = "damaged"  # a part of the state is missing, and cannot be restored
    OTHER_LOG = "other-log"  # the topic was deleted and created again
    OTHER_PARTITIONS = "other-partitions"  # partitions were added to the topic
    TOPICS = "topics"  # settings under which records would be lost
    LOG_ENDS_EARLY = "log-ends-early"  # records that were applied are gone
    LOG_BEGINS_LATE = "log-begins-late"  # records that were not applied are gone
    LOG_REWRITTEN = "log-rewritten"  # the last record applied is another one now
    HOLE = "hole"  # a record that has to be applied next is missing
    SNAPSHOT = "snapshot"  # the last snapshot is needed, and is incomplete
    IMPORT_PENDING = "import-pending"  # the imported state that the log begins with is missing
    ERASURE_KEY = "erasure-key"  # users were erased under a key that this worker does not have
    CANNOT_VERIFY = "cannot-verify"  # the package that verifies signatures is not installed
    RESTORING = "restoring"  # not permanent: the state is being restored, and decisions follow


class Pulse(msgspec.Struct, frozen=True):
    """The progress of the owner."""

    next: int  # the offset to apply next
    end: int | None  # the end of the log; None before the first fetch
    waiting: float  # seconds for which records have been waiting and none was applied
    snapshot: int | None = None  # where the last snapshot continues; None: none, or not known
    erased_without_key: bool = False  # whether ids of erased users can be guessed


class Inventory(msgspec.Struct, frozen=True):
    """A summary of the state, up to the last applied record."""

    last: int  # the offset of the last applied record, -1 for none
    summary: Summary


def decode_pulse(packed: bytes) -> Pulse | None:
    """Return a stored pulse; None if there is none."""
    return msgspec.msgpack.decode(packed, type=Pulse) if packed else None


def last_snapshot(pulse: bytes) -> int | None:
    """Return the offset of the last snapshot that any owner has reported; None if there is none."""
    try:
        found = decode_pulse(pulse)
    except msgspec.DecodeError:
        return None  # another release wrote it
    return found.snapshot if found else None


def decode_inventory(packed: bytes) -> Inventory | None:
    """Return a stored summary; None if there is none."""
    return msgspec.msgpack.decode(packed, type=Inventory) if packed else None
