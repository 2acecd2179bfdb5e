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

from accounting.errors import InvalidInput
from accounting.mechanisms import Gaussian, PoissonGaussian
from accounting.reports import normal_losses
from accounting.reports.bounds import Bounds
from accounting.reports.cumulants import DIRECTIONS, CumulantTable, cumulant_table, tilt_nodes
from accounting.reports.tilted_sums import LARGEST_EPSILON, TiltedSums
from accounting.validation import FloatArray, IntArray

# Users are taken in chunks, so that their sums at all tilts stay within some megabytes.
_CHUNK = 1024
# Larger epsilons come from ratios c / s of 1e100 and more: not usable.
_LARGEST_EPSILON = 1e200
# An approximation of delta is cut off where exp would overflow.
_LARGEST_LOG = 700.0
# Of exp.
_EXP_ERROR = 2.0**-50


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
            lambda mu: normal_losses.log_delta_bounds(mu, epsilon),
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
            lambda mu: normal_losses.epsilon_bounds(mu, log_delta),
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
            lambda mu: normal_losses.log_delta_bounds(mu, eps)[1:2],
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
        results: FloatArray | None = None
        for start in range(0, users.size, _CHUNK):
            chunk = users[start : start + _CHUNK]
            rows = counts[chunk].astype(np.float64)
            if self._sampling_rate == 1.0:
                parts = gaussian(normal_losses.summed_mu(rows, self._ratios))
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
