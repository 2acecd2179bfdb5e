"""Where the rows of a roster's positions are: position to slot, and back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from accounting.exact.errors import InvalidInput
from accounting.exact.validation import IntArray

Rows = IntArray | slice

MAX_SLOT = 2**31 - 1
_ABSENT = -1
_BLOCK = 2**14  # slots at a time, so that the temporaries stay in the cache


class SlotMap:
    """The slots of positions 0, 1, 2, ...; two numbers if they follow one another, else 4 bytes.

    The way back takes as much again, from the first time that it is asked for.
    """

    def __init__(self) -> None:
        self._first = 0
        self._count = 0
        self._slots: npt.NDArray[np.int32] | None = None  # None: first, first + 1, ...
        self._positions: npt.NDArray[np.int32] | None = None

    def checked(self, slots: IntArray) -> bool:
        """Return whether each of these slots, of further positions, is the one after the last.

        They are int64, from 0 to `MAX_SLOT`.

        Raises:
            InvalidInput: for two positions of one slot.
        """
        follow, twice = _follow(slots), False
        if not follow:
            seen = np.zeros(int(slots.max()) + 1, dtype=np.bool_)
            seen[slots] = True
            twice = int(np.count_nonzero(seen)) != slots.size
        if twice or (self._count and self.positions(slots).size):
            raise InvalidInput("slots", "one of them twice", "different for all positions")
        return follow

    def extend(self, slots: IntArray, follow: bool) -> None:
        """Add positions behind the others; `follow` is what `checked` gave for their slots."""
        if not slots.size:
            return
        first = int(slots[0]) - self._count
        if self._slots is None and follow and (not self._count or first == self._first):
            self._first = first
        else:
            self._slots = np.concatenate([self._known(), slots.astype(np.int32)])
        self._count += slots.size
        self._positions = None

    def rows(self, where: Rows) -> Rows:
        """Return the slots of some positions; those of a slice are a slice if they can be."""
        if self._slots is not None:
            return self._slots[where].astype(np.int64)
        if isinstance(where, slice):
            start, stop, _ = where.indices(self._count)
            return slice(self._first + start, self._first + stop)
        return where + self._first

    def positions(self, slots: IntArray) -> IntArray:
        """Return the positions of those of these slots that have one."""
        if self._slots is None:
            found = slots - self._first
            return found[(found >= 0) & (found < self._count)]
        if self._positions is None:
            self._positions = np.full(int(self._slots.max()) + 1, _ABSENT, dtype=np.int32)
            self._positions[self._slots] = np.arange(self._count, dtype=np.int32)
        found = self._positions[slots[slots < self._positions.size]].astype(np.int64)
        return np.asarray(found[found != _ABSENT])

    def _known(self) -> npt.NDArray[np.int32]:
        if self._slots is not None:
            return self._slots
        return np.arange(self._first, self._first + self._count, dtype=np.int32)


def _follow(slots: IntArray) -> bool:
    """Return whether each slot is the one after the slot before it."""
    if not slots.size or int(slots[-1]) - int(slots[0]) != slots.size - 1:
        return not slots.size
    expected = np.arange(_BLOCK) + slots[0]
    for start in range(0, slots.size, _BLOCK):
        block = slots[start : start + _BLOCK]
        if not bool((block == expected[: block.size]).all()):
            return False
        expected += _BLOCK
    return True
