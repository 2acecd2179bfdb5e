"""The privacy loss of one step, tilted: its cumulants, and its transform on a vertical line.

L is the loss log(dP/dQ) of an outcome drawn from P. Tilted by t it has the density e^{t L} dP / M,
log M = K(t) its cumulant function. Because E e^-L = 1, with D(y) = e^y - 1 - y >= 0,

    e^K(t) - 1 = E D(t L) + t E D(-L)                                             (t > 0),

a sum of terms that are all >= 0: nothing cancels, even if K is small. The mean K', the variance K''
and the third absolute central moment of the tilted loss are sums over points in the same way, each
with its loss and the logarithm of its probability. On the vertical line t + i u,

    log M(t + i u) = K(t) + i u K'(t) + log(1 + E_t(e^{i u (L - K')} - 1)),

where sines give the parts of the last expectation without cancellation, -2 sin^2 and sin.

The loss of a Gaussian step, a = c / s, is normal with mean a^2 / 2 and variance a^2. `sampled_loss`
has the sampled Gaussian step. Neighbours add or remove one user.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple, TypeAlias

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
UNKNOWN_MEAN: Final = 1e100
# Beyond this many standard deviations, and exponents, no tail matters to delta > 1e-300.
REACH: Final = 45.0
SMALLEST_VARIANCE: Final = 1e-60
# For larger ratios only an upper bound of K is known.
_LARGEST_RATIO = 1e4


class Cumulants(NamedTuple):
    """K(t), K'(t), K''(t) and the third absolute central moment at k tilts, shape (k,) each.

    In nats, within `RELATIVE_ERROR`; the third moment is an upper bound, within `THIRD_ERROR`.
    If it is `UNKNOWN_THIRD`, K is an upper bound, K' is large, and K'' is meaningless.
    """

    cumulant: FloatArray
    mean: FloatArray
    variance: FloatArray
    third: FloatArray


class GaussianLoss:
    """A Gaussian step that is not sampled; `ratio` = c / s.

    `largest`: the supremum of the loss. `tilts`: from below the saddle points of a million steps to
    beyond that of one step for delta = 1e-300, roughly.
    """

    largest = math.inf

    def __init__(self, ratio: float) -> None:
        self.tilts = tilt_range(ratio)
        usable = min(ratio, _LARGEST_RATIO)
        self._known = ratio <= _LARGEST_RATIO and ratio * ratio > SMALLEST_VARIANCE
        self._variance = max(usable * usable, SMALLEST_VARIANCE)
        self._ceiling = max(min(ratio, 1e100) ** 2, SMALLEST_VARIANCE)

    def cumulants(self, tilts: FloatArray) -> Cumulants:
        """Return K and its moments at `tilts`, shape (k,), > 0, ascending."""
        value = np.minimum(0.5 * tilts * (tilts + 1.0) * self._ceiling, LARGEST_CUMULANT)
        variance = np.full(tilts.shape, self._variance)
        third = 2.0 * math.sqrt(2.0 / math.pi) * variance**1.5 * (1.0 + 0.5 * THIRD_ERROR)
        if not self._known:
            unknown = (
                np.full_like(value, UNKNOWN_MEAN),
                variance,
                np.full_like(value, UNKNOWN_THIRD),
            )
            return Cumulants(value, *unknown)
        return Cumulants(value, (tilts + 0.5) * variance, variance, third)

    def log_transform(self, tilt: float, mean: float, step: float, nodes: int) -> ComplexArray:
        """Return log E_t e^{i k h (L - mean)} for k = 1 .. nodes, h = `step`, accurate, unbounded.

        `tilt`: one whose K is known; `mean`: about K' there.
        """
        u = step * np.arange(1.0, nodes + 1.0)
        return -0.5 * self._variance * u * u + 1j * u * ((tilt + 0.5) * self._variance - mean)


def tilt_range(ratio: float, sampling_rate: float = 1.0) -> tuple[float, float]:
    """Return `tilts` of a step with this ratio c / s."""
    usable = min(max(ratio, 1e-12), 20.0)
    return 0.1 / (1.0 + 0.5e6 * sampling_rate * usable * usable), max(REACH / usable, 10.0)


def log_sum(log_mass: FloatArray) -> FloatArray:
    """Return log of the sum of e^`log_mass` along its last axis."""
    top = log_mass.max(axis=1)
    return np.asarray(top + np.log(exp_down(log_mass - top[:, np.newaxis]).sum(axis=1)))


def exp_down(y: FloatArray) -> FloatArray:
    """Return e^y for y up to about 0, at least e^-700, because subnormal numbers are very slow."""
    return np.asarray(np.exp(np.maximum(y, -700.0)))
