"""The columns of a roster, with one row per position, and the account row of each position."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from accounting.costs.norm_levels import LevelArray
from accounting.exact.argument_checks import IntArray
from accounting.filters.due_steps import NEVER, StepArray

FlagArray = npt.NDArray[np.uint8]
Rows = IntArray | slice

HALTED: Final = np.uint8(1)
EXHAUSTED: Final = np.uint8(2)
LISTED: Final = np.uint8(4)  # only during a step: the step set this position's level
MAX_STEPS: Final = NEVER - 2
"""The maximum number of steps of a roster: four bytes per position hold the number of a step."""
_ABSENT: Final = -1
_BLOCK: Final = 2**14  # slots at a time, so that the temporaries stay in the cache


class RosterColumns(Protocol):
    """The stored columns of a roster; the caller owns them.

    They may be longer than there are positions, and longer ones may replace them between calls.

    Attributes:
        level: the level asked for, uint8.
        granted: the level that the last step granted, uint8.
        flags: 1 if the user was not admitted to the last step, 2 if the user had nothing left after
            it; uint8.
        since: the step after which the balances were last brought up to date; uint32.
    """

    level: LevelArray
    granted: LevelArray
    flags: FlagArray
    since: StepArray


class SlotMap:
    """The account row (slot) of every roster position, and back.

    Consecutive slots take two numbers in all; others take 4 bytes per position. The reverse map
    takes the same again, and is built at its first use.
    """

    def __init__(self) -> None:
        self._first = 0
        self._count = 0
        self._parts: list[npt.NDArray[np.int32]] = []  # none: the slots are first, first + 1, ...
        self._positions: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return self._count

    def extend(self, slots: IntArray) -> None:
        """Append positions; their slots are different from one another and from all others."""
        if not slots.size:
            return
        first = int(slots[0]) - self._count
        if not self._parts and (not self._count or first == self._first) and _follow(slots):
            self._first = first
        else:
            if not self._parts:
                self._parts = [np.arange(self._first, self._first + self._count, dtype=np.int32)]
            self._parts.append(slots.astype(np.int32))
        self._count += slots.size
        self._positions = None

    def rows(self, where: Rows) -> Rows:
        """Return the slots of some positions; for a slice, a slice if the slots are consecutive."""
        if self._parts:
            return self._slots()[where].astype(np.int64)
        if isinstance(where, slice):
            start, stop, _ = where.indices(self._count)
            return slice(self._first + start, self._first + stop)
        return where + self._first

    def positions(self, slots: IntArray) -> IntArray:
        """Return the positions of these slots, without the slots that have none."""
        if not self._parts:
            found = slots - self._first
            return found[(found >= 0) & (found < self._count)]
        if self._positions is None:
            known = self._slots()
            self._positions = np.full(int(known.max()) + 1, _ABSENT, dtype=np.int32)
            self._positions[known] = np.arange(self._count, dtype=np.int32)
        found = self._positions[slots[slots < self._positions.size]].astype(np.int64)
        return np.asarray(found[found != _ABSENT])

    def _slots(self) -> npt.NDArray[np.int32]:
        if len(self._parts) > 1:  # joined at the first use, as rosters are loaded in many parts
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]


def listed_rows(rows: Rows) -> IntArray:
    """Return rows as an array."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def rows_at(rows: Rows, users: IntArray) -> IntArray:
    """Return the rows of some users (indices) of a block."""
    return rows.start + users if isinstance(rows, slice) else rows[users]


def _follow(slots: IntArray) -> bool:
    """Return whether each slot is one more than the slot before it."""
    if int(slots[-1]) - int(slots[0]) != slots.size - 1:
        return False
    expected = np.arange(_BLOCK) + slots[0]
    for start in range(0, slots.size, _BLOCK):
        block = slots[start : start + _BLOCK]
        if not bool((block == expected[: block.size]).all()):
            return False
        expected += _BLOCK
    return True
