"""A mapping that knows what changed since the last batch, and since the last compaction.

Whatever a partition holds that is not a number of a user is an entry of a ``Tracked``: policies,
runs, and what comes next. An entry has an address, the names that lead to it, and is stored under
the kind of its mapping and these names:

    partitions          P, at the address ()
    policy:DATASET      at the address (DATASET,)
    run:DATASET/RUN     at the address (DATASET, RUN)
    participants:DATASET/RUN/N  at the address (DATASET, RUN, N)

A record of the wire says by its ``address`` which entries it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from types import UnionType
from typing import Generic, TypeAlias, TypeVar

import msgspec

from streams.ledger.errors import UnknownState
from streams.records import encode

Value = TypeVar("Value")
Address: TypeAlias = tuple[str, ...]

_GONE = encode(None)
_ENTRY_BYTES = 512
"""Of the name of an entry, and of what surrounds it."""


class Tracked(MutableMapping[Address, Value], Generic[Value]):
    """All entries of one kind in one partition, by address.

    A subclass that derives something from its entries overrides ``_moves``.

    Attributes:
        kind: what the names of its entries begin with, as they are stored.
    """

    def __init__(self, kind: str, value_type: type[Value] | UnionType) -> None:
        self.kind = kind
        self._values: dict[Address, Value] = {}
        self._value_type = value_type
        self._changes: dict[Address, bytes] = {}  # since the last batch, packed
        self._changed_bytes = 0
        self._changed_pages: set[Address] = set()

    def __getitem__(self, address: Address) -> Value:
        return self._values[address]

    def __setitem__(self, address: Address, value: Value) -> None:
        self._moves(address, self._values.get(address), value)
        self._values[address] = value
        self._note(address, encode(value))

    def __delitem__(self, address: Address) -> None:
        self._moves(address, self._values[address], None)
        del self._values[address]
        self._note(address, _GONE)

    def __iter__(self) -> Iterator[Address]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def changed_bytes(self) -> int:
        """About how much ``take_delta`` would bring."""
        return self._changed_bytes

    def take_delta(self) -> dict[str, bytes]:
        """The entries that were set or deleted since the last call, packed, by name."""
        changes = {self._name(address): packed for address, packed in self._changes.items()}
        self._changes, self._changed_bytes = {}, 0
        return changes

    def restore_entry(self, name: str, packed: bytes) -> None:
        """Set an entry to what was stored under its name, or delete it.

        Raises:
            UnknownState: another release wrote it: it has fields or values that are unknown here.
        """
        address = _address(name)
        if packed != _GONE:
            try:
                self[address] = msgspec.msgpack.decode(packed, type=self._value_type)
            except msgspec.ValidationError as error:
                raise UnknownState(f"an entry {name!r} that is none here ({error})") from error
        elif address in self._values:
            del self[address]
        else:
            self._note(address, _GONE)

    def unmerged(self) -> list[str]:
        """The names of the entries whose pages are not what they are now."""
        return [self._name(address) for address in sorted(self._changed_pages)]

    def take_page(self, name: str) -> bytes | None:
        """An entry as it is now, None if it is gone; from here on it counts as compacted."""
        address = _address(name)
        self._changed_pages.discard(address)
        return encode(self._values[address]) if address in self._values else None

    def mark_all_written(self) -> None:
        """From here on every entry counts as compacted."""
        self._changed_pages.clear()

    def _moves(self, address: Address, before: Value | None, after: Value | None) -> None:
        """An entry is about to move from one value to another; None: it is not there."""

    def _name(self, address: Address) -> str:
        return f"{self.kind}:{'/'.join(address)}" if address else self.kind

    def _note(self, address: Address, packed: bytes) -> None:
        before = self._changes.get(address)
        self._changed_bytes += len(packed) - (-_ENTRY_BYTES if before is None else len(before))
        self._changes[address] = packed
        self._changed_pages.add(address)


def _address(name: str) -> Address:
    _, _, path = name.partition(":")
    return tuple(path.split("/")) if path else ()
