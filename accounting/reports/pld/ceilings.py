"""Upper bounds of delta in the add direction, without a lattice: enough for most users.

Adding a user is below removing one in most histories. The loss of sampled steps is bounded by
-log(1 - q) each, and delta falls to 0 on the way to their sum, faster than a lattice can resolve.

Outcomes between two places are split over them so that their masses under both distributions are
kept ("connect the dots", Doroshenko et al. 2022): the result dominates the step. Its cumulants
bound delta by Chernoff, at any tilt.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy.special import ndtr

from accounting.exact.argument_checks import FloatArray
from accounting.reports.pld.losses import SampledGaussian, Steps, StepSource
from accounting.reports.pld.transforms import log_largest_weight

_REACH, _SPACING = 37.5, 0.25  # in standard deviations of the noise
_PLACES: Final = np.linspace(-_REACH, _REACH, int(2 * _REACH / _SPACING) + 1)
# Masses under N(0, 1) that are known to rounding end here.
_FAR: Final = 30.0
_TILTS: Final = 2.0 ** np.arange(-24.0, 40.25, 0.5)
_LOG_WEIGHT: Final = log_largest_weight(_TILTS)
_ROUNDING: Final = 2.0**-48
_LARGE: Final = 30.0
_UNLIMITED: Final = 1e280


class AddedCeilings:
    """Chernoff's bounds for the steps of some levels; cumulants are computed when needed."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._cumulants = np.full((len(steps.sources), _TILTS.size), np.nan)
        self._largest = np.array([_largest(source) for source in steps.sources])
        self._largest[steps.unbounded] = _UNLIMITED

    def delta(self, counts: FloatArray, epsilon: FloatArray) -> FloatArray:
        """Return upper bounds of delta at `epsilon`, shape (n,); `counts`: (n, levels)."""
        used = np.flatnonzero(counts.any(axis=0))
        for level in used[np.isnan(self._cumulants[used, 0])].tolist():
            self._cumulants[level] = (
                _UNLIMITED if self._steps.unbounded[level] else _of(self._steps.sources[level])
            )
        sums = counts[:, used] @ self._cumulants[used]
        sums *= 1.0 + (used.size + 4.0) * 2.0**-52
        log_bound = sums + _LOG_WEIGHT - np.multiply.outer(epsilon, _TILTS * (1.0 - 2.0**-50))
        with np.errstate(under="ignore"):
            bound = np.exp(np.minimum(log_bound.min(axis=1), 1.0))
        bound += counts.sum(axis=1) * (2.0 * float(ndtr(-_REACH)))
        bound = bound * (1.0 + 2.0**-40) + np.nextafter(0.0, 1.0)
        return np.where(epsilon >= self.largest(counts), 0.0, np.minimum(bound, 1.0))

    def largest(self, counts: FloatArray) -> FloatArray:
        """Return the largest loss of each user, infinite if there is none; shape (n,)."""
        total = counts @ self._largest * (1.0 + (counts.shape[1] + 4.0) * 2.0**-52)
        return np.where(total < _UNLIMITED, total, np.inf)


def _largest(source: StepSource) -> float:
    """Return the largest loss when a user is added."""
    if not isinstance(source, SampledGaussian):
        return source.size
    rate = source.sampling_rate
    return -math.log1p(-rate) * (1.0 + 2.0**-50) if rate < 1.0 else _UNLIMITED


def _of(source: StepSource) -> FloatArray:
    """Return upper bounds of log E exp(t L) at the tilts t, shape (tilts,)."""
    if not isinstance(source, SampledGaussian):
        return source.cumulants(_TILTS) + _ROUNDING * (1.0 + (_TILTS + 1.0) * source.size)
    if source.sampling_rate == 1.0:
        squares = _TILTS * (_TILTS + 1.0) * (0.5 * source.ratio * source.ratio)
        return np.asarray(squares * (1.0 + _ROUNDING))
    return _cumulants(source)


def _cumulants(source: SampledGaussian) -> FloatArray:
    """Return upper bounds of log E exp(t L) at the tilts t, shape (tilts,); L the added loss."""
    x, ratio = _PLACES, source.ratio
    without, sampled = _between(x), _between(x - ratio)
    exponent = ratio * x[:-1] - 0.5 * ratio * ratio
    width = ratio * np.diff(x)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        right = (sampled * np.exp(-exponent) - without) / np.expm1(width)
        # The larger loss is on the left, so mass of unknown loss is counted there.
        right -= without * (8.0 + np.abs(exponent)) * (1.0 + 1.0 / width) * _ROUNDING
        known = (right > 0.0) & (right < without) & (x[1:] < _FAR)
    right = np.where(known, right, 0.0)
    mass = np.zeros(x.size)
    mass[:-1] += without - right
    mass[1:] += right
    y = np.multiply.outer(_TILTS, -source.loss(x))
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        risen = np.expm1(np.minimum(y, _LARGE))
        near = risen @ mass + _ROUNDING * (np.abs(risen) @ mass)
        exponents = y + np.log(mass)
        top = exponents.max(axis=1)
        far = top + np.log(np.exp(exponents - top[:, np.newaxis]).sum(axis=1))
        near = np.log1p(np.maximum(near, -0.5))
    cumulants = np.where(y.max(axis=1) > _LARGE, far, near)
    return np.asarray(cumulants + _ROUNDING * (np.abs(cumulants) + np.abs(top)))


def _between(x: FloatArray) -> FloatArray:
    """Return the masses under N(0, 1) between neighbouring places."""
    left, right = x[:-1], x[1:]
    lower, upper = np.where(left > 0.0, -right, left), np.where(left > 0.0, -left, right)
    return np.asarray(np.maximum(ndtr(upper) - ndtr(lower), 0.0))
