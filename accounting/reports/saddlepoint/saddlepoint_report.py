"""Saddle point: (epsilon, delta) of compositions, in a time independent of their length.

The cumulants of independent losses add, so a user's cumulants at every tilt are `counts` times a
table. With K the sum of cumulant functions and F(z) = K(z) - z epsilon - log z - log(1 + z),

    delta = (1 / 2 pi) integral of exp(F(t + i u)) du       at any t > 0 (Asoodeh et al. 2022).

Estimates are this integral, by a sum over nodes on a line (`contour`). Bounds follow from the error
of a first-order approximation at the best of some tilts (`tilted_sums`); they tighten as steps
accumulate, and with few steps the lower end may be 0. No upper bound exceeds that of Rényi
accounting at its default orders.

These are reports on realised histories. They never admit a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from accounting.costs.mechanisms import DIRECTIONS, Direction
from accounting.exact.errors import InvalidInput
from accounting.exact.validation import FloatArray, IntArray
from accounting.reports.gaussian import GaussianReport
from accounting.reports.histories import Bounds, LossParameters, Mechanisms, loss_parameters
from accounting.reports.renyi import RenyiReport
from accounting.reports.saddlepoint.contour import Contour
from accounting.reports.saddlepoint.loss_columns import LossColumns
from accounting.reports.saddlepoint.sampled_loss import SampledLoss, TiltedLoss
from accounting.reports.saddlepoint.tilted_losses import GaussianLoss
from accounting.reports.saddlepoint.tilted_sums import LARGEST_EPSILON, TiltedSums

_CHUNK = 1024  # users at a time, so that their sums at all tilts stay within some megabytes
# Larger epsilons come from ratios c / s of 1e100 and more: not usable.
_LARGEST_USABLE = 1e200
_EXP_ERROR = 2.0**-50  # of exp itself


class SaddlePointReport:
    """Saddle-point bounds for realised histories; add/remove one user, the larger direction.

    `norms`: of the levels, shape (levels,), > 0, in the norm of their mechanism. `mechanisms`: the
    mechanism of each level, a sequence, or one for all levels.

    All noise is Gaussian, and users are sampled or not; `InvalidInput` is raised for other steps.
    Histories of Gaussian steps alone (sampling rate 1) are exact up to rounding; a sampling rate of
    0 costs nothing. Levels with equal losses share a column of the tables, which are computed when
    a history first has steps there. A ratio c / s is off by a rounding, for which the errors of the
    tables leave room.
    """

    def __init__(self, mechanisms: Mechanisms, norms: FloatArray) -> None:
        self._gaussian = GaussianReport(mechanisms, norms)
        self._renyi = RenyiReport(mechanisms, norms)
        steps = loss_parameters(mechanisms, norms)
        self._steps = tuple(dict.fromkeys(step for step in steps if step.kind != "nothing"))
        columns = {step: column for column, step in enumerate(self._steps)}
        self._column = np.array([columns.get(step, -1) for step in steps])
        self._tables: dict[Direction, LossColumns] = {}

    def delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds of delta at `epsilon`, in nats, finite, >= 0.

        `counts`: int64, steps at each level, shape (n, levels). `estimate` is the integral.
        """
        return self._gaussian.exact_or(
            counts,
            lambda rows: self._gaussian.delta(rows, epsilon),
            lambda rows: self._in_chunks(rows, lambda part: self._delta(part, epsilon)),
        )

    def epsilon(self, counts: IntArray, delta: float) -> Bounds:
        """Return bounds of epsilon, in nats, at 0 < `delta` < 1; infinite where not usable.

        `counts` as for `delta`. `estimate` is the epsilon at which the integral is `delta`.
        """
        return self._gaussian.exact_or(
            counts,
            lambda rows: self._gaussian.epsilon(rows, delta),
            lambda rows: self._in_chunks(rows, lambda part: self._epsilon(part, delta)),
        )

    def _in_chunks(self, counts: IntArray, ask: Callable[[IntArray], Bounds]) -> Bounds:
        starts = range(0, len(counts), _CHUNK)
        parts = [ask(counts[start : start + _CHUNK]) for start in starts]
        return Bounds(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _epsilon(self, counts: IntArray, delta: float) -> Bounds:
        """Return bounds of epsilon; each row of `counts` has a step that is not Gaussian."""
        steps = self._columns_of(counts)
        log_delta, found = math.log(delta), Bounds(*np.zeros((3, len(steps))))
        for direction in DIRECTIONS:
            sums, contour = self._sums(steps, direction)
            lower, upper = sums.epsilon(log_delta)
            # Where the other direction has more, an estimate does not matter.
            rows = np.flatnonzero(upper > found.estimate)
            estimate = np.clip(contour.epsilon(log_delta, upper, rows), lower, upper)
            found = _larger(found, Bounds(lower, estimate, upper))
        lower, estimate, upper = _at_most(found, self._renyi.epsilon(counts, delta).upper)
        upper = np.where(upper > _LARGEST_USABLE, np.inf, upper)
        return Bounds(*np.maximum((lower, estimate, upper), 0.0))

    def _delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds of delta; `counts` as for `_epsilon`."""
        steps = self._columns_of(counts)
        found = Bounds(*np.full((3, len(steps)), -np.inf))
        epsilons = np.full(len(steps), min(epsilon, LARGEST_EPSILON))
        for direction in DIRECTIONS:
            sums, contour = self._sums(steps, direction)
            lower, upper = sums.log_delta(epsilons)
            rows = np.flatnonzero(upper > found.estimate)
            estimate = np.clip(contour.log_delta(epsilons, upper, rows), lower, upper)
            found = _larger(found, Bounds(lower, estimate, upper))
        if epsilon > LARGEST_EPSILON:  # delta at the smaller one is an upper bound
            found.lower[:] = -np.inf
        upper = self._renyi.delta(counts, epsilon).upper
        logs = _at_most(found, np.log(np.maximum(upper, np.nextafter(0.0, 1.0))))
        with np.errstate(under="ignore"):
            lower, estimate, upper = np.exp(logs)
        # exp itself is rounded, and a delta below the smallest float64 is not 0.
        above = np.minimum(upper * (1.0 + _EXP_ERROR) + np.nextafter(0.0, 1.0), 1.0)
        upper = np.where(logs.upper > -np.inf, above, 0.0)
        return Bounds(lower * (1.0 - _EXP_ERROR), estimate, upper)

    def _columns_of(self, counts: IntArray) -> FloatArray:
        """Return the steps of each user in each column, (n, columns), from (n, levels)."""
        if np.array_equal(self._column, np.arange(len(self._steps))):
            return counts.astype(np.float64)
        total = np.zeros((counts.shape[0], len(self._steps)))
        for level in np.flatnonzero((self._column >= 0) & counts.any(axis=0)).tolist():
            total[:, self._column[level]] += counts[:, level]
        return total

    def _sums(self, steps: FloatArray, direction: Direction) -> tuple[TiltedSums, Contour]:
        if direction not in self._tables:
            losses = [tilted_loss(step, direction) for step in self._steps]
            self._tables[direction] = LossColumns(losses)
        columns, used = self._tables[direction], np.flatnonzero(steps.any(axis=0))
        counts = steps[:, used]
        sums = TiltedSums(columns.table(used), counts)
        return sums, Contour(columns, used, counts, sums)


def tilted_loss(step: LossParameters, direction: Direction) -> TiltedLoss:
    """Return the privacy loss of a step; steps with sampling rate 0 have none."""
    if step.kind == "gaussian":
        return GaussianLoss(step.size)
    if step.kind == "sampled":
        return SampledLoss(step.size, step.sampling_rate, direction)
    allowed = "Gaussian noise, with one coin per user at most: use a method other than saddlepoint"
    raise InvalidInput("mechanism", step, allowed)


def _larger(one: Bounds, other: Bounds) -> Bounds:
    """Return bounds of the larger of two numbers."""
    return Bounds(*(np.maximum(*pair) for pair in zip(one, other, strict=True)))


def _at_most(bounds: Bounds, upper: FloatArray) -> Bounds:
    """Return bounds that are also at most `upper`, but never below the lower one."""
    upper = np.maximum(np.minimum(bounds.upper, upper), bounds.lower)
    return Bounds(bounds.lower, np.minimum(bounds.estimate, upper), upper)
