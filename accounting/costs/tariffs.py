"""Tariffs: the norms of a step on a short grid, and what each of them is charged.

A roster says a user's norm in one byte. Level l of L stands for the norm l C / L, C the clip bound,
rounded up to float64: a norm rounds up to its level, the contribution is clipped to the norm of the
level, and that norm is what is charged. Level 0 is the norm 0, which is charged nothing, and level
L is C itself. Rounding a level any way would be sound as long as the clip is what is charged;
rounded up, nothing of a contribution is lost.

Which level a norm has is decided by comparing float64 numbers. The charges of the levels, whole
units, are a `tariff`: it is computed once (`accounting.measures.tariff`), and what is computed with
exp and log on one machine travels as integers from then on.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from operator import index
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.exact.errors import InvalidInput
from accounting.exact.rounding import UP, float_toward
from accounting.exact.units import MAX_COST_UNITS
from accounting.exact.validation import (
    FloatArray,
    IntArray,
    nonnegative_array,
    positive_finite,
    unit_array,
    whole_array,
    whole_number,
)

LevelArray = npt.NDArray[np.uint8]

MAX_LEVELS: Final = 255
_BLOCK: Final = 2**16  # norms at a time, so that the temporaries stay in the cache


def grid_norms(clip_norm: float, levels: int) -> FloatArray:
    """Return the smallest float64 >= clip_norm l / levels of each l from 0 on; shape (levels + 1,).

    Args:
        clip_norm: the largest norm, finite, > 0.
        levels: how many there are above 0.

    Raises:
        InvalidInput: for other arguments, or a clip norm so small that levels would not differ.
    """
    norms = _grid(positive_finite("clip_norm", clip_norm), index(levels)).copy()
    if not (np.diff(norms) > 0.0).all():
        raise InvalidInput("clip_norm", clip_norm, "large enough for levels that differ")
    return norms


@lru_cache(maxsize=64)
def _grid(largest: float, levels: int) -> FloatArray:
    """The norms, which nobody changes: every step asks for those of its roster again."""
    step = Fraction(largest) / levels
    return np.array([float_toward(step * level, UP) for level in range(levels + 1)])


def norms_of(levels: npt.ArrayLike, clip_norm: float, levels_count: int) -> FloatArray:
    """Return the norm of each level, which is what to clip to: exactly what is charged.

    Args:
        levels: whole numbers from 0 to `levels_count`, any shape; bytes, as a roster has them.
        clip_norm: the norm of the highest level, finite, > 0.
        levels_count: L, 1 to 255.

    Returns:
        Of the shape of `levels`.

    Raises:
        InvalidInput: for other arguments.
    """
    norms = grid_norms(clip_norm, _count(levels_count))
    return np.asarray(norms.take(checked_levels(levels, norms.size - 1)))


def levels_of(norms: npt.ArrayLike, clip_norm: float, levels: int) -> LevelArray:
    """Return the lowest level whose norm is at least each norm, as bytes.

    Args:
        norms: any shape, from 0 to `clip_norm`, rounded up to float64.
        clip_norm: the norm of the highest level, finite, > 0.
        levels: L, 1 to 255.

    Returns:
        uint8, of the shape of `norms`; 0 for a norm of 0 alone.

    Raises:
        InvalidInput: for norms above the clip norm, below 0 or NaN, and for other arguments.
    """
    grid = grid_norms(clip_norm, _count(levels))
    values = nonnegative_array("norms", norms)
    if values.size and values.max() > grid[-1]:
        allowed = f"at most the clip norm {clip_norm!r} throughout: clip first"
        raise InvalidInput("norms", float(values.max()), allowed)
    flat, result = values.reshape(-1), np.empty(values.size, dtype=np.uint8)
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        result[block] = _levels_within(flat[block], grid)
    return result.reshape(values.shape)


def checked_levels(levels: npt.ArrayLike, most: int) -> LevelArray:
    """Return `levels` as bytes if all are whole numbers from 0 to `most`, else raise."""
    array = whole_array("levels", levels)
    if array.size and not 0 <= int(array.min()) <= int(array.max()) <= most:
        bad = array[(array < 0) | (array > most)].flat[0]
        raise InvalidInput("levels", int(bad), f"from 0 to {most}, the highest of the grid")
    checked: LevelArray = array.astype(np.uint8, copy=False)
    return checked


def rising(units: IntArray) -> IntArray:
    """Return charges of levels in their order, of shape (L + 1,) or (L + 1, k), made monotone.

    A charge that was rounded up is one that may be raised to that of the level below.
    """
    raised: IntArray = np.maximum.accumulate(units, axis=0)
    return raised


def checked_tariff(tariff: npt.ArrayLike) -> IntArray:
    """Return a tariff if it is one: int64 units, 0 at level 0, never less at a higher level.

    Args:
        tariff: shape (L + 1,) or (L + 1, k), L from 1 to 255.

    Raises:
        InvalidInput: for anything else.
    """
    units = unit_array("tariff", tariff, MAX_COST_UNITS)
    if units.ndim not in (1, 2) or not 2 <= len(units) <= MAX_LEVELS + 1 or not units.size:
        allowed = f"of shape (L + 1,) or (L + 1, k), L from 1 to {MAX_LEVELS}"
        raise InvalidInput("tariff", units.shape, allowed)
    if units[0].any():
        raise InvalidInput("tariff", units[0].tolist(), "0 at level 0, where nothing is taken")
    if bool((np.diff(units, axis=0) < 0).any()):
        first = int(np.argwhere(np.diff(units, axis=0) < 0)[0][0])
        raise InvalidInput("tariff", units[first + 1].tolist(), f"at least that of level {first}")
    return units


def _levels_within(values: FloatArray, grid: FloatArray) -> LevelArray:
    """Return the levels of one flat block of norms of the grid."""
    # The quotient is rounded; what it gives is moved to where the comparisons say.
    levels = np.ceil(values / grid[-1] * (grid.size - 1)).astype(np.intp)
    np.minimum(levels, grid.size - 1, out=levels)
    while (low := grid.take(levels) < values).any():
        levels += low
    while (high := (levels > 0) & (grid.take(levels - 1, mode="clip") >= values)).any():
        levels -= high
    return np.asarray(levels, dtype=np.uint8)


def _count(levels: int) -> int:
    return whole_number("levels", levels, 1, MAX_LEVELS)
