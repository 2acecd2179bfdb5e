"""Cumulants of the privacy loss of one step, tabulated over tilts, for each level of a norm grid.

With ratio a = c / s, z standard normal and x(z) = q (exp(a z - a^2 / 2) - 1), the loss of a
Poisson-sampled Gaussian step is l(z) = log(1 + x) in the remove direction and -l(z) in the add
direction, and its cumulant function is

    remove   K(t) = log E (1 + x)^(t + 1)        add   K(t) = log E (1 + x)^-t        (t > 0).

Tilted by t, a loss has the density proportional to (1 + x)^e phi(z) in z, e = t + 1 or -t. Its
mean K', variance K'' and third absolute central moment are tabulated with K.

Quadrature is the trapezoidal rule, whose error for an integrand that is analytic in the strip
|Im z| < d is at most 2 M / (exp(2 pi d / h) - 1), M the integral of its modulus on the edge of the
strip (Trefethen and Weideman 2014, Thm 5.1). Here the strip may reach pi / a. In the remove
direction |1 + x| is largest on the real line, so M is at most exp(d^2 / 2) times the integral. In
the add direction M is computed. Tails: by a piecewise linear bound of the convex l in the remove
direction, by log-concavity in the add direction. Where these errors are not negligible, an entry is
marked as *unknown*: its K is an upper bound and its third moment is so large that nothing but the
bound by K is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from scipy.special import log_ndtr

from accounting.exact.validation import FloatArray

Direction: TypeAlias = Literal["remove", "add"]
DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)

# Relative error of K, of K'' and of the third moment, and error of K' relative to K' + sqrt(K'').
RELATIVE_ERROR: Final = 2.0**-36
# A third moment from here on marks an entry as unknown; sums of 2**46 steps stay finite.
UNKNOWN_THIRD: Final = 1e200
_LARGEST_CUMULANT: Final = 1e270

_NODE_RATIO = 1.1
# Ratios outside are unknown: those below are computed as this one, which bounds them.
_SMALLEST_RATIO, _LARGEST_RATIO = 1e-12, 20.0
_SMALLEST_VARIANCE = 1e-60
# Beyond this many standard deviations no tail matters to delta > 1e-300.
_TAIL, _REACH = 10.0, 45.0
# In the add direction, tilts whose mode lies further out matter only to a handful of steps.
_ADD_REACH = 12.0
_MAX_POINTS, _CELLS = 4000, 60
# Quadrature error aimed at, and tolerated, relative to the integral.
_AIM, _LOG_TOLERANCE = 37.0, -40.0 * math.log(2.0)
_LOG_ROOT_2_PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class CumulantTable:
    """Cumulants of one step's loss, in nats, at each level and tilt; one direction.

    `tilts`: t, shape (k,), ascending. The others have shape (levels, k): K(t), K'(t), K''(t) and
    the third absolute central moment of the tilted loss. K and the third moment are upper bounds
    within `RELATIVE_ERROR`, and K also where the third moment is `UNKNOWN_THIRD`.
    `largest_loss`: the supremum of the loss of one step; infinite in the remove direction.
    """

    tilts: FloatArray
    cumulant: FloatArray
    mean: FloatArray
    variance: FloatArray
    third: FloatArray
    largest_loss: float


def tilt_nodes(ratios: FloatArray, sampling_rate: float) -> FloatArray:
    """Return the tilts at which cumulants are tabulated, ascending, each 1.1 times the one before.

    From below the saddle points of a million steps at the largest ratio c / s to beyond those of
    one step at the smallest, for delta down to 1e-300.
    """
    small = max(float(ratios.min()), _SMALLEST_RATIO)
    large = min(float(ratios.max()), _LARGEST_RATIO)
    lowest = 0.1 / (1.0 + 0.5e6 * sampling_rate * large * large)
    # The tilt moves the mode by `_REACH`, or the sampled component takes over all mass.
    sampled = _REACH / small + 2.0 * math.log(1.0 / sampling_rate) / small**2
    highest = max(min(_REACH / small / sampling_rate, sampled), 10.0)
    count = math.ceil(math.log(highest / lowest) / math.log(_NODE_RATIO)) + 1
    return lowest * _NODE_RATIO ** np.arange(count, dtype=np.float64)


def cumulant_table(
    ratios: FloatArray, sampling_rate: float, tilts: FloatArray, direction: Direction
) -> CumulantTable:
    """Return the cumulants for norm over noise c / s of `ratios`, shape (levels,), > 0.

    `sampling_rate`: q, 0 < q < 1. `tilts`: shape (k,), > 0, ascending. Neighbours differ by adding
    or removing one user; `direction` says in which of the two distributions the loss is drawn:
    "remove" in that with the user, "add" in that without.
    """
    rows = [_level(a, sampling_rate, tilts, direction) for a in ratios.tolist()]
    cumulant, mean, variance, third = (np.array(column) for column in zip(*rows, strict=True))
    largest = -math.log1p(-sampling_rate) if direction == "add" else math.inf
    return CumulantTable(tilts, cumulant, mean, variance, third, largest)


def _level(
    ratio: float, q: float, t: FloatArray, direction: Direction
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return (K, K', K'', third absolute central moment), shape (k,) each, for one ratio."""
    if ratio > _LARGEST_RATIO:
        return _unknown(ratio, q, t, direction)
    a = max(ratio, _SMALLEST_RATIO)
    log_weight, loss, share, step = _grid(a, q, direction)
    exponent = t + 1.0 if direction == "remove" else -t

    log_mass = np.multiply.outer(exponent, loss) + log_weight
    top = log_mass.max(axis=1)
    mass = np.exp(log_mass - top[:, np.newaxis])
    total = mass.sum(axis=1)
    log_integral = top + np.log(total)
    mass /= total[:, np.newaxis]
    mean = mass @ loss
    centred = loss - mean[:, np.newaxis]
    squared = centred * centred
    variance = np.einsum("kp,kp->k", mass, squared)
    third = np.einsum("kp,kp,kp->k", mass, squared, np.abs(centred))
    third += _kink(mass, loss, a * share, mean, step)

    cumulant = log_integral.copy()
    near = np.flatnonzero(np.abs(log_integral) < 0.5)
    cumulant[near] = np.log1p(_excess(t[near], loss, log_weight, direction))

    if direction == "remove":
        error = _remove_error(exponent, log_integral, a, loss, step)
        # The mass left out on the right lies where the loss is large.
        rare = _remove_tail(exponent, log_integral, a, q) + 3.0 * np.log1p(a * a * exponent)
        with np.errstate(divide="ignore"):
            error = np.maximum(error, rare - np.log(np.minimum(np.minimum(third, cumulant), 1.0)))
    else:
        error = _add_error(t, log_integral, log_mass, a, share, step)
        mean = -mean
    known = (error <= _LOG_TOLERANCE) & (variance > _SMALLEST_VARIANCE) & (a == ratio)
    # What follows an unknown entry is unknown: a user's known tilts are the first ones.
    known = np.logical_and.accumulate(known)
    computed = (cumulant, mean, variance, third)
    bounds = _unknown(a, q, t, direction)
    columns = [np.where(known, value, bound) for value, bound in zip(computed, bounds, strict=True)]
    return columns[0], columns[1], columns[2], columns[3]


def _unknown(
    a: float, q: float, t: FloatArray, direction: Direction
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return entries marked as unknown; K is at most log E of the mixture of powers (Jensen)."""
    with np.errstate(over="ignore"):
        gaussian = np.minimum(0.5 * t * (t + 1.0) * a * a, _LARGEST_CUMULANT)
    if direction == "add":
        cumulant = np.minimum(gaussian, -t * math.log1p(-q))
    else:
        cumulant = _log_mixture(gaussian, q)[0]
    variance = np.full_like(t, min(a, _LARGEST_RATIO) ** 2)
    return cumulant, (t + 0.5) * variance, variance, np.full_like(t, UNKNOWN_THIRD)


def _grid(
    a: float, q: float, direction: Direction
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Return a grid of z: log of (step phi), log(1 + x), the share of q e^.. in it, step."""
    narrow = 1.0 if direction == "remove" else 1.0 + a * _ADD_REACH
    step = math.sqrt(2.0 * math.pi**2 / (_AIM * narrow))
    if direction == "remove":
        low, high = -_TAIL, max(_REACH, 2.0 * a) + _TAIL
        if a > 0.5 * step:  # the singularity is nearer than the best edge of the strip
            step = 2.0 * math.pi**2 * a / (_AIM * a * a + 0.5 * math.pi**2)
    else:
        low, high = -_ADD_REACH - _TAIL, 2.0 * a + _TAIL
        step = min(step, 2.0 * math.pi / (_AIM * a))
    points = min(math.ceil((high - low) / step) + 1, _MAX_POINTS)
    z, step = np.linspace(low, high, points, retstep=True)
    log_ratio = a * z - 0.5 * a * a
    loss, share = _log_mixture(log_ratio, q)
    return math.log(step) - _LOG_ROOT_2_PI - 0.5 * z * z, loss, share, float(step)


def _log_mixture(y: FloatArray, q: float) -> tuple[FloatArray, FloatArray]:
    """Return log(1 - q + q e^y) and the share of q e^y in it."""
    loss = np.empty_like(y)
    far = y > 30.0
    loss[far] = y[far] + math.log(q) + np.log1p((1.0 - q) / q * np.exp(-y[far]))
    x = q * np.expm1(y[~far])
    exact = np.where(x < -0.5, (1.0 - q) + q * np.exp(y[~far]), 1.0)
    loss[~far] = np.where(x < -0.5, np.log(exact), np.log1p(np.maximum(x, -0.5)))
    return loss, np.exp(np.minimum(y + math.log(q) - loss, 0.0))


def _excess(
    t: FloatArray, loss: FloatArray, log_weight: FloatArray, direction: Direction
) -> FloatArray:
    """Return exp(K) - 1 without cancellation, as a sum of terms that are all >= 0.

    E x = 0, so that with D(y) = e^y - 1 - y

        (1 + x)^(t + 1) - 1 - (t + 1) x = (1 + x) (D(t l) + t D(-l)),
        (1 + x)^-t      - 1 + t x       = D(-t l) + t D(l).
    """
    if direction == "remove":
        weight = log_weight + loss
        along, across = np.multiply.outer(t, loss), -loss
    else:
        weight = log_weight
        along, across = np.multiply.outer(-t, loss), loss
    once = float(_weighted_d(across, weight).sum())
    return np.asarray(_weighted_d(along, weight).sum(axis=1) + t * once)


def _weighted_d(y: FloatArray, log_weight: FloatArray) -> FloatArray:
    """Return (e^y - 1 - y) e^log_weight; y has the shape (.., p), the weight (p,)."""
    weight = np.exp(log_weight)
    small = np.clip(y, -0.03, 0.03)
    series = 1.0 + small / 6.0 * (1.0 + small / 7.0)
    series = 1.0 + small / 3.0 * (1.0 + small / 4.0 * (1.0 + small / 5.0 * series))
    middle = np.clip(y, -700.0, 1.0)
    near = np.where(y == small, 0.5 * small * small * series, np.expm1(middle) - middle)
    far = np.exp(np.maximum(y, 1.0) + log_weight) - (1.0 + y) * weight
    return np.where(y > 1.0, far, np.where(y < -700.0, -(1.0 + y), near) * weight)


def _kink(
    mass: FloatArray, loss: FloatArray, slope: FloatArray, mean: FloatArray, step: float
) -> FloatArray:
    """Return a bound of the quadrature error that |l - K'|^3 causes where it is not analytic.

    Its third derivative jumps by 12 l'^3 there: the rule errs by the jump times step^4 / 720 and
    by higher orders, allowed for by a factor of 3. `mass` includes the step.
    """
    right = np.clip(np.searchsorted(loss, mean), 1, loss.size - 1)
    left = right - 1
    rows = np.arange(mean.size)
    jump = np.maximum(mass[rows, left] * slope[left] ** 3, mass[rows, right] * slope[right] ** 3)
    return jump * (step**3 * 12.0 * 3.0 / 720.0)


def _remove_error(
    exponent: FloatArray, log_integral: FloatArray, a: float, loss: FloatArray, step: float
) -> FloatArray:
    """Return the log of the error relative to the integral, shape (k,): strip and left tail."""
    strip = min(2.0 * math.pi / step, math.pi / a)
    log_strip = math.log(2.0) + 0.5 * strip * strip - 2.0 * math.pi * strip / step
    # To the left the density falls faster than phi.
    log_left = exponent * loss[0] - 0.5 * _TAIL * _TAIL - log_integral
    return np.asarray(np.logaddexp(log_left, log_strip))


def _remove_tail(exponent: FloatArray, log_integral: FloatArray, a: float, q: float) -> FloatArray:
    """Return a bound of the log of the mass to the right of the grid, shape (k,).

    The convex l is at most its chord on each of some cells, and after them at most the line of
    slope a.
    """
    high = max(_REACH, 2.0 * a) + _TAIL
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


def _add_error(
    t: FloatArray,
    log_integral: FloatArray,
    log_mass: FloatArray,
    a: float,
    share: FloatArray,
    step: float,
) -> FloatArray:
    """Return the log of the error relative to the integral, shape (k,): strip and both tails."""
    strip = min(2.0 * math.pi / (step * (1.0 + a * _ADD_REACH)), 1.2 / a)
    # |1 + x|^-t on the edge is its value on the line times (1 - 4 p (1 - p) sin^2)^(-t/2).
    turn = -0.5 * np.log1p(-4.0 * share * (1.0 - share) * math.sin(0.5 * a * strip) ** 2)
    edge = log_mass + np.multiply.outer(t, turn)
    top = edge.max(axis=1)
    log_edge = top + np.log(np.exp(edge - top[:, np.newaxis]).sum(axis=1)) - log_integral
    log_strip = math.log(2.0) + 0.5 * strip * strip + log_edge - 2.0 * math.pi * strip / step
    # The density is log-concave: beyond an end it falls as an exponential of its slope there.
    fall = _ADD_REACH + _TAIL - t * a * share[0]
    with np.errstate(divide="ignore"):
        log_left = log_mass[:, 0] - math.log(step) - np.log(np.maximum(fall, 0.0)) - log_integral
    log_right = log_mass[:, -1] - math.log(step) - log_integral
    return np.asarray(np.logaddexp(np.logaddexp(log_left, log_right), log_strip))
