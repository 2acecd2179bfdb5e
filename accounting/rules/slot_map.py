"""Where the rows of a roster's positions are: position to slot, and back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from accounting.exact.errors import InvalidInput
from accounting.exact.validation import IntArray

Rows = IntArray | slice

_MOST_SLOTS = 2**31
_ABSENT = -1


class SlotMap:
    """The slots of positions 0, 1, 2, ...; two numbers if they follow one another, else 4 bytes.

    The way back takes as much again, from the first time that it is asked for.
    """

    def __init__(self) -> None:
        self._first = 0
        self._count = 0
        self._slots: npt.NDArray[np.int32] | None = None  # None: first, first + 1, ...
        self._positions: npt.NDArray[np.int32] | None = None

    def extend(self, slots: IntArray) -> None:
        """Add positions behind the others.

        Raises:
            InvalidInput: for slots below 0 or from 2**31 on.
        """
        if not slots.size:
            return
        if slots.dtype != np.int64 or slots.min() < 0 or slots.max() >= _MOST_SLOTS:
            raise InvalidInput("slots", slots, f"int64, from 0 to {_MOST_SLOTS - 1}")
        first = int(slots[0])
        follow = bool((np.diff(slots) == 1).all())
        if follow and self._slots is None and self._count in (0, first - self._first):
            self._first = first - self._count
        else:
            known = self._known()
            self._slots = np.concatenate([known, slots.astype(np.int32)])
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
