"""Saddle point: (epsilon, delta) of compositions, in a time independent of their length.

The cumulants of independent losses add, so a user's cumulants at every tilt are `counts` times a
table. With K the sum of cumulant functions, F(z) = K(z) - z epsilon - log z - log(1 + z), and t
the saddle point, K'(t) = epsilon + 1/t + 1/(t + 1) (Asoodeh et al. 2022, slides):

    delta   = (1 / 2 pi) integral of exp(F(t + i u)) du
    delta_1 = exp(F(t)) / sqrt(2 pi F''(t))
    delta_2 = exp(K(t) - epsilon t) E[e^{t (epsilon - Z)} (1 - e^{epsilon - Z})_+],
              Z normal with mean K'(t) and variance K''(t).

The last two approximate the integral to first order, and are far off where a tilted loss has a
heavy tail. Estimates are the integral itself, by a sum over nodes on a line near the saddle point
(`contour`). Bounds follow from the error of delta_2, at the best of some tilts (`tilted_sums`);
they tighten as steps accumulate, and with few steps the lower end may be 0. No upper bound exceeds
that of Rényi accounting at its default orders.

These are reports on realised histories. They never admit a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from accounting.conversions import renyi_to_delta, renyi_to_epsilon
from accounting.costs.mechanisms import DIRECTIONS, Direction
from accounting.exact.errors import InvalidInput
from accounting.exact.validation import FloatArray, IntArray, nonnegative_finite, probability
from accounting.reports.bounds import Bounds
from accounting.reports.histories import Mechanisms
from accounting.reports.renyi import DEFAULT_ORDERS
from accounting.reports.saddlepoint import normal_losses
from accounting.reports.saddlepoint.contour import Contour
from accounting.reports.saddlepoint.levels import Levels
from accounting.reports.saddlepoint.tilted_sums import LARGEST_EPSILON, TiltedSums

# Users are taken in chunks, so that their sums at all tilts stay within some megabytes.
_CHUNK = 1024
# Larger epsilons come from ratios c / s of 1e100 and more: not usable.
_LARGEST_EPSILON = 1e200
# Parts of the way from one tilt of the table to the next, between which K is a quintic to 1e-9.
_PARTS: Final = np.linspace(0.0, 1.0, 17)
# An approximation of delta is cut off where exp would overflow; and exp's own rounding.
_LARGEST_LOG, _EXP_ERROR = 700.0, 2.0**-50

Formula: TypeAlias = Literal["delta_1", "delta_2"]


class SaddlePointReport:
    """Saddle-point bounds for realised histories; add/remove one user, the larger direction.

    `norms`: of the levels, shape (levels,), > 0, in the norm of their mechanism. `mechanisms`: the
    mechanism of each level, a sequence, or one for all levels.

    Histories of Gaussian steps alone (sampling rate 1) have normal losses and are exact up to
    rounding; a sampling rate of 0 costs nothing. Levels that are equal in mechanism and norm share
    their tables, which are computed when a history first has steps there.
    """

    def __init__(self, mechanisms: Mechanisms, norms: FloatArray) -> None:
        self._levels = Levels(mechanisms, norms)

    def delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds of delta at `epsilon`, in nats, finite, >= 0.

        `counts`: steps at each level, shape (n, levels), >= 0. `estimate` is the integral.
        """
        at = nonnegative_finite("epsilon", epsilon)
        logs = self._per_user(
            counts,
            lambda steps: self._log_delta(steps, at),
            lambda mu: normal_losses.log_delta_bounds(mu, at),
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

        `counts` as for `delta`. `estimate` is where the integral is `delta`.
        """
        at = probability("delta", delta)
        epsilons = self._per_user(
            counts,
            lambda steps: self._epsilon(steps, at),
            lambda mu: normal_losses.epsilon_bounds(mu, math.log(at)),
        )
        lower, estimate, upper = np.maximum(epsilons, 0.0)
        upper[upper > _LARGEST_EPSILON] = np.inf
        return Bounds(lower, estimate, upper)

    def approximate_delta(
        self, counts: IntArray, epsilon: float, formula: Formula = "delta_2"
    ) -> FloatArray:
        """Return delta_1 or delta_2, the larger direction's, shape (n,); not a bound.

        As Asoodeh et al. define them: not clamped to the interval, and possibly above 1. Where no
        saddle point lies among the tilts of known cumulants, the formula is taken at the last one.
        """
        if formula not in get_args(Formula):
            raise InvalidInput("formula", formula, "delta_1 or delta_2")
        eps = min(nonnegative_finite("epsilon", epsilon), LARGEST_EPSILON)
        logs = self._per_user(
            counts,
            lambda steps: [self._approximate(steps, eps, formula)],
            lambda mu: [normal_losses.log_delta_bounds(mu, eps).estimate],
        )
        with np.errstate(under="ignore"):
            return np.asarray(np.exp(np.minimum(logs[0], _LARGEST_LOG)))

    def _per_user(
        self,
        counts: IntArray,
        mixed: Callable[[FloatArray], Sequence[FloatArray]],
        normal: Callable[[FloatArray], Sequence[FloatArray]],
    ) -> FloatArray:
        """Return the results of the functions, shape (3, n); -infinity for users without steps."""
        levels, all_steps = self._levels, self._levels.steps(counts)
        results = np.full((3, len(all_steps)), -np.inf)
        for start in range(0, len(all_steps), _CHUNK):
            steps = all_steps[start : start + _CHUNK]
            other = steps[:, ~levels.normal].any(axis=1)
            rows = np.flatnonzero(steps.any(axis=1) & ~other)
            if rows.size:
                normals = steps[np.ix_(rows, np.flatnonzero(levels.normal))]
                mu = normal_losses.summed_mu(normals, levels.sizes[levels.normal])
                for result, part in zip(results, normal(mu), strict=False):
                    result[start + rows] = part
            rows = np.flatnonzero(other)
            if rows.size:
                for result, part in zip(results, mixed(steps[rows]), strict=False):
                    result[start + rows] = part
        return results

    def _directions(self, steps: FloatArray) -> tuple[Direction, ...]:
        """Return the directions in which losses differ: one if no step is sampled."""
        return DIRECTIONS if steps[:, self._levels.sampled].any() else DIRECTIONS[:1]

    def _epsilon(self, steps: FloatArray, delta: float) -> Bounds:
        """Return bounds of epsilon; `steps`: (n, columns), each row with a step in one at least."""
        log_delta, found = math.log(delta), Bounds(*np.zeros((3, steps.shape[0])))
        for direction in self._directions(steps):
            sums, contour = self._sums(steps, direction)
            lower, upper = sums.epsilon(log_delta)
            # Below what the other direction has, an estimate does not matter.
            rows = np.flatnonzero(upper > found.estimate)
            estimate = np.clip(contour.epsilon(log_delta, upper, rows), lower, upper)
            found = _larger(found, Bounds(lower, estimate, upper))
        upper = renyi_to_epsilon(DEFAULT_ORDERS, self._levels.divergences(steps), delta)
        return _at_most(found, upper)

    def _log_delta(self, steps: FloatArray, epsilon: float) -> Bounds:
        """Return bounds of log delta; `steps` as for `_epsilon`."""
        found = Bounds(*np.full((3, steps.shape[0]), -np.inf))
        epsilons = np.full(steps.shape[0], min(epsilon, LARGEST_EPSILON))
        for direction in self._directions(steps):
            sums, contour = self._sums(steps, direction)
            lower, upper = sums.log_delta(epsilons)
            rows = np.flatnonzero(upper > found.estimate)
            estimate = np.clip(contour.log_delta(epsilons, upper, rows), lower, upper)
            found = _larger(found, Bounds(lower, estimate, upper))
        if epsilon > LARGEST_EPSILON:  # delta at the smaller one is an upper bound
            found.lower[:] = -np.inf
        upper = renyi_to_delta(DEFAULT_ORDERS, self._levels.divergences(steps), epsilon)
        return _at_most(found, np.log(np.maximum(upper, np.nextafter(0.0, 1.0))))

    def _sums(self, steps: FloatArray, direction: Direction) -> tuple[TiltedSums, Contour]:
        columns, used = self._levels.columns(direction), np.flatnonzero(steps.any(axis=0))
        counts = steps[:, used]
        sums = TiltedSums(columns.table(used), counts)
        rough = np.logical_not(steps[:, self._levels.smooth].any(axis=1))
        return sums, Contour(columns, used, counts, sums, rough)

    def _approximate(self, steps: FloatArray, epsilon: float, formula: Formula) -> FloatArray:
        """Return the logarithm of the formula at the saddle point; `steps` as for `_epsilon`."""
        logs = np.full(steps.shape[0], -np.inf)
        for direction in self._directions(steps):
            columns, used = self._levels.columns(direction), np.flatnonzero(steps.any(axis=0))
            sums = TiltedSums(columns.table(used), steps[:, used])
            low, high = sums.around_the_saddle(np.full(logs.shape, epsilon))
            for ends in np.unique(np.stack([low, high]), axis=1).T:
                rows = np.flatnonzero((low == ends[0]) & (high == ends[1]))
                tilts = np.unique(ends[0] * (ends[1] / ends[0]) ** _PARTS)
                sums = TiltedSums(columns.table(used, tilts), steps[np.ix_(rows, used)])
                function = sums.log_delta_1 if formula == "delta_1" else sums.log_delta_2
                logs[rows] = np.maximum(logs[rows], function(np.full(rows.shape, epsilon)))
        return logs


def _larger(one: Bounds, other: Bounds) -> Bounds:
    """Return bounds of the larger of two numbers."""
    return Bounds(*(np.maximum(*pair) for pair in zip(one, other, strict=True)))


def _at_most(bounds: Bounds, upper: FloatArray) -> Bounds:
    """Return bounds that are also at most `upper`, but never below the lower one."""
    upper = np.maximum(np.minimum(bounds.upper, upper), bounds.lower)
    return Bounds(bounds.lower, np.minimum(bounds.estimate, upper), upper)
