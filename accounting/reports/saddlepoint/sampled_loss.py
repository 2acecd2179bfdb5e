"""The tilted loss of a Poisson-sampled Gaussian step, by quadrature with a stated error.

With ratio a = c / s, z standard normal and x(z) = q (exp(a z - a^2 / 2) - 1), the loss of the step
is l(z) = log(1 + x) in the remove direction and -l(z) in the add direction, and its cumulant
function is

    remove   K(t) = log E (1 + x)^(t + 1)        add   K(t) = log E (1 + x)^-t        (t > 0).

Tilted by t, a loss has the density proportional to (1 + x)^k phi(z) in z, k = t + 1 or -t.

Quadrature is the trapezoidal rule, whose error for an integrand that is analytic in the strip
|Im z| < d is at most 2 M / (exp(2 pi d / h) - 1), M the integral of its modulus on the edge of the
strip (Trefethen and Weideman 2014, Thm 5.1). Here the strip may reach pi / a. In the remove
direction |1 + x| is largest on the real line, so M is at most exp(d^2 / 2) times the integral. In
the add direction M is computed. Tails: by a piecewise linear bound of the convex l in the remove
direction, by log-concavity in the add direction. Where these errors are not negligible, an entry is
*unknown*: its K is an upper bound (Jensen's inequality, for the mixture of powers).

|l - K'|^3 is not analytic where l(z) = K', at z0. It is (l - K')^3 times sgn(z - z0), of which the
rule integrates erf(b (z - z0)); the rest, erfc(b |z - z0|) on either side, is an integral over
a short way, by Gauss's rule.

The transform oscillates, by u l' <= u a radians to the unit of z: its grid is as much finer.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from scipy.special import erf, erfc, log_ndtr

from accounting.costs.mechanisms import Direction
from accounting.exact.validation import FloatArray
from accounting.reports.saddlepoint.tilted_losses import (
    LARGEST_CUMULANT,
    REACH,
    SMALLEST_VARIANCE,
    THIRD_ERROR,
    UNKNOWN_MEAN,
    UNKNOWN_THIRD,
    ComplexArray,
    Cumulants,
    GaussianLoss,
    exp_down,
    log_sum,
    tilt_range,
)

# Ratios outside this range are unknown; a smaller one is bounded by the smallest.
_SMALLEST_RATIO, _LARGEST_RATIO = 1e-12, 20.0
# Beyond this many standard deviations no tail matters to delta > 1e-300.
_TAIL = 10.0
# In the add direction, tilts whose mode lies further out matter only to a handful of steps.
_ADD_REACH = 12.0
_MAX_POINTS, _CELLS = 4000, 60
# Quadrature error aimed at, relative to the integral, in nats; and what erf may lose of it.
_AIM, _KINK_LOSS = 42.0, 20.0
# Gauss's rule on either side, weights times erfc; erfc of the reach is 2e-8.
_KINK_REACH = 4.0
_FOUND = 2.0**-20  # by the mean distance from the mean; the third power of it is what is missed
_HALF_NODES, _HALF_WEIGHTS = np.polynomial.legendre.leggauss(20)
_KINK_NODES = 0.5 * _KINK_REACH * np.r_[-1.0 - _HALF_NODES, 1.0 + _HALF_NODES]
_KINK_WEIGHTS = 0.5 * _KINK_REACH * np.tile(_HALF_WEIGHTS, 2) * erfc(np.abs(_KINK_NODES))
_LOG_ROOT_2_PI = 0.5 * math.log(2.0 * math.pi)
# An entry with a larger error, relative to the integral, is unknown.
_LOG_TOLERANCE = -40.0 * math.log(2.0)
# Below, K is the sum of D; above, the logarithm of an integral, whose rounding is then small.
_SMALL_CUMULANT = 2.0**-10
_SMALLEST_MODULUS = 1e-150
# A transform leaves out points of less mass.
_SMALLEST_MASS = 1e-30
# Grids of transforms are finer by powers of two, so that there are few of them.
_FINEST = 8


class SampledLoss:
    """A Poisson-sampled Gaussian step; `ratio` = c / s > 0, 0 < `sampling_rate` < 1.

    `largest` and `tilts`: as those of `GaussianLoss`. `direction` selects the distribution from
    which the loss is drawn: "remove" in that with the user, "add" in that without.
    """

    def __init__(
        self, ratio: float, sampling_rate: float, direction: Direction, finer: int = 1
    ) -> None:
        self._ratio, self._rate, self._direction = ratio, sampling_rate, direction
        self._a = min(max(ratio, _SMALLEST_RATIO), _LARGEST_RATIO)
        self._sign = 1.0 if direction == "remove" else -1.0
        self.largest = -math.log1p(-sampling_rate) if direction == "add" else math.inf
        lowest, reach = tilt_range(self._a, sampling_rate)
        # The tilt moves the mode by `REACH`, or the sampled component takes over all mass.
        sampled = reach + 2.0 * math.log(1.0 / sampling_rate) / self._a**2
        self.tilts = lowest, max(min(reach / sampling_rate, sampled), 10.0)
        grid = _grid(self._a, sampling_rate, direction, finer)
        log_phi, loss, self._share, self._step, self._z = grid
        # Of each point: its loss, and the log of its density times the weight of the quadrature.
        self._loss = self._sign * loss
        self._log_weight = log_phi + loss if direction == "remove" else log_phi

    def cumulants(self, tilts: FloatArray) -> Cumulants:
        """Return K and its moments at `tilts`, shape (k,), > 0, ascending."""
        result = Cumulants(
            self._ceiling(tilts),
            np.full(tilts.shape, UNKNOWN_MEAN),
            np.ones(tilts.shape),
            np.full(tilts.shape, UNKNOWN_THIRD),
        )
        t = tilts[: np.searchsorted(tilts, self.tilts[1], side="right")]
        log_mass = np.multiply.outer(t, self._loss) + self._log_weight
        log_integral = log_sum(log_mass)
        value = self._value(t, log_integral)
        mass = exp_down(log_mass - log_integral[:, np.newaxis])
        mean = mass @ self._loss
        centred = self._loss - mean[:, np.newaxis]
        squared = centred * centred
        variance = np.einsum("kp,kp->k", mass, squared)
        # The kink at the mean is not seen, which does not matter here.
        third = np.einsum("kp,kp,kp->k", mass, squared, np.abs(centred))
        error = self._log_error(
            t, log_mass, log_integral, np.minimum(np.minimum(value, third), 1.0)
        )
        # All entries after an unknown one count as unknown: a user's known tilts come first.
        bad = (error > _LOG_TOLERANCE) | (variance <= SMALLEST_VARIANCE)
        known = int(bad.argmax()) if bad.any() else t.size
        exact = self._third(t[:known], log_integral[:known], mass[:known], mean[:known])
        known = int(np.count_nonzero(np.logical_and.accumulate(np.isfinite(exact))))
        third = exact * (1.0 + 0.5 * THIRD_ERROR)
        for part, column in zip(result, (value, mean, variance, third), strict=True):
            part[:known] = column[:known]
        return result

    def log_transform(self, tilt: float, mean: float, step: float, nodes: int) -> ComplexArray:
        """Return log E_t e^{i k h (L - mean)}, as `GaussianLoss.log_transform` does."""
        finer = 1.0 + step * nodes * self._a * self._step / (2.0 * math.pi)
        power = min(2 ** math.ceil(math.log2(finer) - 1e-9), _FINEST)
        if power > 1:
            fine = SampledLoss(self._ratio, self._rate, self._direction, power)
            return fine._transform(tilt, mean, step, nodes)
        return self._transform(tilt, mean, step, nodes)

    def _transform(self, tilt: float, mean: float, step: float, nodes: int) -> ComplexArray:
        log_mass = tilt * self._loss + self._log_weight
        mass = exp_down(log_mass - log_mass.max())
        mass /= mass.sum()
        kept = mass > _SMALLEST_MASS
        less = _mean_less_one(step, nodes, mass[kept], self._loss[kept] - mean)
        square = np.maximum(2.0 * less.real + np.abs(less) ** 2, -1.0)
        modulus = np.maximum(np.abs(1.0 + less), _SMALLEST_MODULUS)
        half = 0.5 * np.log1p(np.maximum(square, -0.5))
        log_modulus = np.where(square < -0.5, np.log(modulus), half)
        return np.asarray(log_modulus + 1j * np.angle(1.0 + less))

    def _value(self, tilts: FloatArray, log_integral: FloatArray) -> FloatArray:
        """Return K without cancellation."""
        value = log_integral.copy()
        small = np.flatnonzero(np.abs(log_integral) < _SMALL_CUMULANT)
        t, weight = tilts[small], self._log_weight
        along = _weighted_d(np.multiply.outer(t, self._loss), weight).sum(axis=1)
        value[small] = np.log1p(along + t * _weighted_d(-self._loss, weight).sum())
        return value

    def _exponent(self, tilts: FloatArray) -> FloatArray:
        """Return k, the power of 1 + x."""
        return tilts + 1.0 if self._direction == "remove" else -tilts

    def _log_error(
        self, tilts: FloatArray, log_mass: FloatArray, log_integral: FloatArray, least: FloatArray
    ) -> FloatArray:
        """Return the log of the relative error of the integral and of sums as small as `least`."""
        if self._a != self._ratio:
            return np.full(tilts.shape, np.inf)
        left, right = self._log_tails(tilts, log_mass, log_integral)
        strip = self._strip()
        log_strip = math.log(2.0) + 0.5 * strip**2 - 2.0 * math.pi * strip / self._step
        if self._direction == "remove":
            # The mass left out on the right lies where the loss is large.
            right += 3.0 * np.log1p(self._a**2 * self._exponent(tilts))
            with np.errstate(divide="ignore"):
                right -= np.log(least)
            return np.asarray(np.maximum(np.logaddexp(left, log_strip), right))
        # |1 + x|^-t on the edge is its value on the line times (1 - 4 p (1 - p) sin^2)^(-t/2).
        sine = math.sin(0.5 * self._a * strip)
        turn = -0.5 * np.log1p(-4.0 * self._share * (1.0 - self._share) * sine * sine)
        edge = log_mass + np.multiply.outer(tilts, turn)
        log_edge = log_strip + log_sum(edge) - log_integral
        return np.asarray(np.logaddexp(np.logaddexp(left, right), log_edge))

    def _strip(self) -> float:
        if self._direction == "remove":
            return min(2.0 * math.pi / self._step, math.pi / self._a)
        return min(2.0 * math.pi / (self._step * (1.0 + self._a * _ADD_REACH)), 1.2 / self._a)

    def _log_tails(
        self, tilts: FloatArray, log_mass: FloatArray, log_integral: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the logs of the omitted left and right tails, relative to the integral."""
        k = self._exponent(tilts)
        if self._direction == "remove":
            # To the left the density falls faster than phi.
            left = k * self._loss[0] - 0.5 * _TAIL**2 - log_integral
            return left, _remove_tail(k, log_integral, self._a, self._rate)
        # The density is log-concave: beyond an end it falls as an exponential of its slope there.
        fall = _ADD_REACH + _TAIL - tilts * self._a * self._share[0]
        with np.errstate(divide="ignore"):
            left = log_mass[:, 0] - np.log(np.maximum(fall, 0.0))
        log_step = math.log(self._step)
        return left - log_step - log_integral, log_mass[:, -1] - log_step - log_integral

    def _ceiling(self, tilts: FloatArray) -> FloatArray:
        """Return an upper bound of K, finite: log E of the mixture of powers (Jensen)."""
        a, q = max(self._ratio, _SMALLEST_RATIO), self._rate
        with np.errstate(over="ignore"):
            gaussian = np.minimum(0.5 * tilts * (tilts + 1.0) * a * a, LARGEST_CUMULANT)
        if self._direction == "add":
            bound = np.minimum(gaussian, -tilts * math.log1p(-q))
        else:
            bound = _log_mixture(gaussian, q)[0]
        return np.asarray(bound)

    def _third(
        self,
        tilts: FloatArray,
        log_integral: FloatArray,
        mass: FloatArray,
        mean: FloatArray,
    ) -> FloatArray:
        """Return the third absolute central moment, to well within `THIRD_ERROR`, shape (k,).

        It is infinite if unknown.
        """
        a, middle = self._a, self._sign * mean
        z0 = (_log_odds(middle, self._rate) + 0.5 * a * a) / a
        width = math.sqrt(_KINK_LOSS) / self._strip()
        place = width * (self._z - z0[:, np.newaxis])
        smooth, near = np.sign(place), np.abs(place) < _KINK_REACH
        smooth[near] = erf(place[near])
        centred = self._sign * self._loss - middle[:, np.newaxis]
        third = np.einsum("kp,kp,kp,kp,kp->k", mass, centred, centred, centred, smooth)
        z = z0[:, np.newaxis] + _KINK_NODES / width
        loss = _log_mixture(a * z - 0.5 * a * a, self._rate)[0]
        log_density = self._exponent(tilts)[:, np.newaxis] * loss - 0.5 * z * z - _LOG_ROOT_2_PI
        density = exp_down(log_density - log_integral[:, np.newaxis])
        size = np.abs(loss - middle[:, np.newaxis])
        third += (size * size * size * density) @ (_KINK_WEIGHTS / width)
        # Unknown where the kink is not found to rounding.
        missed = np.abs(_log_mixture(a * z0 - 0.5 * a * a, self._rate)[0] - middle)
        spread = np.einsum("kp,kp->k", mass, np.abs(centred))
        return np.where(missed <= _FOUND * spread, third, np.inf)


TiltedLoss: TypeAlias = GaussianLoss | SampledLoss
"""The loss of one step, in one direction."""


def _grid(
    a: float, q: float, direction: Direction, finer: int
) -> tuple[FloatArray, FloatArray, FloatArray, float, FloatArray]:
    """Return log of (step phi), log(1 + x), the share of q e^.. in it, the step, and z.

    `finer`: how many times as many points.
    """
    narrow = 1.0 if direction == "remove" else 1.0 + a * _ADD_REACH
    step = math.sqrt(2.0 * math.pi**2 / (_AIM * narrow))
    if direction == "remove":
        low, high = -_TAIL, max(REACH, 2.0 * a) + _TAIL
        if a > 0.5 * step:  # the singularity is nearer than the best edge of the strip
            step = 2.0 * math.pi**2 * a / (_AIM * a * a + 0.5 * math.pi**2)
    else:
        low, high = -_ADD_REACH - _TAIL, 2.0 * a + _TAIL
        step = min(step, 2.0 * math.pi / (_AIM * a))
    points = min(math.ceil((high - low) / step * finer) + 1, _MAX_POINTS * finer)
    z, step = np.linspace(low, high, points, retstep=True)
    loss, share = _log_mixture(a * z - 0.5 * a * a, q)
    return math.log(step) - _LOG_ROOT_2_PI - 0.5 * z * z, loss, share, float(step), z


def _log_mixture(y: FloatArray, q: float) -> tuple[FloatArray, FloatArray]:
    """Return log(1 - q + q e^y) and the share of q e^y in it."""
    loss = np.empty_like(y)
    far = y > 30.0
    loss[far] = y[far] + math.log(q) + np.log1p((1.0 - q) / q * np.exp(-y[far]))
    x = q * np.expm1(y[~far])
    exact = np.where(x < -0.5, (1.0 - q) + q * np.exp(y[~far]), 1.0)
    loss[~far] = np.where(x < -0.5, np.log(exact), np.log1p(np.maximum(x, -0.5)))
    return loss, np.exp(np.minimum(y + math.log(q) - loss, 0.0))


def _log_odds(loss: FloatArray, q: float) -> FloatArray:
    """Return the y for which log(1 - q + q e^y) is `loss`, above log(1 - q)."""
    low, near, high = np.minimum(loss, -1.0), np.clip(loss, -1.0, 1.0), np.maximum(loss, 1.0)
    tiny, rate = np.finfo(np.float64).tiny, max(q, 1e-300)
    with np.errstate(under="ignore"):
        below = np.log(np.maximum(np.exp(low) - (1.0 - q), tiny)) - math.log(rate)
    middle = np.log1p(np.maximum(np.expm1(near) / rate, -1.0 + 2.0**-52))
    above = high + np.log1p(-(1.0 - q) * np.exp(-high)) - math.log(rate)
    return np.where(loss > 1.0, above, np.where(loss < -1.0, below, middle))


def _remove_tail(exponent: FloatArray, log_integral: FloatArray, a: float, q: float) -> FloatArray:
    """Return a bound of the log of the mass to the right of the grid, shape (k,).

    The convex l is at most its chord on each of some cells, and after them at most the line of
    slope a.
    """
    high = max(REACH, 2.0 * a) + _TAIL
    last = max(0.5 * a + (math.log((1.0 - q) / q) + 10.0) / a, high)
    edges = np.linspace(high, last, _CELLS + 1)
    ends = _log_mixture(a * edges - 0.5 * a * a, q)[0]
    ray = exponent * (ends[-1] - a * last) + 0.5 * (a * exponent) ** 2
    ray += log_ndtr(a * exponent - last)
    if last > high:
        slope = np.diff(ends) * (_CELLS / (last - high))
        at = np.clip(np.multiply.outer(exponent, slope), edges[:-1], edges[1:])
        height = exponent[:, np.newaxis] * (ends[:-1] + slope * (at - edges[:-1])) - 0.5 * at * at
        ray = np.logaddexp(ray, height.max(axis=1) + math.log(last - high))
    return np.asarray(ray - log_integral)


def _mean_less_one(step: float, nodes: int, mass: FloatArray, centred: FloatArray) -> ComplexArray:
    """Return E e^{i k h c} - 1 for k = 1 .. nodes, h = `step`, c = `centred`; shape (nodes,).

    With e_k = e^{i k h c} - 1 and k = a b + j, e_k = e_ab + e_j + e_ab e_j: about 2 sqrt(nodes)
    sines a point, and a product of matrices.
    """
    width = math.ceil(math.sqrt(nodes))
    near = _less_one(np.multiply.outer(step * np.arange(1.0, width + 1.0), centred))
    starts = step * width * np.arange(math.ceil(nodes / width))
    far = _less_one(np.multiply.outer(starts, centred)) * mass
    each = far @ near.T + near @ mass + far.sum(axis=1)[:, np.newaxis]
    return np.asarray(each.ravel()[:nodes])


def _less_one(angle: FloatArray) -> ComplexArray:
    """Return e^{i x} - 1 without cancellation."""
    half = np.sin(0.5 * angle)
    return np.asarray(-2.0 * half * half + 1j * np.sin(angle))


def _weighted_d(y: FloatArray, log_weight: FloatArray) -> FloatArray:
    """Return (e^y - 1 - y) e^log_weight; y has the shape (.., p), the weight (p,)."""
    weight = exp_down(log_weight)
    value = np.expm1(np.clip(y, -700.0, 1.0)) - y
    small = np.abs(y) < 0.03
    few = y[small]
    series = 1.0 + few / 4.0 * (1.0 + few / 5.0 * (1.0 + few / 6.0 * (1.0 + few / 7.0)))
    value[small] = 0.5 * few * few * (1.0 + few / 3.0 * series)
    value *= weight
    large = y > 1.0
    if large.any():
        every = np.broadcast_to(log_weight, y.shape)[large]
        value[large] = exp_down(y[large] + every) - (1.0 + y[large]) * exp_down(every)
    return value
