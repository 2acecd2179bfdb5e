"""Bisection for all entries of an array at once: find where a condition ends.

Both ends are returned, so that the caller can take the one on the safe side. The condition has been
evaluated at both: it holds at the lower end and fails at the upper one, unless that end was given.
So the condition need not be monotone up to the last digits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from accounting.exact.argument_checks import BoolArray, FloatArray, IntArray


def bisected(
    holds: Callable[[FloatArray], BoolArray], low: FloatArray, high: FloatArray, steps: int
) -> tuple[FloatArray, FloatArray]:
    """Return (low, high) around the point where a condition ends, halved `steps` times.

    Args:
        holds: whether each entry of an array of the shape of `low` is below the end.
        low: points where the condition holds.
        high: points where it does not, of the shape of `low`, and not below it.
        steps: the number of halvings.
    """
    for _ in range(steps):
        middle = 0.5 * (low + high)
        below = holds(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low, high


def bisected_floats(
    holds: Callable[[FloatArray, IntArray], BoolArray], high: FloatArray, ulps: int
) -> tuple[FloatArray, FloatArray]:
    """Return (low, high), at most `ulps` apart, around the end of a condition that holds at 0.

    The bits of floats >= 0 have the order of the floats, so halving their distance finds small
    numbers as fast as large ones. Entries that are close enough are not evaluated again.

    Args:
        holds: of (values, rows), whether each value is below the end for its row; shape (m,).
        high: points where the condition does not hold, or 0; finite, >= 0, shape (n,).
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
