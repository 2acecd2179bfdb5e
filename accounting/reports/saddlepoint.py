"""Saddle point: (epsilon, delta) of compositions at a cost that does not grow with their length.

The cumulants of independent losses add, so a user's cumulants at every tilt are `counts` times a
table. With K the sum of cumulant functions, F(z) = K(z) - z epsilon - log z - log(1 + z), and t
the saddle point, K'(t) = epsilon + 1/t + 1/(t + 1) (Asoodeh et al. 2022, slides):

    delta_1 = exp(F(t)) / sqrt(2 pi F''(t))
    delta_2 = exp(K(t) - epsilon t) E[e^{t (epsilon - Z)} (1 - e^{epsilon - Z})_+],
              Z normal with mean K'(t) and variance K''(t).

Both are approximations; the estimate is delta_2. Its error bound (`accounting.reports.tilted_sums`)
makes the interval. With few steps the interval is wide, and its lower end may be 0; its upper end
is never above the bound of Renyi accounting over real orders.

These are reports on realised histories. They never admit a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from accounting.conversions import gdp_tail
from accounting.costs.mechanisms import Gaussian, PoissonGaussian
from accounting.exact.errors import InvalidInput
from accounting.exact.validation import BoolArray, FloatArray, IntArray
from accounting.reports.bounds import Bounds
from accounting.reports.cumulants import DIRECTIONS, CumulantTable, cumulant_table, tilt_nodes
from accounting.reports.tilted_sums import LARGEST_EPSILON, TiltedSums

# Users are taken in chunks, so that their sums at all tilts stay within some megabytes.
_CHUNK = 1024
# Larger epsilons come from ratios c / s of 1e100 and more: not usable.
_LARGEST_EPSILON = 1e200
# An approximation of delta is cut off where exp would overflow.
_LARGEST_LOG = 700.0
# Of the root of a sum of squared ratios, and of exp.
_ROOT_ERROR, _EXP_ERROR = 2.0**-44, 2.0**-50
# Ratios c / s are rounded up to the first. A mu from the second on has no lower bound, where
# `gdp_tail` does not say how exact it is, and one from the third on is not usable.
_SMALLEST_MU, _LARGEST_EXACT_MU, _LARGEST_MU = 1e-100, 1e3, 1e100
_FAR = 1e4
# The lower end for a normal loss, below its epsilon.
_GAP = 2.0**-30


class SaddlePointReport:
    """Saddle-point bounds for histories of one mechanism; add/remove one user, larger direction.

    `norms`: the levels, shape (levels,), ascending, > 0. The losses of Gaussian steps (sampling
    rate 1) are normal, and their composition is exact up to rounding; a sampling rate of 0 costs
    nothing. The tables are made at first use and kept.
    """

    def __init__(self, mechanism: Gaussian | PoissonGaussian, norms: FloatArray) -> None:
        self._sampling_rate = (
            mechanism.sampling_rate if isinstance(mechanism, PoissonGaussian) else 1.0
        )
        self._ratios = norms / mechanism.noise_stddev
        self._tables: tuple[CumulantTable, ...] = ()

    def delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds of delta at `epsilon`, in nats, finite, >= 0.

        `counts`: steps at each level, shape (n, levels), >= 0. `estimate` is delta_2, clamped.
        """
        logs = self._per_user(
            counts,
            lambda sums, size: sums.log_delta(np.full(size, epsilon)),
            lambda mu: _gaussian_log_delta(mu, epsilon),
        )
        with np.errstate(under="ignore"):
            lower, estimate, upper = np.exp(logs)
        # exp itself is rounded; what is below the smallest float64 is not 0.
        upper = np.where(
            logs[2] > -np.inf, upper * (1.0 + _EXP_ERROR) + np.nextafter(0.0, 1.0), 0.0
        )
        return Bounds(lower * (1.0 - _EXP_ERROR), estimate, np.minimum(upper, 1.0))

    def epsilon(self, counts: IntArray, delta: float) -> Bounds:
        """Return bounds of epsilon, in nats, at 0 < `delta` < 1; infinite where not usable.

        `counts` as for `delta`. `lower` and `upper` are where the upper and lower bound of delta
        cross `delta`, on the safe side; `estimate` is where delta_2 does, clamped.
        """
        log_delta = math.log(delta)
        epsilons = self._per_user(
            counts,
            lambda sums, _: sums.epsilon(log_delta),
            lambda mu: _gaussian_epsilon(mu, log_delta),
        )
        lower, estimate, upper = np.maximum(epsilons, 0.0)
        upper[upper > _LARGEST_EPSILON] = np.inf
        return Bounds(lower, estimate, upper)

    def approximate_delta(
        self, counts: IntArray, epsilon: float, formula: Literal["delta_1", "delta_2"] = "delta_2"
    ) -> FloatArray:
        """Return delta_1 or delta_2, the larger direction's, shape (n,): no bound of anything.

        As Asoodeh et al. define them: not clamped to the interval, and possibly above 1. Where no
        saddle point lies among the tabulated tilts, the formula is taken at the last of them.
        """
        if formula not in ("delta_1", "delta_2"):
            raise InvalidInput("formula", formula, "delta_1 or delta_2")
        approximate = TiltedSums.log_delta_1 if formula == "delta_1" else TiltedSums.log_delta_2
        eps = min(epsilon, LARGEST_EPSILON)
        logs = self._per_user(
            counts,
            lambda sums, size: (approximate(sums, np.full(size, eps)),),
            lambda mu: _gaussian_log_delta(mu, eps)[1:2],
        )
        with np.errstate(under="ignore"):
            return np.asarray(np.exp(np.minimum(logs[0], _LARGEST_LOG)))

    def _per_user(
        self,
        counts: IntArray,
        sampled: Callable[[TiltedSums, int], tuple[FloatArray, ...]],
        gaussian: Callable[[FloatArray], tuple[FloatArray, ...]],
    ) -> FloatArray:
        """Return the larger direction's results, shape (parts, n); -infinity for no steps."""
        users = np.flatnonzero(counts.any(axis=1)) if self._sampling_rate > 0.0 else np.arange(0)
        ratios = np.clip(self._ratios, _SMALLEST_MU, _LARGEST_MU)
        results: FloatArray | None = None
        for start in range(0, users.size, _CHUNK):
            chunk = users[start : start + _CHUNK]
            rows = counts[chunk].astype(np.float64)
            if self._sampling_rate == 1.0:
                parts = gaussian(np.sqrt(rows @ ratios**2))
            else:
                directions = [
                    sampled(TiltedSums(table, rows), chunk.size) for table in self._made()
                ]
                parts = tuple(np.maximum(*pair) for pair in zip(*directions, strict=True))
            if results is None:
                results = np.full((len(parts), counts.shape[0]), -np.inf)
            results[:, chunk] = parts
        return np.full((3, counts.shape[0]), -np.inf) if results is None else results

    def _made(self) -> tuple[CumulantTable, ...]:
        if not self._tables:
            tilts = tilt_nodes(self._ratios, self._sampling_rate)
            self._tables = tuple(
                cumulant_table(self._ratios, self._sampling_rate, tilts, direction)
                for direction in DIRECTIONS
            )
        return self._tables


def _gaussian_log_delta(
    mu: FloatArray, epsilon: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (lower, exact up to rounding, upper) of log delta of mu-GDP."""
    usable = np.minimum(mu * (1.0 + _ROOT_ERROR), _LARGEST_MU)
    # Beyond `_FAR` standard deviations, delta is that at them, from above.
    eps = np.minimum(epsilon, usable * (_FAR + 0.5 * usable))
    upper = np.where(mu < _LARGEST_MU, np.minimum(gdp_tail.log_delta_up(usable, eps), 0.0), 0.0)
    estimate = np.minimum(gdp_tail.log_delta(usable, eps), upper)
    known = _exact(mu) & (eps == epsilon)
    lower = np.full_like(mu, -np.inf)
    lower[known] = np.minimum(_lower_log_delta(mu[known], eps[known]), estimate[known])
    return lower, estimate, upper


def _gaussian_epsilon(
    mu: FloatArray, log_delta: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (lower, estimate, upper) of the epsilon of mu-GDP; the estimate is rounded up."""
    usable = np.minimum(mu * (1.0 + _ROOT_ERROR), _LARGEST_MU)
    upper = np.where(mu < _LARGEST_MU, gdp_tail.epsilon(usable, log_delta), np.inf)
    known = _exact(mu)
    lower = np.zeros_like(mu)
    below = np.maximum(upper[known] * (1.0 - _GAP) - _GAP * mu[known], 0.0)
    reached = _lower_log_delta(mu[known], below) >= log_delta
    lower[known] = np.where(reached, below, 0.0)
    return lower, upper, upper


def _lower_log_delta(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Return a lower bound of log delta of mu-GDP, for mu the root of a rounded sum."""
    low = mu * (1.0 - _ROOT_ERROR)
    return np.asarray(2.0 * gdp_tail.log_delta(low, epsilon) - gdp_tail.log_delta_up(low, epsilon))


def _exact(mu: FloatArray) -> BoolArray:
    """Return where no ratio that matters was cut off, and the far tail is computed accurately."""
    return np.asarray((mu > _SMALLEST_MU / _ROOT_ERROR) & (mu < _LARGEST_EXACT_MU))
