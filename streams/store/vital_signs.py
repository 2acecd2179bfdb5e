"""What the owner of a partition shows of it every few seconds, so that nobody has to read state."""

from __future__ import annotations

import msgspec

from streams.ledger.ledger import Summary


class Pulse(msgspec.Struct, frozen=True):
    """How far the owner is, as it sees it."""

    next: int  # the offset to apply next
    end: int | None  # where the log ends; None before the first fetch
    waiting: float  # seconds for which records have been waiting and none was applied
    checkpoint: int | None = None  # where the last image continues; None: none, or not known
    erased_without_key: bool = False  # whether the id of an erased user can be guessed


class Inventory(msgspec.Struct, frozen=True):
    """What the state holds, up to the last record applied."""

    last: int  # its offset, -1 for none
    summary: Summary


def decode_pulse(packed: bytes) -> Pulse | None:
    """A pulse as it was shown; None if there is none."""
    return msgspec.msgpack.decode(packed, type=Pulse) if packed else None


def last_checkpoint(pulse: bytes) -> int | None:
    """Return the last checkpoint that any owner has shown; None if none has."""
    try:
        found = decode_pulse(pulse)
    except msgspec.DecodeError:
        return None  # another release wrote it
    return found.checkpoint if found else None


def decode_inventory(packed: bytes) -> Inventory | None:
    """A summary as it was shown; None if there is none."""
    return msgspec.msgpack.decode(packed, type=Inventory) if packed else None
