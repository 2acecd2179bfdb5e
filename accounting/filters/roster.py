"""Who is charged by standing steps: for every position a slot, a level, and what it was granted.

The columns are all that has to be stored of a roster besides the balances. Steps are counted in
them from an epoch on, so that four bytes are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.costs.tariffs import MAX_LEVELS, LevelArray, checked_levels
from accounting.exact.errors import InvalidInput
from accounting.exact.validation import BoolArray, IntArray, unit_array, whole_array, whole_number
from accounting.filters.due_steps import StepArray, longer
from accounting.filters.slot_map import MAX_SLOT, Rows, SlotMap

FlagArray = npt.NDArray[np.uint8]

HALTED: Final = np.uint8(1)
EXHAUSTED: Final = np.uint8(2)
LISTED: Final = np.uint8(4)  # within a step: the level was set with it
EPOCH: Final = 2**31  # steps after which they are counted from 0 again
_MAX_STEPS: Final = 2**62


class RosterColumns(NamedTuple):
    """What to store of a roster besides the balances, a row for each position.

    Attributes:
        level: what is asked for, uint8.
        granted: what the last step granted, uint8.
        flags: 1 for who was not admitted, 2 for who had nothing left, in the last step; uint8.
        since: after which step the balances were last brought up to date; int64.
    """

    level: LevelArray
    granted: LevelArray
    flags: FlagArray
    since: IntArray


class RosterState:
    """The columns of a roster, which whoever takes its steps reads and writes.

    Args:
        accounts: how many accounts every user has.
        highest: L, the highest level.

    Attributes:
        level, granted, flags: see `RosterColumns`; uint8, shape (n,).
        since: the same, counted from the epoch; uint32, shape (n,).
        steps: how many were taken.
        epoch: the step from which `since` is counted.
        slots: for each account, where the rows of the positions are.
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
        """The steps taken, counted from the epoch."""
        return self.steps - self.epoch

    def admitted(self) -> BoolArray:
        """Return who was admitted to the last step, (n,)."""
        return np.asarray(self.flags & HALTED == 0)

    def exhausted(self) -> BoolArray:
        """Return who had nothing left after the last step, (n,)."""
        return np.asarray(self.flags & EXHAUSTED != 0)

    def turn_epoch(self) -> None:
        """Count steps from here; all balances are up to date."""
        self.since[:] = 0
        self.epoch = self.steps

    def enrol(self, slots: Sequence[IntArray], levels: npt.ArrayLike) -> int:
        """Add positions behind the others; return how many. See `RecurringCharge.enrol`."""
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
        self.since = longer(self.since, asked.size, self.now)
        return asked.size

    def columns(self, where: Rows) -> RosterColumns:
        """Return what to store of some positions."""
        since = self.since[where].astype(np.int64) + self.epoch
        level, granted, flags = self.level[where], self.granted[where], self.flags[where]
        return RosterColumns(level.copy(), granted.copy(), flags.copy(), since)

    def restore(self, columns: RosterColumns, steps: int) -> None:
        """Take over stored columns after so many steps; the levels are known already.

        Raises:
            InvalidInput: if no roster has such columns.
        """
        granted = checked_levels(columns.granted, self.highest)
        flags = checked_levels(columns.flags, int(HALTED | EXHAUSTED))
        count = whole_number("steps", steps, 0, _MAX_STEPS)
        since = unit_array("since", columns.since, count)
        for column in (granted, flags, since):
            if column.shape != self.level.shape:
                raise InvalidInput("columns", column.shape, f"of shape {self.level.shape}")
        if bool((granted > self.level).any()):
            raise InvalidInput("granted", int(granted.max()), "at most the level throughout")
        epoch = int(since.min(initial=count))
        if count - epoch >= 2 * EPOCH:
            raise InvalidInput("since", epoch, f"not {2 * EPOCH} before the steps, {count}")
        self.steps, self.epoch = count, epoch
        self.granted, self.flags = granted.copy(), flags.copy()
        self.since = (since - epoch).astype(np.uint32)

    def checked_levels(
        self, positions: npt.ArrayLike | None, levels: npt.ArrayLike | None
    ) -> tuple[Rows | None, LevelArray | None]:
        """Return (whose levels are set, ascending or all of them; these levels)."""
        if levels is None:
            if positions is not None:
                raise InvalidInput("levels", None, "given if positions are")
            return None, None
        asked = checked_levels(levels, self.highest)
        if positions is None:
            if asked.shape != (len(self),):
                raise InvalidInput("levels", asked.shape, f"of shape ({len(self)},)")
            return slice(None), asked
        where = whole_array("positions", positions)
        if where.ndim != 1 or where.shape != asked.shape:
            raise InvalidInput("positions", where.shape, f"whole numbers of shape {asked.shape}")
        if where.size and not 0 <= int(where.min()) <= int(where.max()) < len(self):
            allowed = f"from 0 to {len(self) - 1}"
            raise InvalidInput("positions", [int(where.min()), int(where.max())], allowed)
        # A level is a byte: sorted along with its position, in one number.
        pairs = where.astype(np.int64) << 8 | asked
        pairs.sort()
        rows = pairs >> 8
        if bool((np.diff(rows) == 0).any()):
            raise InvalidInput("positions", "one of them twice", "different from one another")
        return rows, (pairs & 255).astype(np.uint8)
