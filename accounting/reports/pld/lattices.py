"""Choose the lattice and tilt for a history: these affect tightness and speed, not validity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.special import log_ndtr

from accounting.exact.argument_checks import FloatArray, IntArray
from accounting.reports.pld.discretisation import LOSS_ERROR, SMALLEST_STEP
from accounting.reports.pld.losses import SampledGaussian, StepSource
from accounting.reports.pld.transforms import log_largest_weight

TILTS: Final = 2.0 ** np.arange(-24.0, 36.25, 0.25)
# A larger tilt than the best one needs a shorter period, a smaller one if losses have a heavy tail.
# Among the tilts that lose at most this much accuracy of delta, in nats, the one with the shortest
# period is taken.
_LARGER_COST, _TILT_COST, _LOWER_TILTS = 3.0, 7.0, range(0, 24, 2)
# Tilts at whole octaves come first, so that users share more tables.
_OCTAVE, _HALF_OCTAVE_HANDICAP = 4, 1.7
CUTS: Final = (4.0, 5.0, 6.0, 7.0, 8.0, 9.5, 11.0, 13.0, 16.0, 20.0, 24.0, 30.0, 37.5)
# Mass outside the range of outcomes may add this to delta, in nats below it.
_OUTSIDE_MARGIN = 11.0
# Discretisation may add this to epsilon, relative to it.
_TOLERANCE = 2e-4
# Aliasing may add this to delta, in nats below it.
_MARGIN = 18.0
_STEP_EXPONENTS = np.arange(-90, 2)
_LOG2_SIZES = (7, 19)
_LOG_SMALLEST_DELTA = -740.0
_FLOOR_MARGIN = 5.0
_LARGE = 1e200


class LatticePlan(NamedTuple):
    """For each user, shape (n,): h = 2**`step_exponent`, n = 2**`log2_size`, tilt and cut by index.

    `epsilon` and `log_delta` approximate the requested point by Chernoff's bound.
    `least_exponent`: that of the finest lattice that the losses allow.
    """

    step_exponent: IntArray
    log2_size: IntArray
    tilt: IntArray
    cut: IntArray
    epsilon: FloatArray
    log_delta: FloatArray
    least_exponent: IntArray

    def finer(self, previous: LatticePlan, error: FloatArray) -> LatticePlan:
        """Return this plan, or with a finer step where the tilt of the previous one was the same.

        `error`: the previous plan's error over the error wanted, which falls with the square of the
        step.
        """
        halvings = np.clip(np.ceil(0.5 * np.log2(error)), 1, 4).astype(np.int64)
        target = np.minimum(self.step_exponent, previous.step_exponent - halvings)
        target = np.where(self.tilt == previous.tilt, target, self.step_exponent)
        target = np.maximum(target, self.least_exponent)
        finer = np.minimum(self.step_exponent - target, _LOG2_SIZES[1] - self.log2_size)
        finer = np.maximum(finer, 0)
        return self._replace(
            step_exponent=self.step_exponent - finer, log2_size=self.log2_size + finer
        )

    def select(self, users: IntArray) -> LatticePlan:
        """Return the plan of some of the users."""
        return LatticePlan._make(column[users] for column in self)

    def updated(self, users: IntArray, other: LatticePlan) -> LatticePlan:
        """Return this plan with the entries of `users` replaced by `other`."""
        updated = self.select(np.arange(self.tilt.size))
        for column, values in zip(updated, other, strict=True):
            column[users] = values
        return updated


class LatticeChooser:
    """Chooses from rough cumulants of the loss at each level, made once.

    `sources`: the losses of a step at each level.
    """

    def __init__(self, sources: Sequence[StepSource]) -> None:
        self._sources = sources
        self._curves: dict[int, tuple[FloatArray, FloatArray]] = {}
        self._largest_losses: dict[int, FloatArray] = {}
        self._deviation = np.array([deviation(source) for source in sources])
        steps = 2.0**_STEP_EXPONENTS
        # The variance that discretising one step adds; less if the loss is narrower.
        self._spread = np.minimum(steps * steps, 4.0 * self._deviation[:, None] * steps)
        self._log_weight = log_largest_weight(TILTS)

    def at_delta(self, counts: FloatArray, delta: FloatArray, added: bool) -> LatticePlan:
        """Plan to find epsilon at `delta`, shape (n,); `counts`: (n, levels)."""
        log_delta = np.log(delta)
        cumulants = self._composed(counts, self._cut(counts, log_delta), added)
        epsilons = (cumulants + self._log_weight - log_delta[:, None]) / TILTS
        return self.at_both(counts, np.maximum(epsilons.min(axis=1), 0.0), log_delta, added)

    def at_epsilon(
        self, counts: FloatArray, epsilon: FloatArray, added: bool, floor: FloatArray
    ) -> LatticePlan:
        """Plan to find delta at `epsilon`, shape (n,), as far as it is not far below `floor`."""
        everything = np.full(epsilon.size, len(CUTS) - 1)
        cumulants = self._composed(counts, everything, added)
        log_delta = (cumulants + self._log_weight - TILTS * epsilon[:, None]).min(axis=1)
        with np.errstate(divide="ignore"):
            lowest = np.maximum(np.log(floor) - _FLOOR_MARGIN, _LOG_SMALLEST_DELTA)
        return self.at_both(counts, epsilon, np.clip(log_delta, lowest, 0.0), added)

    def scale(self, counts: FloatArray, epsilon: FloatArray) -> FloatArray:
        """Return the scale of each epsilon, to compare its errors with, shape (n,)."""
        deviation = np.sqrt(counts @ (self._deviation * self._deviation))
        return np.asarray(np.maximum(np.maximum(epsilon, 0.25 * deviation), 1e-300))

    def _cut(self, counts: FloatArray, log_delta: FloatArray) -> IntArray:
        """Return the index of the least cut beyond which all steps together are far below delta."""
        needed = np.log(counts.sum(axis=1)) - log_delta + _OUTSIDE_MARGIN
        log_tails = -log_ndtr(-np.array(CUTS))
        index = np.searchsorted(log_tails, needed).astype(np.int64)
        return np.asarray(np.minimum(index, len(CUTS) - 1))

    def _composed(self, counts: FloatArray, cut: IntArray, added: bool) -> FloatArray:
        """Return the cumulants of each user at all tilts, shape (n, tilts)."""
        result = np.empty((counts.shape[0], TILTS.size))
        for index in np.unique(cut).tolist():
            if index not in self._curves:
                curves = [_cumulants(source, CUTS[index]) for source in self._sources]
                removed, raised = zip(*curves, strict=True)
                self._curves[index] = np.array(removed), np.array(raised)
            users = cut == index
            result[users] = counts[users] @ self._curves[index][int(added)]
        return result

    def at_both(
        self, counts: FloatArray, epsilon: FloatArray, log_delta: FloatArray, added: bool
    ) -> LatticePlan:
        """Plan for the neighbourhood of `epsilon` and `log_delta`, shape (n,) each."""
        cut = self._cut(counts, log_delta)
        cumulants = self._composed(counts, cut, added)
        largest = self._largest(cut)
        # Errors of the losses are multiplied by the tilt.
        blurred = TILTS * ((counts * largest).sum(axis=1) * LOSS_ERROR)[:, None] > 1.0
        cumulants = np.where(blurred, np.maximum(cumulants, _LARGE), cumulants)
        log_bound = cumulants + self._log_weight - TILTS * epsilon[:, None]
        best = log_bound.argmin(axis=1)
        tilt, period = self._tilt(cumulants, log_bound, best, log_delta)
        allowed = _TOLERANCE * self.scale(counts, epsilon) * 8.0 / (TILTS[best] + 1.0)
        coarsest = (counts @ self._spread <= allowed[:, None]).sum(axis=1) - 1
        finest = np.where(counts > 0.0, largest, 0.0).max(axis=1) * SMALLEST_STEP
        least = _exponents(finest) + 1
        # The effect of a step on the tilted loss must be small, too.
        exponent = _STEP_EXPONENTS[np.maximum(coarsest, 0)]
        exponent = np.minimum(exponent, _exponents(0.25 / TILTS[tilt]))
        exponent = np.maximum(exponent, least)
        log2_size = np.ceil(np.log2(period) - exponent).astype(np.int64)
        too_large = np.maximum(log2_size - _LOG2_SIZES[1], 0)
        exponent = np.minimum(exponent + too_large, _STEP_EXPONENTS[-1])
        size = np.clip(log2_size, *_LOG2_SIZES)
        return LatticePlan(exponent, size, tilt, cut, epsilon, log_delta, least)

    def _largest(self, cut: IntArray) -> FloatArray:
        """Return the largest absolute loss of a step at each level, shape (n, levels)."""
        known = self._largest_losses
        for index in np.unique(cut).tolist():
            if index not in known:
                ends = [source.extremes(CUTS[index]) for source in self._sources]
                known[index] = np.abs(np.array(ends)).max(axis=1)
        return np.array([known[index] for index in cut.tolist()])

    def _tilt(
        self, cumulants: FloatArray, log_bound: FloatArray, best: IntArray, log_delta: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        """Return (tilt, period): what is aliased from both sides is to be far below delta."""
        tilt, period = best.copy(), np.full(best.size, np.inf)
        excess = np.where(cumulants < _LARGE, log_bound - log_delta[:, None] + _MARGIN, np.inf)
        users, taken = np.arange(best.size), np.ones(best.size)
        near = log_bound <= log_bound[users, best][:, None] + _LARGER_COST
        top = TILTS.size - 1 - near[:, ::-1].argmax(axis=1)
        for lower in _LOWER_TILTS:
            candidate = np.maximum(top - top % 2 - lower, 0)
            chosen = TILTS[candidate]
            with np.errstate(divide="ignore", invalid="ignore"):
                right = excess / (TILTS - chosen[:, None])
            right = np.where(chosen[:, None] < TILTS, right, np.inf).min(axis=1)
            needed = np.maximum((_MARGIN - log_delta) / chosen, np.maximum(right, 0.0))
            cost = log_bound[users, candidate] - log_bound[users, best]
            handicap = np.where(candidate % _OCTAVE == 0, 1.0, _HALF_OCTAVE_HANDICAP)
            better = needed * handicap < period * taken
            better &= (cost <= _TILT_COST) | (lower == 0)
            tilt, period = np.where(better, candidate, tilt), np.where(better, needed, period)
            taken = np.where(better, handicap, taken)
        return tilt, np.where(np.isfinite(period), period, (_MARGIN - log_delta) / TILTS[tilt])


def _exponents(steps: FloatArray) -> IntArray:
    """Return log2, rounded down."""
    return np.floor(np.log2(np.maximum(steps, 1e-300))).astype(np.int64)


def deviation(source: StepSource) -> float:
    """Return roughly the root of the mean square of the loss, under Q."""
    if not isinstance(source, SampledGaussian):
        return source.size
    x = np.linspace(-9.0, 9.0, 181)
    losses = source.loss(x)
    return math.sqrt(float(np.exp(-0.5 * x * x) @ (losses * losses)) * 0.1 / math.sqrt(2 * math.pi))


def _cumulants(source: StepSource, cut: float) -> tuple[FloatArray, FloatArray]:
    """Return roughly log E exp(tilt loss) at all tilts, remove and add, within a cut."""
    if not isinstance(source, SampledGaussian):
        cumulants = source.cumulants(TILTS)
        return cumulants, cumulants
    low, high = source.outcomes(cut)
    x, spacing = np.linspace(low, high, 60 + math.ceil(3.0 * (high - low)), retstep=True)
    losses = source.loss(x)
    log_weights = math.log(float(spacing) / math.sqrt(2.0 * math.pi)) - 0.5 * x * x
    weights = np.exp(log_weights)
    # Under Q, exp(loss) - 1 has mean 0; taking it off leaves terms of second order.
    first = np.expm1(np.minimum(losses, 700.0))

    def cumulant(powers: FloatArray) -> FloatArray:
        exponents = np.outer(powers, losses)
        with np.errstate(over="ignore", invalid="ignore"):
            weighted = exponents + log_weights
            largest = weighted.max(axis=1)
            large = largest + np.log(np.exp(weighted - largest[:, None]).sum(axis=1))
            raised = np.expm1(exponents) - np.outer(powers, first)
            small = np.log1p(np.maximum(raised @ weights, 0.0))
        return np.asarray(np.where(small < 0.1, small, large))

    return cumulant(1.0 + TILTS), cumulant(-TILTS)
