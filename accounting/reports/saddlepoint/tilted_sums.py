"""Bounds of delta and epsilon from a history's cumulants at tabulated tilts, in one direction.

The cumulants of independent losses add. With K their sum, t > 0 and m(t) = t^t / (1 + t)^(1 + t),

    delta(epsilon) <= exp(K - epsilon t) m(t)                       (the bound of Rényi accounting)
    |delta(epsilon) - delta_2| <= 1.12 exp(K - epsilon t) m(t) P / K''^(3/2)
    delta_2 = exp(K - t K' + t^2 K'' / 2) D(epsilon + (t + 1/2) K'' - K'),

D the delta of sqrt(K'')-GDP and P the sum of the third absolute central moments of the tilted
losses. The second is Berry-Esseen's theorem (0.56: Shevtsova 2010) for an integrand that rises to
m(t) and falls again. Both hold at *every* t, so bounds are taken at tabulated tilts, without
interpolation, from the best of those tried. Near the saddle point, delta_2 approximates delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from accounting.conversions import gdp_tail
from accounting.exact.validation import BoolArray, FloatArray, IntArray
from accounting.reports.saddlepoint.loss_columns import CumulantTable
from accounting.reports.saddlepoint.tilted_losses import RELATIVE_ERROR, UNKNOWN_THIRD

_BERRY_ESSEEN: Final = 0.56
# Rounding of a few sums, relative to the magnitudes in them.
_SUM_ERROR: Final = 2.0**-47
# Places from the saddle point of the tilts tried for bounds: the best one for an upper bound lies
# below it.
_NEAR = np.array([-20, -14, -10, -7, -5, -4, -3, -2, -1, 0, 1, 2])
_BELOW, _HERE = np.array([-4, -3, -2, -1, 0]), np.array([0])
_ROOT_STEPS, _ACCURACY, _MARGIN = 30, 1e-11, 0.01
# Values, mostly logarithms, are cut off at this size: only their sign and order matter there.
_CUT = 60.0
# An argument of the normal tail from which on its logarithm is below -5e7.
_FAR = 1e4
# No epsilon up to here overflows; losses that are known are far below, and a larger one counts as
# this one.
LARGEST_EPSILON: Final = 1e25


class TiltedSums:
    """The cumulants of n histories at k tilts, summed over their steps; one direction.

    `counts`: steps in each column of `table`, float64, shape (n, columns), each row with at least
    one step. Results are natural logarithms of delta, or epsilon in nats, shape (n,).
    """

    def __init__(self, table: CumulantTable, counts: FloatArray) -> None:
        self.tilts = table.tilts
        # log of m(t), and what K' exceeds epsilon by at the saddle point.
        self._log_peak = -(self.tilts * np.log1p(1.0 / self.tilts) + np.log1p(self.tilts))
        self._excess = 1.0 / self.tilts + 1.0 / (1.0 + self.tilts)
        self._steps = counts.sum(axis=1)
        self.cumulant = counts @ table.cumulant
        self.mean = counts @ table.mean
        self._variance = counts @ table.variance
        self.sigma = np.sqrt(self._variance)
        self._third = counts @ table.third
        self.known = np.count_nonzero(self._third < UNKNOWN_THIRD, axis=1)
        # log of e^K(t) m(t), from above.
        self.height = self.cumulant * (1.0 + RELATIVE_ERROR) + self._log_peak * (1.0 - _SUM_ERROR)
        # From here on delta is exactly 0.
        self.largest_loss = _largest_loss(table.largest, counts)

    def log_delta(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (lower, upper) bounds of log delta at `epsilon`, shape (n,)."""
        out = epsilon >= self.largest_loss
        epsilon = np.minimum(epsilon, LARGEST_EPSILON)
        place = self._place_of_saddle(epsilon)
        lower, upper = self._at(self._near(place, _NEAR), epsilon[:, np.newaxis])
        high = np.minimum(np.minimum(upper.min(axis=1), self._log_renyi(epsilon)), 0.0)
        low = np.minimum(lower.max(axis=1), high)
        return np.where(out, -np.inf, low), np.where(out, -np.inf, high)

    def _log_renyi(self, epsilon: FloatArray) -> FloatArray:
        """Return the least of the bounds by K alone, over all tilts."""
        spent = np.multiply.outer(epsilon * (1.0 - _SUM_ERROR), self.tilts)
        return np.asarray((self.height - spent).min(axis=1))

    def _at(self, places: IntArray, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (lower, upper) bounds, logs, by the tilts in `places`, shape (n, m)."""
        epsilon = np.minimum(epsilon, LARGEST_EPSILON)
        t = self.tilts[places]
        cumulant, mean, variance, third = (
            np.take_along_axis(sums, places, axis=1)
            for sums in (self.cumulant, self.mean, self._variance, self._third)
        )
        sigma = np.sqrt(variance)
        shifted = epsilon + (t + 0.5) * variance - mean
        size = 1.0 + np.abs(shifted) / sigma + sigma
        rounding = cumulant + t * (epsilon + mean) + t * (t + 1.0) * variance + size * size
        rounding += 8.0 + size / sigma * (epsilon + (t + 0.5) * variance + mean)
        slack = RELATIVE_ERROR * cumulant + _SUM_ERROR * rounding
        # How far the normal distribution is from the sum's, and from that of the exact moments.
        distance = _BERRY_ESSEEN * third / (variance * sigma) * (1.0 + 8.0 * RELATIVE_ERROR)
        root_steps = np.sqrt(self._steps)[:, np.newaxis]
        distance += RELATIVE_ERROR * (1.0 + root_steps + mean / sigma)
        log_error = math.log(2.0) + np.log(distance) + cumulant - t * epsilon
        log_error += self._log_peak[places] + slack
        log_value = log_delta_2(t, cumulant, mean, variance, epsilon)
        upper = np.logaddexp(log_value + slack, log_error)
        gap = np.minimum(log_error - log_value + slack, 0.0)
        with np.errstate(divide="ignore"):
            lower = log_value - slack + np.log(-np.expm1(gap))
        # This far out the value is clipped from above, so it gives no lower bound.
        lower = np.where(np.abs(shifted) < _furthest(sigma), lower, -np.inf)
        return lower, upper

    def _place_of_saddle(self, epsilon: FloatArray) -> IntArray:
        """Return the number of tilts below the saddle point, shape (n,)."""
        below = self.mean - self._excess < epsilon[:, np.newaxis]
        return np.asarray(np.sum(below, axis=1, dtype=np.int64))

    def _near(self, place: IntArray, offsets: IntArray) -> IntArray:
        last = np.maximum(self.known - 1, 0)[:, np.newaxis]
        return np.asarray(np.clip(np.minimum(place[:, np.newaxis], last) + offsets, 0, last))

    def epsilon(self, log_delta: float) -> tuple[FloatArray, FloatArray]:
        """Return (lower, upper) bounds of the epsilon at which log delta is `log_delta`."""
        ceiling = np.minimum(self._renyi_epsilon(log_delta), self.largest_loss)
        place_above, place_below = self._places(log_delta)
        upper = self._upper_epsilon(place_above, ceiling, log_delta)
        return np.minimum(self._lower_epsilon(place_below, ceiling, log_delta), upper), upper

    def _places(self, log_delta: float) -> tuple[IntArray, IntArray]:
        """Return the numbers of tilts whose delta is above the target.

        Each tilt at the epsilon of which it is the saddle point: delta falls along the tilts. By
        delta_1 plus the error bound, and by delta_1 less the error bound.
        """
        t = self.tilts
        saddle = self.mean - self._excess
        log_height = self.cumulant - saddle * t
        curvature = self._variance + (1.0 / t**2 + 1.0 / (1.0 + t) ** 2)
        log_1 = log_height - 0.5 * np.log(curvature)
        log_1 -= np.log(t * (1.0 + t)) + 0.5 * math.log(2.0 * math.pi)
        log_height += np.log(self._third) - 1.5 * np.log(self._variance)
        log_height += self._log_peak + math.log(2.0 * _BERRY_ESSEEN)
        negative = saddle < 0.0
        above = np.logaddexp(log_1, log_height) > log_delta
        with np.errstate(divide="ignore"):
            less = log_1 + np.log(-np.expm1(np.minimum(log_height - log_1, 0.0)))

        def count(test: BoolArray) -> IntArray:
            return np.asarray(np.sum(test | negative, axis=1, dtype=np.int64))

        return count(above), count(less > log_delta)

    def _renyi_epsilon(self, log_delta: float) -> FloatArray:
        """Return the least of the bounds by K alone, over all tilts."""
        bounds = (self.height - log_delta * (1.0 + _SUM_ERROR)) / self.tilts
        return np.asarray(np.maximum(bounds.min(axis=1) * (1.0 + _SUM_ERROR), 0.0))

    def _upper_epsilon(self, place: IntArray, ceiling: FloatArray, log_delta: float) -> FloatArray:
        """Return an epsilon, at most `ceiling`, with an upper bound within the target."""
        near = self._near(place, _NEAR)
        saddle = self._saddle_epsilon(self._near(place, _HERE))[:, 0]
        at = np.where(place < self.known, np.clip(saddle, 0.0, ceiling), ceiling)
        best = self._at(near, at[:, np.newaxis])[1].argmin(axis=1)
        chosen = np.take_along_axis(near, best[:, np.newaxis], axis=1)

        def log_ratio(epsilon: FloatArray) -> FloatArray:
            return self._one(1, chosen, epsilon) - log_delta

        # At a fixed tilt the bound falls with epsilon. Often it is above the target throughout.
        low = np.where(log_ratio(ceiling) <= 0.0, 0.0, ceiling)
        high = falling_root(log_ratio, low, ceiling)[1]
        return np.where(log_ratio(low) <= 0.0, low, high)

    def _one(self, part: int, chosen: IntArray, epsilon: FloatArray) -> FloatArray:
        """Return one part of `_at` for one tilt a user, shape (n,)."""
        return self._at(chosen, epsilon[:, np.newaxis])[part][:, 0]

    def _lower_epsilon(self, place: IntArray, ceiling: FloatArray, log_delta: float) -> FloatArray:
        """Return an epsilon >= 0 at which a lower bound is above the target, or 0."""
        near = self._near(place, _BELOW)
        saddles = np.clip(self._saddle_epsilon(near), 0.0, ceiling[:, np.newaxis])
        reached = self._at(near, saddles)[0] > log_delta
        best = np.where(reached, saddles, -1.0).argmax(axis=1)[:, np.newaxis]
        chosen = np.take_along_axis(near, best, axis=1)

        def log_ratio(epsilon: FloatArray) -> FloatArray:
            return self._one(0, chosen, epsilon) - log_delta

        # At a fixed tilt the bound is good only around the epsilon of its saddle point.
        start = np.take_along_axis(saddles, best, axis=1)[:, 0]
        some = reached.any(axis=1)
        low = falling_root(log_ratio, start, np.where(some, ceiling, start))[0]
        return np.where(some, low, 0.0)

    def _saddle_epsilon(self, places: IntArray) -> FloatArray:
        """Return the epsilons whose saddle points are the tilts in `places`, shape (n, m)."""
        return np.asarray(np.take_along_axis(self.mean, places, axis=1) - self._excess[places])


def _largest_loss(largest: FloatArray, counts: FloatArray) -> FloatArray:
    """Return the largest possible loss of each history, rounded up; shape (n,)."""
    bounded = largest < math.inf
    total = counts @ np.where(bounded, largest, 0.0) * (1.0 + 2.0**-40)
    return np.where((counts @ ~bounded) > 0.0, math.inf, total)


def log_delta_2(
    t: FloatArray,
    cumulant: FloatArray,
    mean: FloatArray,
    variance: FloatArray,
    epsilon: FloatArray,
) -> FloatArray:
    """Return log delta_2 at any tilt t > 0, in the shape of the arguments."""
    correction = cumulant - t * mean + 0.5 * t * t * variance
    return np.asarray(
        correction + _log_gdp_delta(np.sqrt(variance), epsilon + (t + 0.5) * variance - mean)
    )


def _log_gdp_delta(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Return log delta of mu-GDP for any real epsilon: D(-e) = 1 - exp(-e) + exp(-e) D(e).

    Beyond `_furthest` it is that at `_furthest`, which is more.
    """
    size = np.minimum(np.abs(epsilon), _furthest(mu))
    value = gdp_tail.log_delta(mu, size)
    with np.errstate(under="ignore", divide="ignore"):
        mirrored = np.log(-np.expm1(-size) + np.exp(value - size))
    return np.where(epsilon < 0.0, mirrored, value)


def _furthest(mu: FloatArray) -> FloatArray:
    """Return the epsilon at which the argument of the normal tail is `_FAR`."""
    return mu * (_FAR + 0.5 * mu)


def falling_root(
    function: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return an interval around the point where a falling function crosses 0, shape (n,) each.

    The function is > 0 at its lower end and <= 0 at its upper end, unless these are the ends given.
    Three bisections, then false position that halves the value at an end that stays (Illinois) and
    keeps off the ends, so that both close in.
    """
    value_low, value_high = np.full_like(low, _CUT), np.full_like(high, -_CUT)
    stayed = np.zeros(low.shape)
    for step in range(_ROOT_STEPS):
        share = value_low / (value_low - value_high) if step >= 3 else np.full(low.shape, 0.5)
        middle = low + (high - low) * np.clip(share, _MARGIN, 1.0 - _MARGIN)
        value = np.clip(function(middle), -_CUT, _CUT)
        # A converged entry no longer changes, so no user's result depends on the other users.
        open_ = high - low > _ACCURACY * high
        rising, falling = open_ & (value > 0.0), open_ & (value <= 0.0)
        value_high = np.where(rising & (stayed > 0.0), 0.5 * value_high, value_high)
        value_low = np.where(falling & (stayed < 0.0), 0.5 * value_low, value_low)
        low, value_low = np.where(rising, middle, low), np.where(rising, value, value_low)
        high, value_high = np.where(falling, middle, high), np.where(falling, value, value_high)
        stayed = np.where(rising, 1.0, -1.0)
        if not open_.any():
            break
    return low, high
