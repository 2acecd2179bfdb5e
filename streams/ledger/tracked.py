"""A mapping that records changes since the last batch, and since the last merge.

All state of a partition except the numbers of users is stored as entries of a ``Tracked``, such as
policies and runs. An entry has an address, a tuple of names, and is stored under the kind of its
mapping and these names:

    partitions          P, at the address ()
    policy:DATASET      at the address (DATASET,)
    run:DATASET/RUN     at the address (DATASET, RUN)
    participants:DATASET/RUN/N  at the address (DATASET, RUN, N)

The ``address`` of a request is the address of the entries that it concerns.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from types import UnionType
from typing import Any, Generic, TypeAlias, TypeVar, overload

import msgspec

from streams.ledger.partition_errors import UnknownState
from streams.records import encode

Value = TypeVar("Value")
Default = TypeVar("Default")
Address: TypeAlias = tuple[str, ...]

_GONE = encode(None)
ENTRY_BYTES = 512
"""The size of an entry's name and encoding overhead, in bytes."""


class Tracked(MutableMapping[Address, Value], Generic[Value]):
    """All entries of one kind in one partition, by address.

    A subclass that derives something from its entries overrides ``_moves``.

    Attributes:
        kind: the prefix of the stored names of its entries.
        changed_bytes: the approximate size of ``take_delta``, in bytes; 0 if nothing changed.
    """

    def __init__(self, kind: str, value_type: type[Value] | UnionType) -> None:
        self.kind = kind
        self._values: dict[Address, Value] = {}
        self._value_type = value_type
        self._changes: dict[Address, bytes] = {}  # since the last batch, packed
        self.changed_bytes = 0
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

    def __contains__(self, address: object) -> bool:
        return address in self._values

    @overload
    def get(self, address: Address, /) -> Value | None: ...
    @overload
    def get(self, address: Address, /, default: Value | Default) -> Value | Default: ...
    def get(self, address: Address, /, default: Any = None) -> Any:
        """Return the entry at an address, or the default. Mapping.get would raise and catch."""
        return self._values.get(address, default)

    def __iter__(self) -> Iterator[Address]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def take_delta(self) -> dict[str, bytes]:
        """Return the entries that were set or deleted since the last call, packed, by name."""
        if not self._changes:
            return {}
        changes = {self._name(address): packed for address, packed in self._changes.items()}
        self._changes, self.changed_bytes = {}, 0
        return changes

    def restore_entry(self, name: str, packed: bytes) -> None:
        """Set an entry to its stored value, or delete it; ``UnknownState`` of another release."""
        address = _address(name)
        if packed != _GONE:
            try:
                self[address] = msgspec.msgpack.decode(packed, type=self._value_type)
            except msgspec.ValidationError as error:
                raise UnknownState(
                    f"an entry {name!r} with an unknown field or value ({error})"
                ) from error
        elif address in self._values:
            del self[address]
        else:
            self._note(address, _GONE)

    def unmerged(self) -> list[str]:
        """Return the names of the entries that changed since their page was taken."""
        return [self._name(address) for address in sorted(self._changed_pages)]

    def take_page(self, name: str) -> bytes | None:
        """Return an entry, None if it is deleted; from here on it counts as written."""
        address = _address(name)
        self._changed_pages.discard(address)
        return encode(self._values[address]) if address in self._values else None

    def mark_all_written(self) -> None:
        """Count every entry as written."""
        self._changed_pages.clear()

    def _moves(self, address: Address, before: Value | None, after: Value | None) -> None:
        """React to an entry that is about to change; None stands for a missing entry."""

    def _name(self, address: Address) -> str:
        return f"{self.kind}:{'/'.join(address)}" if address else self.kind

    def _note(self, address: Address, packed: bytes) -> None:
        before = self._changes.get(address)
        self.changed_bytes += len(packed) - (-ENTRY_BYTES if before is None else len(before))
        self._changes[address] = packed
        self._changed_pages.add(address)


def _address(name: str) -> Address:
    _, _, path = name.partition(":")
    return tuple(path.split("/")) if path else ()
