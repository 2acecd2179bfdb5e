"""Norm levels: a step's norms on a short grid, and the table of what each level is charged.

A roster stores a user's norm in one byte. Level l of L stands for the norm l C / L, rounded up to
float64, where C is the clip norm. A norm rounds up to its level, the contribution is clipped to the
norm of the level, and that norm is charged. Level 0 is norm 0, which is charged nothing; level L is
C itself. Any rounding is sound as long as the clip is what is charged. Rounding up loses nothing of
a contribution.

The level of a norm is decided by comparing float64 numbers. A *cost table* holds the charge of
every level in whole units (`accounting.measures.cost_table`). It is computed once: charges that
depend on one machine's exp and log are stored and sent as integers from then on.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    nonnegative_array,
    positive_finite,
    unit_array,
    whole_number,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import UP, float_toward
from accounting.exact.units import MAX_COST_UNITS

LevelArray = npt.NDArray[np.uint8]

MAX_LEVELS: Final = 255
MAX_GRID_LEVELS: Final = 2**16
_BLOCK: Final = 2**16  # norms at a time, so that the temporaries stay in the cache


def grid_norms(clip_norm: float, levels: int) -> FloatArray:
    """Return the norm of each level: the norm to clip to, and exactly the norm that is charged.

    Args:
        clip_norm: the norm of the highest level, finite, > 0.
        levels: the number of levels above 0, 1 to 65536.

    Returns:
        The smallest float64 >= clip_norm l / levels for l = 0 to levels, shape (levels + 1,).

    Raises:
        InvalidInput: for other arguments, or a clip norm so small that two levels would be equal.
    """
    count = whole_number("levels", levels, 1, MAX_GRID_LEVELS)
    return _grid(positive_finite("clip_norm", clip_norm), count).copy()


@lru_cache(maxsize=64)
def _grid(largest: float, levels: int) -> FloatArray:
    # Cached and not to be changed: every step asks for the grid of its roster again.
    step = Fraction(largest) / levels
    norms = np.array([float_toward(step * level, UP) for level in range(levels + 1)])
    if not (np.diff(norms) > 0.0).all():
        raise InvalidInput("clip_norm", largest, "large enough for distinct levels")
    return norms


def levels_of(norms: npt.ArrayLike, clip_norm: float, levels: int) -> LevelArray:
    """Return the lowest level whose norm is at least each norm, as bytes.

    Args:
        norms: any shape, from 0 to `clip_norm`.
        clip_norm: the norm of the highest level, finite, > 0.
        levels: L, 1 to 255.

    Returns:
        uint8, of the shape of `norms`; 0 only for norm 0.

    Raises:
        InvalidInput: for norms above the clip norm, below 0 or NaN, and for other arguments.
    """
    grid = grid_norms(clip_norm, whole_number("levels", levels, 1, MAX_LEVELS))
    values = nonnegative_array("norms", norms)
    if values.size and values.max() > grid[-1]:
        allowed = f"at most the clip norm {clip_norm!r} throughout: clip first"
        raise InvalidInput("norms", float(values.max()), allowed)
    flat, result = values.reshape(-1), np.empty(values.size, dtype=np.uint8)
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        result[block] = _levels_within(flat[block], grid)
    return result.reshape(values.shape)


def _levels_within(values: FloatArray, grid: FloatArray) -> LevelArray:
    """Return the levels of one flat block of norms."""
    # A quotient takes an eighth of the time of a search in the grid. It is rounded, so comparisons
    # correct the level that it gives.
    levels = np.ceil(values / grid[-1] * (grid.size - 1)).astype(np.intp)
    np.minimum(levels, grid.size - 1, out=levels)
    while (low := grid.take(levels) < values).any():
        levels += low
    while (high := (levels > 0) & (grid.take(levels - 1, mode="clip") >= values)).any():
        levels -= high
    return np.asarray(levels, dtype=np.uint8)


def checked_cost_table(table: npt.ArrayLike) -> IntArray:
    """Return `table` if it is a cost table: int64 units, 0 at level 0, never falling.

    Args:
        table: shape (L + 1,) or (L + 1, k), L from 1 to 255.

    Raises:
        InvalidInput: for anything else.
    """
    units = unit_array("cost_table", table, MAX_COST_UNITS)
    if units.ndim not in (1, 2) or not 2 <= len(units) <= MAX_LEVELS + 1 or not units.size:
        allowed = f"of shape (L + 1,) or (L + 1, k), L from 1 to {MAX_LEVELS}"
        raise InvalidInput("cost_table", units.shape, allowed)
    if units[0].any():
        raise InvalidInput("cost_table", units[0].tolist(), "0 at level 0")
    if bool((np.diff(units, axis=0) < 0).any()):
        first = int(np.argwhere(np.diff(units, axis=0) < 0)[0][0])
        allowed = f"at least the charge of level {first}"
        raise InvalidInput("cost_table", units[first + 1].tolist(), allowed)
    return units
