"""What a recurring step changed, for a block of a roster and for all of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from accounting.costs.tariffs import LevelArray
from accounting.exact.validation import BoolArray, IntArray
from accounting.filters.account_block import NOBODY
from accounting.filters.roster import EXHAUSTED, HALTED, LISTED, FlagArray
from accounting.filters.slot_map import Rows

_Number = TypeVar("_Number", bound=np.generic)


class OdometerRise(NamedTuple):
    """Whose odometer rose in an account: positions, and the rungs before; now they are as said."""

    positions: IntArray
    ticks_before: IntArray


class StepOutcome(NamedTuple):
    """What a step changed. All that is not named is as after the step before.

    Before its first step a user counts as admitted, at the level asked for, and not as exhausted.
    Positions ascend.

    Attributes:
        halted: positions of those who are not admitted, and were.
        refused_by: the first account that has too little left for each of these, uint8; under
            `clip` the first that has too little for any level.
        readmitted: positions of those who are admitted, and were not.
        exhausted: positions of those who have nothing left in some account, and had.
        regranted: under `clip`, positions of those admitted who are granted another level than
            before; or, if they were not admitted before or their level was set, than asked for.
        levels: what these are granted, uint8.
        raised: by account, whose odometer rose.
        settled: positions of all whose rows were written; None for everybody.
        behind: whether any of them was charged for steps before, too.
    """

    halted: IntArray
    refused_by: npt.NDArray[np.uint8]
    readmitted: IntArray
    exhausted: IntArray
    regranted: IntArray
    levels: LevelArray
    raised: tuple[OdometerRise, ...]
    settled: IntArray | None
    behind: bool = False


def told(
    where: IntArray,
    *,
    asked: LevelArray,
    granted: LevelArray,
    exhausted: BoolArray,
    flags_before: FlagArray,
    granted_before: LevelArray | None,
    refused_by: npt.NDArray[np.uint8],
    raised: Sequence[tuple[IntArray, IntArray]],
) -> tuple[StepOutcome, FlagArray]:
    """Return (what is news of some users of a roster; their flags now).

    `where`: their positions; `granted_before`: given if levels may be lower than asked for;
    `raised`: for each account the positions whose odometer rose, and the rungs before.
    """
    halted = (granted == 0) & (asked > 0)
    flags: FlagArray = halted.view(np.uint8) | exhausted.view(np.uint8) << 1
    regranted = NOBODY
    if granted_before is not None:
        afresh = flags_before & (LISTED | HALTED) != 0
        believed = np.where(afresh, asked, granted_before)
        regranted = np.flatnonzero((granted != believed) & ~halted)
    news = flags ^ flags_before
    left = back = empty = NOBODY
    if news.any():
        left = np.flatnonzero(news & flags & HALTED)
        back = np.flatnonzero(news & flags_before & HALTED)
        empty = np.flatnonzero(news & flags & EXHAUSTED)
    outcome = StepOutcome(
        halted=where[left],
        refused_by=refused_by[left],
        readmitted=where[back],
        exhausted=where[empty],
        regranted=where[regranted],
        levels=granted[regranted],
        raised=tuple(OdometerRise(*risen) for risen in raised),
        settled=None,
    )
    return outcome, flags


def joined(
    parts: Sequence[StepOutcome], settled: IntArray | None, accounts: int, *, behind: bool
) -> StepOutcome:
    """Return the outcome of blocks in the order of their positions."""
    if not parts:
        nobody = np.empty(0, dtype=np.uint8)
        raised = (OdometerRise(NOBODY, NOBODY),) * accounts
        return StepOutcome(NOBODY, nobody, NOBODY, NOBODY, NOBODY, nobody, raised, settled, behind)
    return StepOutcome(
        halted=_joined(part.halted for part in parts),
        refused_by=_joined(part.refused_by for part in parts),
        readmitted=_joined(part.readmitted for part in parts),
        exhausted=_joined(part.exhausted for part in parts),
        regranted=_joined(part.regranted for part in parts),
        levels=_joined(part.levels for part in parts),
        raised=tuple(
            OdometerRise(
                _joined(part.raised[index].positions for part in parts),
                _joined(part.raised[index].ticks_before for part in parts),
            )
            for index in range(accounts)
        ),
        settled=settled,
        behind=behind,
    )


def _joined(parts: Iterable[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    arrays = list(parts)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def positions_at(where: Rows, users: IntArray) -> IntArray:
    """Return the positions of users of a block, who are given as indices."""
    return where[users] if not isinstance(where, slice) else users + where.start
