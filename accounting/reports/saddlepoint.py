"""Saddle point: (epsilon, delta) of compositions, in a time independent of their length.

L is the privacy loss of a history, K(t) = log E e^{t L} the sum of its steps' cumulant functions,
and F(z) = K(z) - z epsilon - log z - log(1 + z). At the saddle point, F'(t) = 0, which is
K'(t) = epsilon + 1/t + 1/(1 + t), Alghamdi et al. (2022) approximate delta twice:

    delta_1 = exp(F(t)) / sqrt(2 pi F''(t)),
    delta_2 = exp(K - epsilon t) E[e^{t (epsilon - Z)} (1 - e^{epsilon - Z})_+],  Z ~ N(K', K'').

The second has a proven error at *every* t > 0, with P the sum of the third absolute central moments
of the steps' tilted losses and m(t) = t^t / (1 + t)^(1 + t):

    |delta - delta_2| <= 1.12 exp(K - epsilon t) m(t) P / K''^(3/2).

This is Berry-Esseen's theorem (0.56: Shevtsova 2010) for e^{-t x} (1 - e^{-x})_+, a function of the
loss beyond epsilon that rises to m(t) and falls again.

The losses of a step are those of `reports.pld.discretisation`: losses that dominate the step for
upper bounds, and losses that it dominates for lower ones. Every expectation is then a finite sum,
and there is no quadrature whose error has to be bounded. The intervals include the stated errors of
those masses and losses, the outcomes beyond their cut, and the rounding of the sums here.

Neighbours add or remove one user; the larger direction counts. These are reports on realised
histories. They never admit a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.special import exprel

from accounting.conversions.gdp import log_delta as log_gdp_delta
from accounting.costs.mechanisms import Mechanism
from accounting.exact.argument_checks import FloatArray, IntArray
from accounting.exact.invalid_input import InvalidInput
from accounting.reports.bounds import Bounds
from accounting.reports.gaussian import GaussianReport
from accounting.reports.pld import discretisation
from accounting.reports.pld.losses import steps_of
from accounting.reports.pld.transforms import log_largest_weight

_BERRY_ESSEEN: Final = 0.56
_CUT: Final = 20.0  # outcomes beyond this many standard deviations have a mass below 1e-88
# Tilts to the octave; the logs of the least one, and of the largest one times the deviation.
_DENSITY, _LOWEST, _REACH = 16, -8.0, 4.0
_NEAR: Final = np.array([-8, -4, -2, -1, 0, 1, 2, 4])  # tilts tried for a bound, around one
_HALVINGS = 40
_USERS, _TILTS = 256, 32  # at a time, so that what is computed for them stays in the cache
_SMALLEST_VARIANCE: Final = 1e-100  # its powers are normal float64 numbers
# Rounding of the log of one step's sum, of sums over steps, and of means and variances: relative to
# 1, to the magnitudes in the sum, and to both the magnitudes and the deviation.
_STEP_ERROR, _SUM_ERROR, _MOMENT_ERROR = 2.0**-48, 2.0**-46, 2.0**-40
_FAR: Final = 2.0**12  # an argument of the normal tail whose logarithm is below -8e6


class SaddlePointReport:
    """Saddle-point bounds for realised histories; add or remove one user, the larger direction.

    `mechanisms`: that of each level; `norms`: the levels, shape (levels,), > 0, in the norm of
    their mechanism.

    The estimate is delta_2. Histories of Gaussian steps alone, where Z is the loss, are exact but
    for rounding. Where the interval of another history says nothing, `InvalidInput` is raised.
    """

    def __init__(self, mechanisms: Sequence[Mechanism], norms: FloatArray) -> None:
        self._gaussian = GaussianReport(mechanisms, norms)
        self._steps = steps_of(mechanisms, norms)
        sources = self._steps.sources
        narrowest = min(source.deviation for source in sources)
        highest = _REACH - math.log2(max(narrowest, discretisation.SMALLEST_DEVIATION))
        self._tilts = np.exp2(np.arange(_LOWEST, highest, 1.0 / _DENSITY))
        # Of each direction and level: `cumulants` of the losses above, below and between; and
        # what `_Composed` calls error, shift, infinite and largest.
        self._sums = np.zeros((2, len(sources), 3, 4, self._tilts.size))
        self._limits = np.zeros((2, len(sources), 4))
        self._made = self._steps.free.copy()

    def delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds of delta at `epsilon`, in nats, finite, >= 0.

        `counts`: int64, steps at each level, shape (n, levels). InvalidInput: an upper bound is 1.
        """
        return self._gaussian.exact_or(
            counts,
            lambda rows: self._gaussian.delta(rows, epsilon),
            lambda rows: self._larger(rows, lambda part: part.delta(epsilon), "epsilon", epsilon),
        )

    def epsilon(self, counts: IntArray, delta: float) -> Bounds:
        """Return bounds of epsilon, in nats, at 0 < `delta` < 1; `counts` as for `delta`.

        InvalidInput: an upper bound is infinite.
        """
        return self._gaussian.exact_or(
            counts,
            lambda rows: self._gaussian.epsilon(rows, delta),
            lambda rows: self._larger(rows, lambda part: part.epsilon(delta), "delta", delta),
        )

    def approximations(self, counts: IntArray, epsilon: float) -> FloatArray:
        """Return delta_1 and delta_2, shape (2, n), neither a bound; arguments as for `delta`."""
        used = counts[:, ~self._steps.free].any(axis=1)
        result = np.zeros((2, used.size))
        for part in self._composed(counts[used]):
            found = np.exp(part.log_approximations(epsilon))
            result[:, used] = np.maximum(result[:, used], found)
        return result

    def _larger(
        self, counts: IntArray, ask: Callable[[_Composed], Bounds], argument: str, value: float
    ) -> Bounds:
        """Return the bounds of the larger direction; an infinite upper one is refused."""
        result = np.zeros((3, counts.shape[0]))
        for first in range(0, counts.shape[0], _USERS):
            chunk = slice(first, first + _USERS)
            for part in self._composed(counts[chunk]):
                result[:, chunk] = np.maximum(result[:, chunk], ask(part))
        lower, estimate, upper = result
        if vacuous := np.count_nonzero(upper == math.inf):
            many = f"{vacuous} of {upper.size} histories"
            raise InvalidInput(argument, value, f"larger, or the method another, for {many}")
        lower = np.minimum(lower, upper)
        return Bounds(lower, np.clip(estimate, lower, upper), upper)

    def _composed(self, counts: IntArray) -> list[_Composed]:
        """Return the losses of some histories, in each direction."""
        steps = counts.astype(np.float64)
        steps[:, self._steps.free] = 0.0
        used = np.flatnonzero(steps.any(axis=0))
        for level in used[~self._made[used]].tolist():
            self._fill(level)
        return [
            _Composed(self._tilts, steps[:, used], self._sums[way, used], self._limits[way, used])
            for way in range(2)
        ]

    def _fill(self, level: int) -> None:
        source = self._steps.sources[level]
        losses = discretisation.discretised(source, discretisation.base_step(source, _CUT), _CUT)
        error = 2.0 * losses.error + _STEP_ERROR
        shift = discretisation.LOSS_ERROR * losses.largest
        infinite = 1.0 if self._steps.unbounded[level] else losses.infinity_mass
        for added, sums in enumerate(self._sums):
            above, largest = cumulants(losses.above, bool(added), self._tilts)
            below, between = 0.0 * above, above  # nothing is lost
            if losses.below is not None:
                below, _ = cumulants(losses.below, bool(added), self._tilts)
                # The errors of the two discretisations are of second order and about as 2 to 1.
                between = (above + 2.0 * below) / 3.0
            sums[level] = above, below, between
            self._limits[added, level] = error, shift, infinite, largest
        self._made[level] = True


def cumulants(
    losses: discretisation.LatticeLoss, added: bool, tilts: FloatArray
) -> tuple[FloatArray, float]:
    """Return K, K', K'' and the third absolute central moment, (4, tilts); and the largest loss."""
    loss, log_mass = losses.directed(added)
    moments = np.empty((4, tilts.size))
    for first in range(0, tilts.size, _TILTS):
        part = slice(first, first + _TILTS)
        mass = np.multiply.outer(tilts[part], loss) + log_mass
        top = mass.max(axis=1)
        mass -= top[:, np.newaxis]
        # Not below e^-700, because subnormal numbers are slow.
        np.exp(np.maximum(mass, -700.0, out=mass), out=mass)
        total = mass.sum(axis=1)
        mean = mass @ loss / total
        size = np.abs(loss - mean[:, np.newaxis])
        mass *= size * size
        third = np.einsum("tj,tj->t", mass, size) / total
        moments[:, part] = top + np.log(total), mean, mass.sum(axis=1) / total, third
    return moments, float(loss.max())


class _Sums(NamedTuple):
    """K, K' and K'' of histories at some tilts, and the log of the error at epsilon 0."""

    tilt: FloatArray
    cumulant: FloatArray
    mean: FloatArray
    variance: FloatArray
    error: FloatArray

    @property
    def epsilon(self) -> FloatArray:
        """The epsilon whose saddle point each tilt is."""
        return np.asarray(self.mean - 1.0 / self.tilt - 1.0 / (1.0 + self.tilt))

    def log_delta_1(self, epsilon: FloatArray) -> FloatArray:
        """Return log delta_1; the tilt is the saddle point of `epsilon`."""
        t = self.tilt
        curvature = self.variance + 1.0 / t**2 + 1.0 / (1.0 + t) ** 2
        height = self.cumulant - t * epsilon - np.log(t) - np.log1p(t)
        return np.asarray(height - 0.5 * np.log(2.0 * math.pi * curvature))

    def log_delta_2(self, epsilon: FloatArray) -> FloatArray:
        """Return log delta_2: that of exp(K - t K' + t^2 K'' / 2) D(epsilon + (t + 1/2) K'' - K').

        D is the delta of sqrt(K'')-GDP, because the expectation is a Gaussian integral.
        """
        t, mean, variance = self.tilt, self.mean, self.variance
        correction = self.cumulant - t * mean + 0.5 * t * t * variance
        return np.asarray(correction + _log_gdp_delta(np.sqrt(variance), self.shifted(epsilon)))

    def shifted(self, epsilon: FloatArray) -> FloatArray:
        """Return the argument of D in `log_delta_2`."""
        return np.asarray(epsilon + (self.tilt + 0.5) * self.variance - self.mean)

    def near(self, place: IntArray) -> _Sums:
        """Return the sums at some tilts around the one at a place, shape (n, tried)."""
        places = np.clip(place[:, np.newaxis] + _NEAR, 0, self.tilt.size - 1)
        others = (np.take_along_axis(part, places, axis=1) for part in self[1:])
        return _Sums(self.tilt[places], *others)

    def first_zero(self, falling: Callable[[_Sums], FloatArray]) -> _Sums:
        """Return the sums, shape (n,), at the first tilt at which a function is <= 0.

        Between the tilts of this table log K'' is taken to be linear. That is for estimates: bounds
        are taken at the tilts themselves.
        """
        reached = falling(self) <= 0.0
        reached[:, -1] = True
        right = np.maximum(reached.argmax(axis=1), 1)
        rows, left = np.arange(right.size), right - 1
        start, gap = self.tilt[left], self.tilt[right] - self.tilt[left]
        cumulant, mean, variance, error = (part[rows, left] for part in self[1:])
        rate = np.log(self.variance[rows, right] / variance) / gap
        rise = np.maximum(self.mean[rows, right] - mean, gap * _SMALLEST_VARIANCE)
        variance = rise / (gap * exprel(rate * gap))

        def at(x: FloatArray) -> _Sums:
            u = np.where(np.abs(rate * x) < 1e-5, 1e-5, rate * x)
            square = variance * x * x * (exprel(u) - 1.0) / u
            height, moved = cumulant + mean * x + square, mean + variance * x * exprel(u)
            return _Sums(start + x, height, moved, variance * np.exp(u), error)

        return at(_crossing(lambda x: falling(at(x)), 0.0 * gap, gap)[1])


class _Composed:
    """The composed losses of n histories in one direction.

    `counts`: steps at each level, (n, levels), each row with a step; `sums` and `limits`: of these
    levels, as in `SaddlePointReport`. A history's masses are off by a factor of e^error, its losses
    by `shift`. Outcomes of the mass `infinite` are not among them. `largest` is the largest loss.
    """

    def __init__(
        self, tilts: FloatArray, counts: FloatArray, sums: FloatArray, limits: FloatArray
    ) -> None:
        sides = np.tensordot(counts, sums, 1)  # (n, sides, sums, tilts)
        root_steps = np.sqrt(counts.sum(axis=1))[:, np.newaxis]
        self._above, self._below, self._between = (
            _sums(tilts, root_steps, side) for side in sides.transpose(1, 2, 0, 3)
        )
        error, shift, infinite, largest = (counts @ limits).T
        self._error, self._shift = error[:, np.newaxis], shift[:, np.newaxis]
        self._infinite = np.minimum(infinite * (1.0 + 2.0**-40), 1.0)
        self._largest = largest * (1.0 + 2.0**-40) + shift

    def delta(self, epsilon: float) -> Bounds:
        """Return bounds of delta, shape (n,); an upper bound that is not below 1 is infinite."""
        log_upper = self._log_upper(self._above, np.full(self._largest.shape, epsilon))
        log_lower = self._log_lower(self._below, np.full((len(self._largest), 1), epsilon))
        upper = np.exp(np.minimum(log_upper, 0.0)) + self._infinite
        upper = upper * (1.0 + 2.0**-50) + np.nextafter(0.0, 1.0)
        return Bounds(
            np.exp(log_lower.max(axis=1)) * (1.0 - 2.0**-50),
            np.exp(self.log_approximations(epsilon)[1]),
            np.where(upper < 1.0, upper, np.inf),
        )

    def epsilon(self, delta: float) -> Bounds:
        """Return bounds of epsilon, shape (n,); without an upper bound it is infinite."""
        log_delta = math.log(delta)
        point = self._between.first_zero(lambda sums: sums.log_delta_2(sums.epsilon) - log_delta)
        lower, upper = self._lower_epsilon(log_delta * (1.0 - 2.0**-50)), self._upper_epsilon(delta)
        return Bounds(lower, np.maximum(point.epsilon, 0.0), upper)

    def log_approximations(self, epsilon: float) -> FloatArray:
        """Return the logs of delta_1 and delta_2 at `epsilon`, shape (2, n)."""
        point = self._between.first_zero(lambda sums: epsilon - sums.epsilon)
        epsilons = np.minimum(epsilon, self._largest)
        # From the largest loss on delta is 0, and there is no saddle point.
        none = epsilon >= self._largest
        both = point.log_delta_1(epsilons), point.log_delta_2(epsilons)
        return np.where(none, -np.inf, np.minimum(both, 0.0))

    def _upper_epsilon(self, delta: float) -> FloatArray:
        left = delta * (1.0 - 2.0**-50) - self._infinite
        target = np.log(np.maximum(left, np.nextafter(0.0, 1.0)))
        # delta_2 <= exp(K - epsilon t) m(t), so that a tilt has a bound without any search.
        t, cumulant, _, _, error = self._above
        crude = (np.logaddexp(cumulant + log_largest_weight(t), error) - target[:, np.newaxis]) / t
        near = self._above.near(crude.argmin(axis=1))
        high = np.maximum(crude.min(axis=1), 0.0) * (1.0 + 2.0**-20)

        def missed(epsilon: FloatArray) -> FloatArray:
            return np.asarray(self._log_upper(near, epsilon) - target)

        _, high = _crossing(missed, np.zeros(target.shape), np.minimum(high, self._largest))
        found = np.where(missed(high) <= 0.0, high, self._largest)
        return np.where(left > 0.0, found, np.inf)

    def _lower_epsilon(self, target: float) -> FloatArray:
        epsilons = self._below.epsilon
        # A tilt is good near its own epsilon: the furthest that is enough there, if there is one.
        enough = self._log_lower(self._below, epsilons) >= target
        last = enough.shape[1] - 1 - enough[:, ::-1].argmax(axis=1)
        near, rows = self._below.near(last), np.arange(last.size)
        following = epsilons[rows, np.minimum(last + 1, enough.shape[1] - 1)]

        def exceeded(epsilon: FloatArray) -> FloatArray:
            return np.asarray(self._log_lower(near, epsilon[:, np.newaxis]).max(axis=1) - target)

        found, _ = _crossing(exceeded, epsilons[rows, last], following)
        return np.where(enough.any(axis=1), np.maximum(found, 0.0), 0.0)

    def _log_upper(self, sums: _Sums, epsilon: FloatArray) -> FloatArray:
        """Return upper bounds of the log of delta, without the mass `infinite`, shape (n,)."""
        within = np.minimum(epsilon, self._largest)[:, np.newaxis] - self._shift
        value, error, slack = self._parts(sums, within)
        bound = (np.logaddexp(value, error) + slack).min(axis=1)
        return np.where(epsilon >= self._largest, -np.inf, bound)

    def _log_lower(self, sums: _Sums, epsilon: FloatArray) -> FloatArray:
        """Return lower bounds of the log of delta by each tilt, shape (n, tilts)."""
        largest = self._largest[:, np.newaxis]
        within = np.minimum(epsilon, largest) + self._shift
        value, error, slack = self._parts(sums, within)
        with np.errstate(divide="ignore"):
            part = np.log(-np.expm1(np.minimum(error - value + 2.0 * slack, 0.0)))
        # A value that is clipped from above gives no lower bound.
        exact = sums.shifted(within) < _furthest(np.sqrt(sums.variance))
        return np.where(exact & (epsilon < largest), value - slack + part, -np.inf)

    def _parts(self, sums: _Sums, epsilon: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the logs of delta_2 and of its error, and their rounding, shape (n, tilts)."""
        t, sigma = sums.tilt, np.sqrt(sums.variance)
        place = np.abs(epsilon) + (t + 0.5) * sums.variance + np.abs(sums.mean)
        size = 1.0 + sigma + place / sigma
        size = size * size + np.abs(sums.cumulant) + t * place
        slack = self._error + _SUM_ERROR * size
        return sums.log_delta_2(epsilon), sums.error - t * epsilon, slack


def _sums(tilt: FloatArray, root_steps: FloatArray, moments: FloatArray) -> _Sums:
    """Return the sums from K, K', K'' and P of histories, (4, n, tilts)."""
    cumulant, mean, variance, third = moments
    sigma = np.sqrt(np.maximum(variance, _SMALLEST_VARIANCE))
    # Larger tilts are of no use, and amplify rounding.
    known, variance = (variance > _SMALLEST_VARIANCE) & (tilt * sigma < _FAR), sigma * sigma
    # How far the tilted loss is from N(K', K''), and these from their rounded values.
    distance = _BERRY_ESSEEN * third / (variance * sigma) * (1.0 + _MOMENT_ERROR)
    distance += _MOMENT_ERROR * (1.0 + root_steps + np.abs(mean) / sigma)
    error = np.log(2.0 * distance) + cumulant + log_largest_weight(tilt)
    return _Sums(tilt, cumulant, mean, variance, np.where(known, error, np.inf))


def _crossing(
    falling: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return ends around a zero: positive at a low one, not at a high one, unless it was given."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        positive = falling(middle) > 0.0
        low, high = np.where(positive, middle, low), np.where(positive, high, middle)
    return low, high


def _log_gdp_delta(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Return log delta of mu-GDP for any real epsilon: D(-e) = 1 - exp(-e) + exp(-e) D(e).

    For e beyond `_furthest`, D(e) is that at `_furthest`, which is more.
    """
    size = np.abs(epsilon)
    value = log_gdp_delta(mu, np.minimum(size, _furthest(mu)))
    with np.errstate(under="ignore", divide="ignore"):
        mirrored = np.log(-np.expm1(-size) + np.exp(value - size))
    return np.where(epsilon < 0.0, mirrored, value)


def _furthest(mu: FloatArray) -> FloatArray:
    """Return the epsilon at which the argument of the normal tail is `_FAR`."""
    return mu * (_FAR + 0.5 * mu)
