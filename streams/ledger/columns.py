"""Numbers of users as a struct of arrays: one row per user, columns of integers.

A subclass declares its columns, one line each:

    class Balances(Columns):
        spent: Annotated[Numbers, PER_ORDER]
        ticks: Annotated[Numbers, Column(initial=1)]
        level: Annotated[NDArray[np.uint8], Column(dtype="u1")]

Rows grow, change, and are packed into pages and deltas, which refer to columns by name. State that
was stored before a column existed has the initial value in every row. In pages, columns are packed
into as few bytes as they need, and their names end with ``~``; in deltas they are not packed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.ledger.partition_errors import UnknownState

Numbers: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = Numbers | slice
"""Slots of rows, or a slice from one to another."""

_PAGE_BITS = 12
PAGE_ROWS = 1 << _PAGE_BITS
"""Rows in one page of state."""

_GROWTH = 8
"""Arrays grow by at least one row in this many."""
PACKED = "~"
"""Follows the name of a column whose numbers are packed."""


@dataclass(frozen=True)
class Column:
    """The properties of a column."""

    initial: int = 0  # the value in a new row
    per_order: bool = False  # a row has one number per order of the dataset, not one in all
    dtype: str = "<i8"  # in memory
    stored: str = ""  # in deltas; as in memory by default


PER_ORDER = Column(per_order=True)


class RowDelta(msgspec.Struct, frozen=True, array_like=True):
    """New values of some rows, not differences: setting them twice is harmless.

    A name that is no column belongs to the owner of the columns, which applies it itself.
    """

    slots: bytes  # uint32, little-endian
    # Column, or several with equal numbers -> numbers, little-endian, (n,) or (n, orders), or (1,)
    values: dict[str, bytes]
    span: tuple[int, int] | None = None  # instead of slots: from one up to another

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.slots) // 4 if self.span is None else self.span[1] - self.span[0]

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return len(self.slots) + sum(map(len, self.values.values()))


class Columns:
    """The rows of all users of one dataset in one partition, by slot."""

    _columns: ClassVar[dict[str, Column]] = {}

    def __init_subclass__(cls) -> None:
        cls._columns = {
            name: column
            for name, hint in get_type_hints(cls, include_extras=True).items()
            for column in getattr(hint, "__metadata__", ())
            if isinstance(column, Column)
        }

    def __init__(self, orders: int | None = None) -> None:
        """Make columns without rows; ``per_order`` ones have an axis of orders, unless None."""
        self._orders = () if orders is None else (orders,)
        self._room = self._count = 0
        self._changed_pages = np.zeros(0, dtype=np.bool_)
        for name, column in self._columns.items():
            setattr(self, name, self._initial(column, 0))

    def __len__(self) -> int:
        return self._count

    def reserve(self, count: int) -> None:
        """Make room for this many rows, with initial values."""
        if count <= self._room:
            return
        more = max(count, self._room + self._room // _GROWTH) - self._room
        for name, column in self._columns.items():
            grown = np.concatenate([getattr(self, name), self._initial(column, more)])
            setattr(self, name, grown)
        self._room += more
        pages = -(-self._room // PAGE_ROWS)
        self._changed_pages = np.pad(self._changed_pages, (0, pages - len(self._changed_pages)))

    def grow(self, count: int) -> None:
        """Add rows with initial values, up to this many in all."""
        self.reserve(count)
        self._count = count

    def all_numbers(self, rows: Rows) -> dict[str, NDArray[np.integer]]:
        """Return some rows of every column, by name; for a slice, views."""
        return {name: getattr(self, name)[rows] for name in self._columns}

    def touch(self, rows: Rows) -> None:
        """Count the pages of these rows as changed."""
        if isinstance(rows, slice):
            self._changed_pages[rows.start >> _PAGE_BITS : -(-rows.stop // PAGE_ROWS)] = True
        elif len(rows):
            pages = self._changed_pages[: (int(rows.max()) >> _PAGE_BITS) + 1]
            if not pages.all():  # most often they have changed before
                pages[rows >> _PAGE_BITS] = True

    def note(self, rows: Rows, *columns: str) -> RowDelta:
        """Return the changes of distinct rows that were written in place, in all columns by
        default.
        """
        names = columns or tuple(self._columns)
        return self.note_by(rows, {name: self._packed(name, rows) for name in names})

    def note_alike(self, rows: Rows, *columns: str) -> RowDelta:
        """Return the changes of columns of one dtype, with equal columns stored once."""
        noted = self.note(rows, *columns)
        first, *others = noted.values.values()
        if any(other != first for other in others):
            return noted
        return msgspec.structs.replace(noted, values={" ".join(columns): noted.values[columns[0]]})

    def note_by(self, rows: Rows, values: dict[str, bytes]) -> RowDelta:
        """Return changes of rows with these packed values."""
        self.touch(rows)
        if isinstance(rows, slice):
            return RowDelta(b"", values, (rows.start, rows.stop))
        return RowDelta(rows.astype("<u4").tobytes(), values)

    def apply_delta(self, changes: RowDelta, which: NDArray[np.bool_] | None = None) -> None:
        """Set the values of a delta again, in these rows, (n,); in all rows if None."""
        slots = slots_of(changes)
        for names, packed in changes.values.items():
            for name in names.split(" "):
                column = self._column(name)
                stored = np.frombuffer(packed, dtype=column.stored or column.dtype)
                numbers = self._shaped(name, stored)
                if which is None:
                    getattr(self, name)[slots] = numbers
                else:
                    each = np.broadcast_to(numbers, (len(slots), *numbers.shape[1:]))
                    getattr(self, name)[slots[which]] = each[which]
        self.touch(slots)

    def changed_pages(self) -> list[int]:
        """Return the numbers of the pages that changed since they were last taken."""
        numbers: list[int] = np.flatnonzero(self._changed_pages).tolist()
        return numbers

    def take_page(self, number: int) -> dict[str, bytes]:
        """Return the rows of a page; from here on it counts as written."""
        self._changed_pages[number] = False
        rows = slice(number * PAGE_ROWS, min((number + 1) * PAGE_ROWS, len(self)))
        return {
            name + PACKED: pack_numbers(numbers) for name, numbers in self.all_numbers(rows).items()
        }

    def load_page(self, number: int, page: dict[str, bytes]) -> None:
        """Restore the rows of a page."""
        start = number * PAGE_ROWS
        for key, packed in page.items():
            name = key.removesuffix(PACKED)
            rows = self._shaped(name, unpack_numbers(packed))
            getattr(self, name)[start : start + len(rows)] = rows
        self._changed_pages[number] = False

    def _shaped(self, name: str, numbers: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return the stored numbers of a column with one row per user."""
        shape = self._orders if self._column(name).per_order else ()
        return numbers.reshape(-1, *shape)

    def _column(self, name: str) -> Column:
        if name not in self._columns:
            raise UnknownState(f"a column {name!r}")
        return self._columns[name]

    def _packed(self, name: str, rows: Rows) -> bytes:
        """Pack the numbers of some rows; one number if all are equal."""
        column: NDArray[np.integer] = getattr(self, name)
        numbers = column[rows] if isinstance(rows, slice) else column.take(rows, axis=0)
        same = numbers.ndim == 1 and len(numbers) > 1 and numbers[0] == numbers[-1]
        if same and bool((numbers == numbers[0]).all()):
            numbers = numbers[:1]
        stored = self._columns[name].stored or self._columns[name].dtype
        return numbers.astype(stored, copy=False).tobytes()

    def _initial(self, column: Column, count: int) -> NDArray[np.integer]:
        shape = self._orders if column.per_order else ()
        return np.full((count, *shape), column.initial, dtype=column.dtype)


def slots_of(changes: RowDelta) -> Numbers:
    """Return the slots of the rows that changed."""
    if changes.span is not None:
        return np.arange(*changes.span)
    return np.frombuffer(changes.slots, dtype="<u4").astype(np.int64)


_HEAD = struct.Struct("<qIBB")


def pack_numbers(numbers: NDArray[np.integer]) -> bytes:
    """Pack whole numbers of any shape: their distances from the smallest, little-endian.

    bytes 0 to 8     the smallest number, int64
    bytes 8 to 12    the count of numbers, uint32
    byte 12          bytes per distance, 0 to 8; 0 if all numbers are equal
    byte 13          1 if each number's index was subtracted first: consecutive numbers need 0 bytes
    from byte 14 on  the distances
    """
    flat = numbers.reshape(-1).astype(np.int64)
    steps = 0
    least, width = _spread(flat)
    if width:
        rest = flat - np.arange(flat.size)
        least_of_rest, width_of_rest = _spread(rest)
        if width_of_rest < width:
            flat, least, width, steps = rest, least_of_rest, width_of_rest, 1
    # Between int64 numbers, too, a distance fits in 64 bits without a sign.
    distances = (flat - np.int64(least)).astype("<i8", copy=False).view(np.uint8)
    return _HEAD.pack(least, flat.size, width, steps) + (
        distances.reshape(-1, 8)[:, :width].tobytes()
    )


def unpack_numbers(packed: bytes) -> NDArray[np.int64]:
    """Unpack numbers into one row, or raise ``ValueError``."""
    if len(packed) < _HEAD.size:
        raise ValueError(f"{len(packed)} bytes are no packed numbers")
    least, count, width, steps = _HEAD.unpack_from(packed)
    if width > 8 or steps > 1 or len(packed) != _HEAD.size + count * width:
        raise ValueError(f"{len(packed)} bytes are not {count} packed numbers of {width} bytes")
    octets = np.zeros((count, 8), dtype=np.uint8)
    octets[:, :width] = np.frombuffer(packed, dtype=np.uint8, offset=_HEAD.size).reshape(
        count, width
    )
    numbers = octets.view("<i8").reshape(-1).astype(np.int64, copy=False)
    numbers += least
    if steps:
        numbers += np.arange(count)
    return numbers


def _spread(numbers: NDArray[np.int64]) -> tuple[int, int]:
    """Return the smallest number, and the bytes that the largest distance from it takes."""
    if not numbers.size:
        return 0, 0
    least, largest = int(numbers.min()), int(numbers.max())
    return least, -(-(largest - least).bit_length() // 8)
