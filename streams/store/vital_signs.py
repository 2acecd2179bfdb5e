"""The heartbeat of a partition's owner: facts that can be read without the state."""

from __future__ import annotations

import msgspec

from streams.ledger.ledger import Summary


class Pulse(msgspec.Struct, frozen=True):
    """The progress of the owner."""

    next: int  # the offset to apply next
    end: int | None  # the end of the log; None before the first fetch
    waiting: float  # seconds for which records have been waiting and none was applied
    checkpoint: int | None = None  # where the last snapshot continues; None: none, or not known
    erased_without_key: bool = False  # whether ids of erased users can be guessed


class Inventory(msgspec.Struct, frozen=True):
    """A summary of the state, up to the last applied record."""

    last: int  # the offset of the last applied record, -1 for none
    summary: Summary


def decode_pulse(packed: bytes) -> Pulse | None:
    """Return a stored pulse; None if there is none."""
    return msgspec.msgpack.decode(packed, type=Pulse) if packed else None


def last_checkpoint(pulse: bytes) -> int | None:
    """Return the offset of the last snapshot that any owner has reported; None if there is none."""
    try:
        found = decode_pulse(pulse)
    except msgspec.DecodeError:
        return None  # another release wrote it
    return found.checkpoint if found else None


def decode_inventory(packed: bytes) -> Inventory | None:
    """Return a stored summary; None if there is none."""
    return msgspec.msgpack.decode(packed, type=Inventory) if packed else None
