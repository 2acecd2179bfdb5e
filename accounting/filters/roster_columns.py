"""The stored columns of a roster: for every position an account row, a norm level and a grant.

Besides the balances, these columns are all that must be stored of a roster. Steps are counted from
an epoch, so that four bytes per position are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.costs.norm_levels import MAX_LEVELS, LevelArray, checked_levels
from accounting.exact.argument_checks import IntArray, unit_array, whole_array, whole_number
from accounting.exact.invalid_input import InvalidInput
from accounting.filters.due_steps import NO_ROWS, StepArray, extended

FlagArray = npt.NDArray[np.uint8]
Rows = IntArray | slice

HALTED: Final = np.uint8(1)
EXHAUSTED: Final = np.uint8(2)
LISTED: Final = np.uint8(4)  # only during a step: the step set this position's level
EPOCH: Final = 2**31  # after this many steps, `since` is counted from 0 again
MAX_SLOT: Final = 2**31 - 1
_MAX_STEPS: Final = 2**62
_NO_LEVELS: Final = np.empty(0, dtype=np.uint8)
_ABSENT: Final = -1
_BLOCK: Final = 2**14  # slots at a time, so that the temporaries stay in the cache


class RosterColumns(NamedTuple):
    """The stored columns of a roster, with one row per position.

    Attributes:
        level: the level asked for, uint8.
        granted: the level that the last step granted, uint8.
        flags: 1 if the user was not admitted to the last step, 2 if the user had nothing left after
            it; uint8.
        since: the step after which the balances were last brought up to date; int64.
    """

    level: LevelArray
    granted: LevelArray
    flags: FlagArray
    since: IntArray


class SlotMap:
    """The account row (slot) of every roster position, and back.

    Consecutive slots take two numbers in all; others take 4 bytes per position. The reverse map
    takes the same again, and is built at its first use.
    """

    def __init__(self) -> None:
        self._first = 0
        self._count = 0
        self._slots: npt.NDArray[np.int32] | None = None  # None: first, first + 1, ...
        self._positions: npt.NDArray[np.int32] | None = None

    def checked(self, slots: IntArray) -> bool:
        """Return whether the slots of new positions are consecutive.

        Args:
            slots: int64, from 0 to `MAX_SLOT`.

        Raises:
            InvalidInput: if two positions would have the same slot.
        """
        follow, twice = _follow(slots), False
        if not follow:
            seen = np.zeros(int(slots.max()) + 1, dtype=np.bool_)
            seen[slots] = True
            twice = int(np.count_nonzero(seen)) != slots.size
        if twice or (self._count and self.positions(slots).size):
            raise InvalidInput("slots", "a repeated slot", "different for all positions")
        return follow

    def extend(self, slots: IntArray, follow: bool) -> None:
        """Append positions; `follow` is the result of `checked` for their slots."""
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
        """Return the slots of some positions; for a slice, a slice if the slots are consecutive."""
        if self._slots is not None:
            return self._slots[where].astype(np.int64)
        if isinstance(where, slice):
            start, stop, _ = where.indices(self._count)
            return slice(self._first + start, self._first + stop)
        return where + self._first

    def positions(self, slots: IntArray) -> IntArray:
        """Return the positions of these slots, without the slots that have none."""
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


class RosterState:
    """The columns of a roster while it is charged.

    Args:
        accounts: the number of accounts of every user.
        highest: L, the highest level.

    Attributes:
        level, granted, flags: see `RosterColumns`; uint8, shape (n,).
        since: see `RosterColumns`, but counted from the epoch; uint32, shape (n,).
        steps: the number of steps taken.
        epoch: the step from which `since` is counted.
        slots: for each account, the row of every position.
    """

    def __init__(self, accounts: int, highest: int) -> None:
        self.highest = whole_number("highest", highest, 1, MAX_LEVELS)
        self.slots = tuple(SlotMap() for _ in range(accounts))
        self.level: LevelArray = np.empty(0, dtype=np.uint8)
        self.granted: LevelArray = np.empty(0, dtype=np.uint8)
        self.flags: FlagArray = np.empty(0, dtype=np.uint8)
        self.since: StepArray = np.empty(0, dtype=np.uint32)
        self.steps = 0
        self.epoch = 0

    def __len__(self) -> int:
        return self.level.size

    @property
    def now(self) -> int:
        """The number of steps taken since the epoch."""
        return self.steps - self.epoch

    def restart_epoch(self) -> None:
        """Count steps from the current one. All balances must be up to date."""
        self.since[:] = 0
        self.epoch = self.steps

    def enrol(self, slots: Sequence[IntArray], levels: npt.ArrayLike) -> int:
        """Append positions and return how many; see `RecurringCharge.enrol`."""
        asked = checked_levels(levels, self.highest)
        slots = [unit_array("slots", rows, MAX_SLOT) for rows in slots]
        shapes = [rows.shape for rows in slots]
        if asked.ndim != 1 or shapes != [asked.shape] * len(self.slots):
            raise InvalidInput("slots", shapes, f"{asked.shape} for each of {len(self.slots)}")
        follow = [known.checked(rows) for known, rows in zip(self.slots, slots, strict=True)]
        for known, rows, following in zip(self.slots, slots, follow, strict=True):
            known.extend(rows, following)
        self.level = np.concatenate([self.level, asked])
        self.granted = np.concatenate([self.granted, asked])
        self.flags = np.concatenate([self.flags, np.zeros_like(asked)])
        self.since = extended(self.since, asked.size, self.now)
        return asked.size

    def columns(self, where: Rows) -> RosterColumns:
        """Return a copy of the columns to store for some positions."""
        since = self.since[where].astype(np.int64) + self.epoch
        level, granted, flags = self.level[where], self.granted[where], self.flags[where]
        return RosterColumns(level.copy(), granted.copy(), flags.copy(), since)

    def restore(self, columns: RosterColumns, steps: int) -> None:
        """Set the stored columns, except the levels, which are known already.

        Args:
            columns: as stored.
            steps: the number of steps taken by then.

        Raises:
            InvalidInput: if no roster can have such columns.
        """
        granted = checked_levels(columns.granted, self.highest)
        flags = checked_levels(columns.flags, int(HALTED | EXHAUSTED))
        count = whole_number("steps", steps, 0, _MAX_STEPS)
        since = unit_array("since", columns.since, count)
        for column in (granted, flags, since):
            if column.shape != self.level.shape:
                raise InvalidInput("columns", column.shape, f"of shape {self.level.shape}")
        if bool((granted > self.level).any()):
            raise InvalidInput("granted", int(granted.max()), "at most the level at each position")
        epoch = int(since.min(initial=count))
        if count - epoch >= 2 * EPOCH:
            raise InvalidInput("since", epoch, f"less than {2 * EPOCH} before the steps, {count}")
        self.steps, self.epoch = count, epoch
        self.granted, self.flags = granted.copy(), flags.copy()
        self.since = (since - epoch).astype(np.uint32)

    def checked_levels(
        self, positions: npt.ArrayLike | None, levels: npt.ArrayLike | None
    ) -> tuple[Rows, LevelArray]:
        """Return (positions whose levels are set, ascending or a slice of all; their levels)."""
        if levels is None:
            if positions is not None:
                raise InvalidInput("levels", None, "given if positions are")
            return NO_ROWS, _NO_LEVELS
        asked = checked_levels(levels, self.highest)
        if positions is None:
            if asked.shape != (len(self),):
                raise InvalidInput("levels", asked.shape, f"of shape ({len(self)},)")
            return slice(0, len(self)), asked
        where = whole_array("positions", positions)
        if where.ndim != 1 or where.shape != asked.shape:
            raise InvalidInput("positions", where.shape, f"whole numbers of shape {asked.shape}")
        if not where.size:
            return NO_ROWS, _NO_LEVELS
        if not 0 <= int(where.min()) <= int(where.max()) < len(self):
            allowed = f"from 0 to {len(self) - 1}"
            raise InvalidInput("positions", [int(where.min()), int(where.max())], allowed)
        # A level is a byte: sort it along with its position, in one number.
        pairs = where.astype(np.int64) << 8 | asked
        pairs.sort()
        rows = pairs >> 8
        if bool((np.diff(rows) == 0).any()):
            raise InvalidInput("positions", "a repeated position", "different from one another")
        return rows, (pairs & 255).astype(np.uint8)


def _follow(slots: IntArray) -> bool:
    """Return whether each slot is one more than the slot before it."""
    if not slots.size or int(slots[-1]) - int(slots[0]) != slots.size - 1:
        return not slots.size
    expected = np.arange(_BLOCK) + slots[0]
    for start in range(0, slots.size, _BLOCK):
        block = slots[start : start + _BLOCK]
        if not bool((block == expected[: block.size]).all()):
            return False
        expected += _BLOCK
    return True
