"""Bisection, for all entries of an array at once: where a condition ends.

Both ends are returned, so that the caller takes the one that is on the safe side. At every step
the condition was seen to hold at the lower end and to fail at the upper one (or that end is the
one given): nothing rests on the condition being monotone up to the last digits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from accounting.exact.validation import BoolArray, FloatArray, IntArray


def bisected(
    holds: Callable[[FloatArray], BoolArray], low: FloatArray, high: FloatArray, steps: int
) -> tuple[FloatArray, FloatArray]:
    """Return (low, high) around where a condition ends, each interval halved `steps` times.

    Args:
        holds: whether each entry of an array of the shape of `low` is below the end.
        low: where the condition holds.
        high: where it does not; of the shape of `low`, and not below it.
        steps: how often to halve.
    """
    for _ in range(steps):
        middle = 0.5 * (low + high)
        below = holds(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low, high


def bisected_floats(
    holds: Callable[[FloatArray, IntArray], BoolArray], high: FloatArray, ulps: int
) -> tuple[FloatArray, FloatArray]:
    """Return (low, high) around where a condition that holds at 0 ends, at most `ulps` apart.

    The bits of floats >= 0 are ordered as the floats are, so that halving their distance finds the
    smallest numbers as fast as the largest. Entries that are close enough are not asked again.

    Args:
        holds: of (values, rows), whether each value is below the end for its row; shape (m,).
        high: where the condition does not hold, or 0; finite, >= 0, shape (n,).
        ulps: the distance in bits at which an entry is done.
    """
    top = high.view(np.int64).copy()
    bottom = np.zeros_like(top)
    while (rows := np.flatnonzero(top - bottom > ulps)).size:
        middle = bottom[rows] + (top[rows] - bottom[rows]) // 2
        below = holds(middle.view(np.float64), rows)
        bottom[rows[below]] = middle[below]
        top[rows[~below]] = middle[~below]
    return bottom.view(np.float64), top.view(np.float64)
