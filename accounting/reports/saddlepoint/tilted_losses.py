"""The privacy loss of one step, tilted: its cumulants, and its transform on a vertical line.

L is the loss log(dP/dQ) of an outcome drawn from P. Tilted by t it has the density e^{t L} dP / M,
log M = K(t) its cumulant function. Because E e^-L = 1, with D(y) = e^y - 1 - y >= 0,

    e^K(t) - 1 = E D(t L) + t E D(-L)                                             (t > 0),

a sum of terms that are all >= 0: nothing cancels, even if K is small. The mean K', the variance K''
and the third absolute central moment of the tilted loss are sums over points in the same way, each
with its loss and the logarithm of its probability (`PointLoss`). On the vertical line t + i u,

    log M(t + i u) = K(t) + i u K'(t) + log(1 + E_t(e^{i u (L - K')} - 1)),

where sines give the parts of the last expectation without cancellation, -2 sin^2 and sin.

Losses with a closed form are here; `cumulants` has the sampled Gaussian step.

- Gaussian, a = c / s: L is normal with mean a^2 / 2 and variance a^2.
- Laplace, e = c / scale: L is e with probability 1/2, -e with e^-e / 2, and between them it has the
  density e^{(l - e)/2} / 4, so that M(t) = ((1 + t) e^{t e} + t e^{-(t + 1) e}) / (1 + 2 t). For
  contributions of several coordinates c is the L1 norm: for noise of a log-concave density p,
  delta = 1 - integral of min(p(x), e^epsilon p(x - v)), and the integrand is log-concave in (x, v);
  so delta is quasi-convex in the contribution v (Prekopa), and among all v of one L1 norm those
  with a single coordinate are the worst.
- Pure DP: randomised response dominates every e-DP step (Kairouz, Oh and Viswanath 2015, Thm 2):
  L is e with probability 1 / (1 + e^-e), else -e.

Neighbours add or remove one user; these three have the same loss in both directions.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from accounting.exact.validation import FloatArray

ComplexArray: TypeAlias = npt.NDArray[np.complex128]

# Relative error of K and of K'', and error of K' relative to K' + sqrt(K'').
RELATIVE_ERROR: Final = 2.0**-36
# The third moment is above the exact one by no more than this part of it.
THIRD_ERROR: Final = 2.0**-24
# A third moment from here on marks an entry as unknown; sums of 2**46 steps stay finite.
UNKNOWN_THIRD: Final = 1e200
LARGEST_CUMULANT: Final = 1e270
# The mean of an unknown entry: no saddle point is there.
_UNKNOWN_MEAN: Final = 1e100
# Beyond this many standard deviations, and exponents, no tail matters to delta > 1e-300.
REACH: Final = 45.0
# An entry with a larger error, relative to the integral, is unknown.
_LOG_TOLERANCE: Final = -40.0 * math.log(2.0)
_SMALLEST_VARIANCE: Final = 1e-60
# Below, K is the sum of D; above, the logarithm of an integral, whose rounding is then small.
_SMALL_CUMULANT: Final = 2.0**-10
_SMALLEST_MODULUS: Final = 1e-150
# A transform leaves out points of less mass.
_SMALLEST_MASS = 1e-30
# For larger sizes only an upper bound of K is known.
_LARGEST_RATIO, _LARGEST_EPSILON = 1e4, 90.0
# Gauss's rule integrates e^{z l} over |l| <= e to 1e-30 as long as |z| e is below the last.
_GAUSS_NODES, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(64)
_LARGEST_EXPONENT = 50.0


class Cumulants(NamedTuple):
    """K(t), K'(t), K''(t) and the third absolute central moment at k tilts, shape (k,) each.

    In nats, within `RELATIVE_ERROR`; the third moment is an upper bound, within `THIRD_ERROR`.
    If it is `UNKNOWN_THIRD`, K is an upper bound, K' is large, and K'' is meaningless.
    """

    cumulant: FloatArray
    mean: FloatArray
    variance: FloatArray
    third: FloatArray


class TiltedLoss(Protocol):
    """The loss of one step, in one direction.

    `largest`: its supremum. `tilts`: from below the saddle points of a million steps to beyond
    that of one step for delta = 1e-300, roughly.
    """

    largest: float
    tilts: tuple[float, float]

    def cumulants(self, tilts: FloatArray) -> Cumulants:
        """Return K and its moments at `tilts`, shape (k,), > 0, ascending."""
        ...

    def log_transform(self, tilt: float, mean: float, step: float, nodes: int) -> ComplexArray:
        """Return log E_t e^{i k h (L - mean)} for k = 1 .. nodes, h = `step`, accurate, unbounded.

        `tilt`: one whose K is known; `mean`: about K' there.
        """
        ...


class PointLoss:
    """A loss that is, or is integrated as, a sum over points.

    `loss`, `log_weight`: shape (p,), nats; the logarithm of the probability, or of the density
    times the weight of a quadrature. Subclasses define the error of their quadrature.
    """

    largest: float
    tilts: tuple[float, float]

    def __init__(self, loss: FloatArray, log_weight: FloatArray) -> None:
        self._loss, self._log_weight = loss, log_weight

    def cumulants(self, tilts: FloatArray) -> Cumulants:
        """See `TiltedLoss`."""
        result = Cumulants(
            self._ceiling(tilts),
            np.full(tilts.shape, _UNKNOWN_MEAN),
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
        bad = (error > _LOG_TOLERANCE) | (variance <= _SMALLEST_VARIANCE)
        known = int(bad.argmax()) if bad.any() else t.size
        exact = self._third(t[:known], log_integral[:known], mass[:known], mean[:known])
        known = int(np.count_nonzero(np.logical_and.accumulate(np.isfinite(exact))))
        third = exact * (1.0 + 0.5 * THIRD_ERROR)
        for part, column in zip(result, (value, mean, variance, third), strict=True):
            part[:known] = column[:known]
        return result

    def log_transform(self, tilt: float, mean: float, step: float, nodes: int) -> ComplexArray:
        """See `TiltedLoss`."""
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

    def _log_error(
        self, tilts: FloatArray, log_mass: FloatArray, log_integral: FloatArray, least: FloatArray
    ) -> FloatArray:
        """Return the log of the relative error of the integral and of sums as small as `least`."""
        raise NotImplementedError

    def _ceiling(self, tilts: FloatArray) -> FloatArray:
        """Return an upper bound of K, finite."""
        raise NotImplementedError

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
        away = np.abs(self._loss - mean[:, np.newaxis])
        return np.asarray(np.einsum("kp,kp->k", mass, away**3))


class PureLoss(PointLoss):
    """A step that is e-DP, e = `epsilon`."""

    def __init__(self, epsilon: float) -> None:
        self.largest, self.tilts = epsilon, tilt_range(epsilon)
        self._usable = epsilon <= _LARGEST_EPSILON
        e = min(epsilon, _LARGEST_EPSILON)
        more = -math.log1p(math.exp(-e))
        super().__init__(np.array([-e, e]), np.array([more - e, more]))

    def _log_error(
        self, tilts: FloatArray, log_mass: FloatArray, log_integral: FloatArray, least: FloatArray
    ) -> FloatArray:
        return np.full(tilts.shape, -np.inf if self._usable else np.inf)

    def _ceiling(self, tilts: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(tilts * self.largest, LARGEST_CUMULANT))


class LaplaceLoss(PointLoss):
    """A step with Laplace noise, e = `epsilon`: two atoms, and Gauss's rule between them."""

    def __init__(self, epsilon: float) -> None:
        self.largest, self.tilts = epsilon, tilt_range(epsilon)
        self._usable = epsilon <= _LARGEST_EPSILON
        e = min(epsilon, _LARGEST_EPSILON)
        inner = e * _GAUSS_NODES
        log_inner = np.log(0.25 * e * _GAUSS_WEIGHTS) + 0.5 * (inner - e)
        log_half = -math.log(2.0)
        super().__init__(np.r_[-e, inner, e], np.r_[log_half - e, log_inner, log_half])

    def _log_error(
        self, tilts: FloatArray, log_mass: FloatArray, log_integral: FloatArray, least: FloatArray
    ) -> FloatArray:
        known = (tilts + 0.5) * self.largest <= _LARGEST_EXPONENT
        return np.where(known & self._usable, -np.inf, np.inf)

    def _ceiling(self, tilts: FloatArray) -> FloatArray:
        # K is at most t e, and from its closed form by about log 2 less; neither matters here.
        return np.asarray(np.minimum(tilts * self.largest, LARGEST_CUMULANT))

    def _third(
        self,
        tilts: FloatArray,
        log_integral: FloatArray,
        mass: FloatArray,
        mean: FloatArray,
    ) -> FloatArray:
        """Return it by Gauss's rule on either side of the mean, where the integrand has a kink."""
        e = self._loss[-1]
        atoms = np.abs(self._loss[[0, -1]] - mean[:, np.newaxis])
        third = (mass[:, [0, -1]] * atoms**3).sum(axis=1)
        for side in (-1.0, 1.0):
            half = 0.5 * (e - side * mean)[:, np.newaxis]
            away = half * (1.0 + _GAUSS_NODES)
            loss = mean[:, np.newaxis] + side * away
            exponent = (tilts + 0.5)[:, np.newaxis] * loss - 0.5 * e - log_integral[:, np.newaxis]
            third += (0.25 * half * _GAUSS_WEIGHTS * away**3 * exp_down(exponent)).sum(axis=1)
        return np.asarray(third)


class GaussianLoss:
    """A Gaussian step that is not sampled; `ratio` = c / s."""

    largest = math.inf

    def __init__(self, ratio: float) -> None:
        self.tilts = tilt_range(ratio)
        usable = min(ratio, _LARGEST_RATIO)
        self._known = ratio <= _LARGEST_RATIO and ratio * ratio > _SMALLEST_VARIANCE
        self._variance = max(usable * usable, _SMALLEST_VARIANCE)
        self._ceiling = max(min(ratio, 1e100) ** 2, _SMALLEST_VARIANCE)

    def cumulants(self, tilts: FloatArray) -> Cumulants:
        """See `TiltedLoss`."""
        value = np.minimum(0.5 * tilts * (tilts + 1.0) * self._ceiling, LARGEST_CUMULANT)
        variance = np.full(tilts.shape, self._variance)
        third = 2.0 * math.sqrt(2.0 / math.pi) * variance**1.5 * (1.0 + 0.5 * THIRD_ERROR)
        if not self._known:
            unknown = (
                np.full_like(value, _UNKNOWN_MEAN),
                variance,
                np.full_like(value, UNKNOWN_THIRD),
            )
            return Cumulants(value, *unknown)
        return Cumulants(value, (tilts + 0.5) * variance, variance, third)

    def log_transform(self, tilt: float, mean: float, step: float, nodes: int) -> ComplexArray:
        """See `TiltedLoss`."""
        u = step * np.arange(1.0, nodes + 1.0)
        return -0.5 * self._variance * u * u + 1j * u * ((tilt + 0.5) * self._variance - mean)


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


def tilt_range(size: float, sampling_rate: float = 1.0) -> tuple[float, float]:
    """Return `TiltedLoss.tilts` of a step whose loss has about this standard deviation."""
    usable = min(max(size, 1e-12), 20.0)
    return 0.1 / (1.0 + 0.5e6 * sampling_rate * usable * usable), max(REACH / usable, 10.0)


def log_sum(log_mass: FloatArray) -> FloatArray:
    """Return log of the sum of e^`log_mass` along its last axis."""
    top = log_mass.max(axis=1)
    return np.asarray(top + np.log(exp_down(log_mass - top[:, np.newaxis]).sum(axis=1)))


def exp_down(y: FloatArray) -> FloatArray:
    """Return e^y for y up to about 0, at least e^-700, because subnormal numbers are very slow."""
    return np.asarray(np.exp(np.maximum(y, -700.0)))


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
