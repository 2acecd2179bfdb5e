"""Corrections: what was left out of a block of windows is added back to its answers.

Users whose budgets are exhausted are missing from the answers. A second query with its own noise
asks once for a block of windows how much was left out: the sum, over the users and the windows, of
a user's bounded contribution minus the part that was admitted. Everything here is post-processing
of the two queries. It uses public numbers only, and costs no privacy.

With B windows in a block, noisy answers r of noise s, and what was left out, L, of noise t:

    R = r_1 + ... + r_B                            the sum of the answers
    ratio = L / R                                  at the middle of the block
    slope = ratio - the ratio of the block before  per block
    value_d = r_d (1 + ratio + slope (d - middle) / B)

The ratio grows while users run out of budget, so it follows a line within the block. If R is less
than four standard deviations of its own noise, there is no ratio: L / B is added to each answer.
The interval has the noise of the answer, of L and of the ratio before, and about a third of the
slope for a ratio that follows no line. Counts, and sums with a ``lower`` of 0, cannot leave out
less than nothing, so a negative L is 0.

All answers of a block share the noise of L: t / B each on average, in the same direction. So their
intervals can fail together, and a block can lie above or below its neighbours without a cause.

Value_d is the middle of the interval. If few contributions are missing, its error is mostly the
noise of L, and the raw answer is better. So the published value has each ratio multiplied by
1 - t^2 / L^2, or by 0 if this is negative: the nonnegative garrote (Breiman 1995). It estimates the
weight with the least error. The part of L in the squared error is t^2 without it. With it, that
part is t^2 / 3 if nothing was left out, and at most 1.5 t^2. The value stays within the interval.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from streams.answerer.kinds import Floats
from streams.queries.continual_monitoring import quantile_of_noise

_CLEAR: Final = 4.0
"""The standard deviations of its noise that a sum of answers needs for a ratio."""
_UNEVEN: Final = 0.35
"""The part of the slope by which a ratio may miss the line."""


class MissingRatio(NamedTuple):
    """The contributions that a block left out, relative to its answers.

    Attributes:
        value: (d,) for each number of the query; NaN where there is none.
        stddev: (d,) of its noise.
    """

    value: Floats
    stddev: Floats


class Corrected(NamedTuple):
    """The corrected answers of a block.

    Attributes:
        value: (B, d).
        lower, upper: (B, d), the intervals of all numbers of one window together. ``value`` can be
            anywhere within them.
    """

    value: Floats
    lower: Floats
    upper: Floats


def ratio_of(raw: Floats, noise: float, left_out: Floats, stddev: float) -> MissingRatio:
    """Return the ratio of a block.

    Args:
        raw: (B, d), the answers.
        noise: the standard deviation of the noise in each of them.
        left_out: (d,), what was left out, with noise.
        stddev: of that noise; 0 if it is known that no user was left out.
    """
    total = raw.sum(axis=0)
    is_clear = total > _CLEAR * noise * math.sqrt(len(raw))
    divisor = np.where(is_clear, total, np.nan)
    return MissingRatio(left_out / divisor, stddev / divisor)


def correct(
    raw: Floats,
    noise: float,
    left_out: Floats,
    stddev: float,
    before: MissingRatio | None,
    confidence: float,
) -> Corrected:
    """Return the corrected answers of a block, with intervals for all users.

    Args:
        raw, noise, left_out, stddev: as for ``ratio_of``.
        before: the ratio of the block before; None for the first block.
        confidence: with which all intervals of one window hold together.
    """
    count, dimension = raw.shape
    ratio, spread = ratio_of(raw, noise, left_out, stddev)
    if before is None:
        before = MissingRatio(np.full(dimension, np.nan), np.zeros(dimension))
    # Without a ratio before, the ratio is constant within the block.
    follows = np.isfinite(before.value)
    earlier = np.where(follows, before.value, ratio)
    earlier_spread = np.where(follows, before.stddev, 0.0)
    place = ((np.arange(count) - (count - 1) / 2.0) / count)[:, np.newaxis]
    slope = ratio - earlier
    factor = 1.0 + ratio + slope * place
    variance = (
        np.square(factor * noise)
        + np.square(raw * (1.0 + place * follows) * spread)
        + np.square(raw * place * earlier_spread)
        + np.square(_UNEVEN * raw * slope)
    )
    shrunk = _shrink(ratio, spread)
    shrunk_slope = shrunk - np.where(follows, _shrink(before.value, before.stddev), shrunk)
    value = raw * (1.0 + shrunk + shrunk_slope * place)
    has_ratio = np.isfinite(ratio)
    value = np.where(has_ratio, value, raw + _shrink(left_out, stddev) / count)
    middle = np.where(has_ratio, raw * factor, raw + left_out / count)
    variance = np.where(has_ratio, variance, noise**2 + (stddev / count) ** 2)
    width = quantile_of_noise(confidence, dimension) * np.sqrt(variance)
    lower, upper = middle - width, middle + width
    return Corrected(np.clip(value, lower, upper), lower, upper)


def _shrink(estimate: Floats, stddev: float | Floats) -> Floats:
    """Return an estimate by the nonnegative garrote: 0 unless it exceeds its noise."""
    square = np.square(estimate)
    kept = np.maximum(1.0 - np.square(stddev) / np.where(square == 0.0, 1.0, square), 0.0)
    return np.asarray(estimate * kept)
