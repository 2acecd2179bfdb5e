"""Compute (epsilon, delta) of compositions from privacy loss distributions, with certified bounds.

For reports on known histories only: a PLD filter is not valid if outputs choose the steps (Tran et
al., arXiv 2602.06756; Koskela et al. had left it open).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.special import log_ndtr

from accounting.costs.mechanisms import Mechanism
from accounting.exact.argument_checks import FloatArray, IntArray
from accounting.reports.bounds import Bounds
from accounting.reports.pld.discretisation import (
    LOSS_ERROR,
    SMALLEST_STEP,
    base_step,
    discretised,
    log_expectations,
)
from accounting.reports.pld.losses import steps_of
from accounting.reports.pld.transforms import (
    Composition,
    Lattice,
    LossTransforms,
    log_largest_weight,
)

# Wider intervals are computed again on a finer lattice, or with the tilt of the upper bound.
_WIDE_EPSILON, _WIDE_DELTA, _REFINEMENTS = 5e-4, 2e-2, 3
# Frequencies of a level in a table: the least one that a history needs. Frequencies in a table,
# and numbers in the tables that are kept.
_COLUMNS, _MOST_COLUMNS, _ENTRIES_KEPT = (2**9, 2**13, 2**18), 2**22, 2**25
_TRUNCATED = 1e-8  # of delta
TILTS: Final = 2.0 ** np.arange(-24.0, 36.25, 0.25)
_LOG_WEIGHT: Final = log_largest_weight(TILTS)
# A larger tilt than the best one needs a shorter period, a smaller one if losses have a heavy tail.
# Among the tilts that lose at most this much accuracy of delta, in nats, the one with the shortest
# period is taken.
_LARGER_COST, _TILT_COST = 3.0, 7.0
# Outcomes are cut off beyond so many standard deviations.
_CUTS: Final = np.array([4.0, 5.0, 6.0, 7.0, 8.0, 9.5, 11.0, 13.0, 16.0, 20.0, 24.0, 30.0, 37.5])
# Mass outside the range of outcomes may add this to delta, and aliasing that, in nats below it.
_OUTSIDE_MARGIN, _MARGIN = 11.0, 18.0
_TOLERANCE = 2e-4  # discretisation may add this to epsilon, relative to it
_STEP_EXPONENTS: Final = np.arange(-90, 2)
_LOG2_SIZES = (7, 19)
_LOG_SMALLEST_DELTA, _FLOOR_MARGIN = -740.0, 5.0
_LARGE = 1e200


class _Plan(NamedTuple):
    """A lattice step 2**`exponent` (at least 2**`finest`), a size, and indices of tilt and cut.

    The choices affect tightness and speed, not validity. `epsilon` and `log_delta`: roughly the
    point that is asked for.
    """

    exponent: int
    log2_size: int
    tilt: int
    cut: int
    finest: int
    epsilon: float
    log_delta: float

    def finer(self, previous: _Plan, error: float) -> _Plan:
        """Return this plan, with a finer step if the tilt is the one of the previous plan.

        `error`: the previous plan's error over the error wanted, which falls with the square of the
        step.
        """
        if self.tilt != previous.tilt:
            return self
        halvings = min(max(math.ceil(0.5 * math.log2(error)), 1), 4)
        target = max(min(self.exponent, previous.exponent - halvings), self.finest)
        finer = max(min(self.exponent - target, _LOG2_SIZES[1] - self.log2_size), 0)
        return self._replace(exponent=self.exponent - finer, log2_size=self.log2_size + finer)


class PldReport:
    """Certified (lower, estimate, upper) of delta and epsilon from transforms of discrete losses.

    `mechanisms`: that of each level; `norms`: the levels, shape (levels,), > 0, in the norm of
    their mechanism. Neighbours add or remove one user; the larger direction counts.

    Upper bounds compose distributions that dominate the steps and lower bounds distributions that
    the steps dominate (`discretisation`); errors of truncation, aliasing and rounding are on the
    safe side (`transforms`). The lattice is chosen for each history so that epsilon has a relative
    error of about 1e-3 or less; outside of usual ranges the interval is wider, but valid. A norm of
    more than 128 times the noise, or an epsilon of more than 128, counts as an unbounded loss above
    and as 128 below.
    """

    def __init__(self, mechanisms: Sequence[Mechanism], norms: FloatArray) -> None:
        self._steps = steps_of(mechanisms, norms)
        sources = self._steps.sources
        self._deviations = np.array([source.deviation for source in sources])
        self._mirrored = np.array([source.mirrored for source in sources])
        largest = [source.largest_added for source in sources]
        self._largest_added = np.where(self._steps.unbounded, np.inf, largest)
        self._curves: dict[tuple[int, int, bool], FloatArray] = {}  # by level, cut and direction
        self._ends: dict[int, FloatArray] = {}  # the largest losses within a cut, (levels,)
        self._tables: dict[tuple[Lattice, int, bool, bool, int], LossTransforms] = {}

    def delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds on delta at `epsilon` >= 0; `counts`: steps at each level, (n, levels)."""
        return self._each(counts, lambda steps: self._delta(steps, float(epsilon)))

    def epsilon(self, counts: IntArray, delta: float) -> Bounds:
        """Return bounds on epsilon at 0 < `delta` < 1; `counts` as for `delta`."""
        return self._each(counts, lambda steps: self._epsilon(steps, delta))

    def _each(self, counts: IntArray, ask: Callable[[FloatArray], tuple[float, float]]) -> Bounds:
        # In C order: the rounding of a product with a strided row would be another one.
        steps = counts.astype(np.float64, order="C")
        steps[:, self._steps.free] = 0.0
        lower, upper = np.zeros((2, len(steps)))
        # One history at a time: a batch would have to be split by lattice, tilt and cut.
        for user in np.flatnonzero(steps.any(axis=1)).tolist():
            lower[user], upper[user] = ask(steps[user])
        lower = np.minimum(lower, upper)
        # The errors of the two discretisations are of second order and about as 1 to 2.
        with np.errstate(invalid="ignore"):
            estimate = lower + (upper - lower) / 3.0
        return Bounds(lower, np.clip(estimate, lower, upper), upper)

    def _delta(self, steps: FloatArray, epsilon: float) -> tuple[float, float]:
        lower, upper = self._delta_interval(steps, epsilon, False, 0.0)
        ceiling = self._ceiling(steps, epsilon, len(_CUTS) - 1)
        if not (steps > 0.0)[~self._mirrored].any():
            upper = min(upper, ceiling)
        elif ceiling > lower:
            other = self._delta_interval(steps, epsilon, True, lower)
            lower, upper = max(lower, other[0]), max(upper, min(other[1], ceiling))
        return lower, upper

    def _epsilon(self, steps: FloatArray, delta: float) -> tuple[float, float]:
        lower, upper = self._epsilon_interval(steps, delta, False)
        if not (steps > 0.0)[~self._mirrored].any():
            upper = min(upper, self._largest(steps))
            return lower, upper
        log_delta = math.log(delta)
        cut = self._cut(steps, log_delta)
        if upper < math.inf and self._ceiling(steps, upper, cut) > delta:
            # Where Chernoff's bound does not show that adding is below removing, delta may.
            plan = self._plan(steps, upper, log_delta, True)
            if self._composition(steps, plan, True, True).delta(upper) > delta:
                other = self._epsilon_interval(steps, delta, True)
                lower, upper = max(lower, other[0]), max(upper, other[1])
        return lower, upper

    def _delta_interval(
        self, steps: FloatArray, epsilon: float, added: bool, enough: float
    ) -> tuple[float, float]:
        """Return (lower, upper) in one direction; it need not be tight below `enough`."""
        curve, _ = self._curve(steps, len(_CUTS) - 1, added)
        log_delta = float((curve + _LOG_WEIGHT - TILTS * epsilon).min())
        least = math.log(enough) - _FLOOR_MARGIN if enough > 0.0 else -math.inf
        log_delta = min(max(log_delta, least, _LOG_SMALLEST_DELTA), 0.0)
        plan = self._plan(steps, epsilon, log_delta, added)
        lower, upper = 0.0, 1.0
        for turn in range(1 + _REFINEMENTS):
            upper = min(upper, self._composition(steps, plan, added, True).delta(epsilon))
            if upper <= enough:
                break
            lower = max(lower, self._composition(steps, plan, added, False).delta(epsilon))
            error = (upper - lower) / (_WIDE_DELTA * max(upper, 1e-300))
            if error <= 1.0 or turn == _REFINEMENTS:
                break
            log_delta = min(max(math.log(upper), plan.log_delta - 20.0), plan.log_delta)
            plan = self._plan(steps, epsilon, log_delta, added).finer(plan, error)
        return lower, upper

    def _epsilon_interval(
        self, steps: FloatArray, delta: float, added: bool
    ) -> tuple[float, float]:
        """Return (lower, upper) in one direction."""
        log_delta = math.log(delta)
        curve, _ = self._curve(steps, self._cut(steps, log_delta), added)
        epsilon = max(float(((curve + _LOG_WEIGHT - log_delta) / TILTS).min()), 0.0)
        plan = self._plan(steps, epsilon, log_delta, added)
        lower, upper = 0.0, math.inf
        for turn in range(1 + _REFINEMENTS):
            found = (
                self._composition(steps, plan, added, side).epsilon(delta, plan.epsilon)
                for side in (False, True)
            )
            lower, upper = max(lower, next(found)), min(upper, next(found))
            error = (upper - lower) / (_WIDE_EPSILON * self._scale(steps, upper))
            if not 1.0 < error < math.inf or turn == _REFINEMENTS:
                break
            plan = self._plan(steps, upper, log_delta, added).finer(plan, error)
        return lower, upper

    def _composition(self, steps: FloatArray, plan: _Plan, added: bool, upper: bool) -> Composition:
        lattice = Lattice(2.0**plan.exponent, 2**plan.log2_size, float(TILTS[plan.tilt]))
        for columns in _COLUMNS:
            kept = min(columns, max(_COLUMNS[0], _MOST_COLUMNS // steps.size))
            table = self._table(lattice, plan.cut, added, upper, kept)
            for level in np.flatnonzero((steps > 0.0) & ~table.filled).tolist():
                losses = discretised(
                    self._steps.sources[level], lattice.step, float(_CUTS[plan.cut])
                )
                table.fill(level, losses, bool(self._steps.unbounded[level]))
            composed = Composition(table, steps)
            # The transform of few steps has not decayed: they need more frequencies.
            if composed.log_truncated(plan.epsilon) <= plan.log_delta + math.log(_TRUNCATED):
                break
        return composed

    def _table(
        self, lattice: Lattice, cut: int, added: bool, upper: bool, kept: int
    ) -> LossTransforms:
        key = lattice, cut, added, upper, kept
        if key not in self._tables:
            if sum(table.transform.size for table in self._tables.values()) > _ENTRIES_KEPT:
                self._tables.clear()
            levels = len(self._steps.sources)
            self._tables[key] = LossTransforms(levels, lattice, added, upper, kept)
        return self._tables[key]

    def _plan(self, steps: FloatArray, epsilon: float, log_delta: float, added: bool) -> _Plan:
        """Plan for the neighbourhood of `epsilon` and `log_delta`."""
        cut = self._cut(steps, log_delta)
        curve, _ = self._curve(steps, cut, added)
        used = np.flatnonzero(steps)
        if cut not in self._ends:
            ends = [source.extremes(float(_CUTS[cut])) for source in self._steps.sources]
            self._ends[cut] = np.abs(np.array(ends)).max(axis=1)
        largest = self._ends[cut][used]
        # Errors of the losses are multiplied by the tilt.
        blurred = TILTS * (float(steps[used] @ largest) * LOSS_ERROR) > 1.0
        curve = np.where(blurred, np.maximum(curve, _LARGE), curve)
        log_bound = curve + _LOG_WEIGHT - TILTS * epsilon
        best = int(log_bound.argmin())
        excess = np.where(curve < _LARGE, log_bound - log_delta + _MARGIN, np.inf)
        tilt, period = _tilt(log_bound, excess, log_delta)
        # The variance that discretising one step adds; less if the loss is narrower.
        sizes = 2.0**_STEP_EXPONENTS
        spread = steps @ np.minimum(sizes * sizes, 4.0 * self._deviations[:, np.newaxis] * sizes)
        allowed = _TOLERANCE * self._scale(steps, epsilon) * 8.0 / (TILTS[best] + 1.0)
        coarsest = max(int((spread <= allowed).sum()) - 1, 0)
        finest = math.floor(math.log2(max(float(largest.max()) * SMALLEST_STEP, 1e-300))) + 1
        # The effect of a step on the tilted loss must be small, too.
        exponent = min(int(_STEP_EXPONENTS[coarsest]), math.floor(math.log2(0.25 / TILTS[tilt])))
        exponent = max(exponent, finest)
        log2_size = math.ceil(math.log2(period) - exponent)
        exponent += max(log2_size - _LOG2_SIZES[1], 0)
        exponent = min(exponent, int(_STEP_EXPONENTS[-1]))
        log2_size = min(max(log2_size, _LOG2_SIZES[0]), _LOG2_SIZES[1])
        return _Plan(exponent, log2_size, tilt, cut, finest, epsilon, log_delta)

    def _cut(self, steps: FloatArray, log_delta: float) -> int:
        """Return the index of the least cut beyond which all steps together are far below delta."""
        needed = math.log(float(steps.sum())) - log_delta + _OUTSIDE_MARGIN
        return min(int(np.searchsorted(-log_ndtr(-_CUTS), needed)), len(_CUTS) - 1)

    def _scale(self, steps: FloatArray, epsilon: float) -> float:
        """Return the scale of an epsilon, to compare its errors with."""
        deviation = math.sqrt(float(steps @ (self._deviations * self._deviations)))
        return max(epsilon, 0.25 * deviation, 1e-300)

    def _curve(self, steps: FloatArray, cut: int, added: bool) -> tuple[FloatArray, float]:
        """Return upper bounds of log E exp(t L) at `TILTS`, and of the mass beyond a cut."""
        used = np.flatnonzero(steps).tolist()
        for level in used:
            if (level, cut, added) not in self._curves:
                source, within = self._steps.sources[level], float(_CUTS[cut])
                losses = discretised(source, base_step(source, within), within)
                found = log_expectations(losses, added, TILTS)
                self._curves[level, cut, added] = np.append(found, losses.infinity_mass)
        total = steps[used] @ np.array([self._curves[level, cut, added] for level in used])
        total *= 1.0 + (len(used) + 4.0) * 2.0**-52
        return total[:-1], float(total[-1])

    def _ceiling(self, steps: FloatArray, epsilon: float, cut: int) -> float:
        """Return an upper bound of delta in the add direction, by Chernoff.

        Adding a user is below removing one in most histories. The loss of sampled steps is bounded
        by -log(1 - q) each, and delta falls to 0 on the way to their sum, faster than a lattice can
        resolve.
        """
        if epsilon >= self._largest(steps):
            return 0.0
        if (steps > 0.0)[self._steps.unbounded].any():
            return 1.0
        curve, beyond = self._curve(steps, cut, True)
        log_bound = float((curve + _LOG_WEIGHT - TILTS * (1.0 - 2.0**-50) * epsilon).min())
        return min((math.exp(min(log_bound, 1.0)) + beyond) * (1.0 + 2.0**-40) + 5e-324, 1.0)

    def _largest(self, steps: FloatArray) -> float:
        """Return the largest loss in the add direction, rounded up."""
        used = steps > 0.0
        total = float(steps[used] @ self._largest_added[used])
        return total * (1.0 + (steps.size + 4.0) * 2.0**-52)


def _tilt(log_bound: FloatArray, excess: FloatArray, log_delta: float) -> tuple[int, float]:
    """Return (tilt, period): what is aliased from both sides is to be far below delta.

    `excess`: the log of Chernoff's bound at each tilt over what may be aliased.
    """
    best = int(log_bound.argmin())
    top = int(np.flatnonzero(log_bound <= log_bound[best] + _LARGER_COST)[-1])
    lower = np.arange(top - top % 2, -1, -2)[:12]
    candidates = lower[(log_bound[lower] <= log_bound[best] + _TILT_COST) | (lower == lower[0])]
    chosen = TILTS[candidates]
    with np.errstate(divide="ignore", invalid="ignore"):
        right = excess / (TILTS - chosen[:, np.newaxis])
    right = np.where(chosen[:, np.newaxis] < TILTS, right, np.inf).min(axis=1)
    left = (_MARGIN - log_delta) / chosen
    periods = np.maximum(left, np.maximum(right, 0.0))
    taken = int(periods.argmin())
    period = float(periods[taken])
    return int(candidates[taken]), period if period < math.inf else float(left[taken])
