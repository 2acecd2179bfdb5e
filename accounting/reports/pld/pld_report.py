"""Compute (epsilon, delta) of compositions from privacy loss distributions, with certified bounds.

For reports on known histories only: a PLD filter is not valid if outputs choose the steps (Tran et
al., arXiv 2602.06756; Koskela et al. had left it open).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from accounting.exact.argument_checks import BoolArray, FloatArray, IntArray
from accounting.reports.bounds import Bounds, Mechanisms
from accounting.reports.pld.ceilings import AddedCeilings
from accounting.reports.pld.discretisation import StepLoss, discretised
from accounting.reports.pld.lattices import CUTS, TILTS, LatticeChooser, LatticePlan
from accounting.reports.pld.losses import steps_of
from accounting.reports.pld.transforms import Composition, LossTransforms

_CHUNK = 2**20  # complex numbers in one intermediate
_LOSSES_KEPT, _ENTRIES_KEPT = 2000, 2**25
_SEARCH_STEPS = 300
# Wider intervals are recomputed on a finer lattice, or with the tilt of the upper bound.
_WIDE_EPSILON, _WIDE_DELTA, _REFINEMENTS = 5e-4, 2e-2, 3
_FURTHEST = 2**60
_TRUNCATED = 1e-8  # of delta
_ROUNDING = 2.0**-50


class TableKey(NamedTuple):
    """The choices that users of one `LossTransforms` share; `tilt` and `cut` are indices."""

    step_exponent: int
    log2_size: int
    tilt: int
    cut: int
    added: bool
    upper: bool


class PldReport:
    """Certified (lower, estimate, upper) of delta and epsilon from transforms of discrete losses.

    `mechanisms`: the mechanism of each level, a sequence, or one for all levels; `norms`: the
    levels, shape (levels,), > 0, in the norm of their mechanism. Neighbours add or remove one user;
    the larger direction counts.

    Upper bounds compose distributions that dominate the steps and lower bounds distributions that
    the steps dominate (`losses`); errors of truncation, aliasing and rounding are on the safe side
    (`transforms`). The lattice is chosen for each user so that epsilon has a relative
    error of about 1e-3 or less; outside of usual ranges the interval is wider, but valid. A norm of
    more than 128 times the noise, or an epsilon of more than 128, counts as an unbounded loss above
    and as 128 below.
    """

    def __init__(self, mechanisms: Mechanisms, norms: FloatArray) -> None:
        self._steps = steps_of(mechanisms, norms)
        self._chooser = LatticeChooser(self._steps.sources)
        mirrored = [source.mirrored for source in self._steps.sources]
        self._one_sided_levels = np.logical_not(mirrored)
        self._ceilings = AddedCeilings(self._steps)
        self._losses: dict[tuple[int, int, int], StepLoss] = {}  # by level, exponent and cut
        self._tables: dict[TableKey, LossTransforms] = {}

    def delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds on delta at `epsilon` >= 0; `counts`: steps at each level, (n, levels)."""
        used, steps = self._used(counts)
        if not used.any():
            return _bounds(used, np.zeros(0), np.zeros(0))
        epsilons, nothing = np.full(steps.shape[0], float(epsilon)), np.zeros(steps.shape[0])
        lower, upper = self._delta_interval(steps, epsilons, False, nothing)
        ceiling, one_sided = self._ceilings.delta(steps, epsilons), self._one_sided(steps)
        upper = np.where(one_sided, upper, np.minimum(upper, ceiling))
        more = np.flatnonzero(one_sided & (ceiling > lower))
        if more.size:
            other = self._delta_interval(steps[more], epsilons[more], True, lower[more])
            lower[more] = np.maximum(lower[more], other[0])
            upper[more] = np.maximum(upper[more], np.minimum(other[1], ceiling[more]))
        return _bounds(used, lower, upper)

    def epsilon(self, counts: IntArray, delta: float | FloatArray) -> Bounds:
        """Return bounds on epsilon at `delta`, 0 < delta < 1, one number or one for each user.

        `counts` as for `delta`.
        """
        used, steps = self._used(counts)
        if not used.any():
            return _bounds(used, np.zeros(0), np.zeros(0))
        deltas = np.broadcast_to(np.asarray(delta, dtype=np.float64), used.shape)[used]
        lower, upper = self._epsilon_interval(steps, deltas, added=False)
        one_sided = self._one_sided(steps)
        upper = np.where(one_sided, upper, np.minimum(upper, self._ceilings.largest(steps)))
        known = np.flatnonzero(one_sided & (upper < math.inf))
        known = known[self._ceilings.delta(steps[known], upper[known]) > deltas[known]]
        if known.size:
            # Where Chernoff's bound does not show that adding is below removing, delta may.
            log_delta = np.log(deltas[known])
            plan = self._chooser.at_both(steps[known], upper[known], log_delta, added=True)
            more = known[self._delta(steps[known], plan, added=True, upper=True) > deltas[known]]
            if more.size:
                other = self._epsilon_interval(steps[more], deltas[more], added=True)
                lower[more] = np.maximum(lower[more], other[0])
                upper[more] = np.maximum(upper[more], other[1])
        return _bounds(used, lower, upper)

    def _used(self, counts: IntArray) -> tuple[BoolArray, FloatArray]:
        """Return whether each user has steps that cost something, and the steps of those who do."""
        steps = counts.astype(np.float64)
        steps[:, self._steps.free] = 0.0
        used = np.asarray(steps.any(axis=1))
        return used, steps[used]

    def _one_sided(self, steps: FloatArray) -> BoolArray:
        """Return whether each user has steps that lose more in one direction, shape (n,)."""
        return np.asarray(steps[:, self._one_sided_levels].any(axis=1))

    def _delta_interval(
        self, steps: FloatArray, epsilons: FloatArray, added: bool, enough: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return (lower, upper) in one direction; it need not be tight below `enough`."""
        plan = self._chooser.at_epsilon(steps, epsilons, added, enough)
        lower, upper = np.zeros(steps.shape[0]), self._delta(steps, plan, added, upper=True)
        wide = np.flatnonzero(upper > enough)
        lower[wide] = self._delta(steps[wide], plan.select(wide), added, upper=False)
        for _ in range(_REFINEMENTS):
            error = (upper - lower) / (_WIDE_DELTA * np.maximum(upper, 1e-300))
            wide = np.flatnonzero((error > 1.0) & (upper > enough))
            if wide.size == 0:
                break
            coarse = plan.select(wide)
            log_delta = np.clip(np.log(upper[wide]), coarse.log_delta - 20.0, coarse.log_delta)
            finer = self._chooser.at_both(steps[wide], coarse.epsilon, log_delta, added)
            finer = finer.finer(coarse, error[wide])
            low = self._delta(steps[wide], finer, added, upper=False)
            high = self._delta(steps[wide], finer, added, upper=True)
            lower[wide] = np.maximum(lower[wide], low)
            upper[wide] = np.minimum(upper[wide], high)
            plan = plan.updated(wide, finer)
        return lower, upper

    def _epsilon_interval(
        self, steps: FloatArray, delta: FloatArray, added: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Return (lower, upper) in one direction."""
        plan = self._chooser.at_delta(steps, delta, added)
        lower = self._epsilon(steps, plan, delta, added, upper=False)
        upper = self._epsilon(steps, plan, delta, added, upper=True)
        for _ in range(_REFINEMENTS):
            known = np.where(upper < math.inf, upper, 0.0)
            error = (known - lower) / (_WIDE_EPSILON * self._chooser.scale(steps, known))
            wide = np.flatnonzero(error > 1.0)
            if wide.size == 0:
                break
            coarse = plan.select(wide)
            finer = self._chooser.at_both(steps[wide], upper[wide], coarse.log_delta, added)
            finer = finer.finer(coarse, error[wide])
            low = self._epsilon(steps[wide], finer, delta[wide], added, upper=False)
            high = self._epsilon(steps[wide], finer, delta[wide], added, upper=True)
            lower[wide] = np.maximum(lower[wide], low)
            upper[wide] = np.minimum(upper[wide], high)
            plan = plan.updated(wide, finer)
        return lower, upper

    def _delta(self, steps: FloatArray, plan: LatticePlan, added: bool, upper: bool) -> FloatArray:
        """Return one bound on delta in one direction, at the epsilons of the plan."""
        result = np.zeros(steps.shape[0])
        for users, step, composition in self._compositions(steps, plan, added, upper):
            place = (plan.epsilon[users] - composition.offset) / step
            place += np.abs(place) * (-_ROUNDING if upper else _ROUNDING)
            place = np.clip(place, -_FURTHEST, _FURTHEST)
            at, rows = np.floor(place).astype(np.int64), np.arange(users.size)
            left, right = composition.delta(at, rows), composition.delta(at + 1, rows)
            # Between lattice points delta is linear in exp(epsilon).
            part = np.expm1((place - at) * step) / math.expm1(step)
            result[users] = left + np.clip(part, 0.0, 1.0) * (right - left)
        return np.minimum(result * (1.0 + (_ROUNDING if upper else -_ROUNDING)), 1.0)

    def _epsilon(
        self, steps: FloatArray, plan: LatticePlan, delta: FloatArray, added: bool, upper: bool
    ) -> FloatArray:
        """Return one bound on epsilon at `delta` in one direction."""
        result = np.zeros(steps.shape[0])
        for users, step, composition in self._compositions(steps, plan, added, upper):
            target = delta[users]
            start = np.clip(np.floor(-composition.offset / step), -_FURTHEST, _FURTHEST)
            guess = np.clip((plan.epsilon[users] - composition.offset) / step, start, _FURTHEST)
            low, at_low, high, at_high = _crossing(
                composition.delta,
                target,
                start.astype(np.int64),
                guess.astype(np.int64) + 1,
                step * float(TILTS[plan.tilt[users[0]]]),
            )
            # Between lattice points delta is linear in exp(epsilon).
            found = (at_low >= target) & (at_high < target)
            part = (at_low - target) / np.where(found, at_low - at_high, 1.0)
            between = low * step + np.log1p(math.expm1(step) * np.clip(part, 0.0, 1.0))
            # Without a crossing, the evaluated places still bound: one below delta is an upper
            # bound.
            place = np.where(found & (high - low == 1), between, (high if upper else low) * step)
            epsilon = composition.offset + place
            rounding = _ROUNDING * (np.abs(composition.offset) + np.abs(place) + step)
            epsilon += rounding if upper else -rounding
            if upper:
                epsilon = np.where(at_high < target, epsilon, math.inf)
            else:
                epsilon = np.where(at_low >= target, epsilon, 0.0)
            result[users] = np.maximum(epsilon, 0.0)
        return result

    def _compositions(
        self, steps: FloatArray, plan: LatticePlan, added: bool, upper: bool
    ) -> Iterator[tuple[IntArray, float, Composition]]:
        """Yield (users, lattice step, composition) for users who share a table."""
        choices = np.stack([plan.step_exponent, plan.log2_size, plan.tilt, plan.cut], axis=1)
        for choice in np.unique(choices, axis=0):
            users = np.flatnonzero((choices == choice).all(axis=1))
            exponent, log2_size, tilt, cut = choice.tolist()
            key = TableKey(exponent, log2_size, tilt, cut, added, upper)
            table = self._table(key)
            self._fill(table, key, steps[users])
            cutoffs = table.needed_cutoffs(
                steps[users], plan.epsilon[users], plan.log_delta[users] + math.log(_TRUNCATED)
            )
            if table.extend_to(int(cutoffs.max())):
                self._fill(table, key, steps[users])
            for cutoff in np.unique(cutoffs).tolist():
                alike = users[cutoffs == cutoff]
                chunk = max(1, _CHUNK // (cutoff + 1))
                for first in range(0, alike.size, chunk):
                    part = alike[first : first + chunk]
                    yield part, table.step, table.compose(steps[part], cutoff)

    def _table(self, key: TableKey) -> LossTransforms:
        table = self._tables.pop(key, None)
        if table is None:
            levels, tilt = len(self._steps.sources), float(TILTS[key.tilt])
            step, size = 2.0**key.step_exponent, 2**key.log2_size
            table = LossTransforms(levels, step, size, tilt, key.added, key.upper)
        self._tables[key] = table  # moved last, so that the first is the least recently used
        while (
            len(self._tables) > 1 and sum(t.entries for t in self._tables.values()) > _ENTRIES_KEPT
        ):
            del self._tables[next(iter(self._tables))]
        return table

    def _fill(self, table: LossTransforms, key: TableKey, steps: FloatArray) -> None:
        for level in table.missing(np.asarray(steps.any(axis=0))).tolist():
            unbounded = bool(self._steps.unbounded[level])
            table.fill(level, self._loss(level, key.step_exponent, key.cut), unbounded)

    def _loss(self, level: int, exponent: int, cut: int) -> StepLoss:
        key = level, exponent, cut
        if key not in self._losses:
            while len(self._losses) >= _LOSSES_KEPT:
                del self._losses[next(iter(self._losses))]
            source = self._steps.sources[level]
            self._losses[key] = discretised(source, 2.0**exponent, CUTS[cut])
        return self._losses[key]


def _crossing(
    value: Callable[[IntArray, IntArray], FloatArray],
    target: FloatArray,
    start: IntArray,
    guess: IntArray,
    slope: float,
) -> tuple[IntArray, FloatArray, IntArray, FloatArray]:
    """Return where a decreasing function crosses its target, from `start` on, near `guess`.

    `value` takes (places, users); `slope`: roughly how fast log(value) falls between places.

    Returns:
        (low, its value, high, its value), shape (n,) each: value(low) >= target > value(high) and
        high = low + 1, or as much of this as was found.
    """
    unit = float(np.clip(1.0 / slope, 1.0, _FURTHEST)) if slope > 0.0 else float(_FURTHEST)
    log_target = np.log(target)
    low, high = start - 1, np.maximum(guess, start + 1)
    # By user: whether the search to the left has ended, or must take short strides; the length of
    # the next stride; and how often in a row the left (> 0) or right (< 0) end has moved.
    stuck, careful = np.zeros(start.size, dtype=np.bool_), np.zeros(start.size, dtype=np.bool_)
    at_low, at_high = np.zeros(start.size), value(high, np.arange(start.size))
    stride, moves = np.ones(start.size), np.zeros(start.size, dtype=np.int64)
    for turn in range(_SEARCH_STEPS):
        rising = (at_high >= target) & (high < _FURTHEST)
        falling = (at_high < target) & (at_low < target) & (high > start) & ~stuck
        inside = (at_low >= target) & (at_high < target) & (high - low > 1)
        open_ = np.flatnonzero(rising | falling | inside)
        if open_.size == 0:
            break
        above = np.log(np.maximum(at_low[open_], 1e-320)) - log_target[open_]
        below = log_target[open_] - np.log(np.maximum(at_high[open_], 1e-320))
        # To the left, slightly further than the slope suggests; then ever further.
        ahead = high[open_] + unit * stride[open_]
        by_slope = np.minimum(1.25 * below * unit, 4.0 * unit * stride[open_])
        by_slope = np.where(careful[open_], 0.0, by_slope)
        back = high[open_] - np.maximum(by_slope, stride[open_])
        stride[open_] *= np.where(inside[open_], 1.0, 2.0)
        # Between two ends by false position; the end that stays counts half (Illinois).
        weight = np.where(moves[open_] >= 2, 0.5, 1.0) / np.where(moves[open_] <= -2, 0.5, 1.0)
        share = above / np.maximum(above + weight * below, 1e-300)
        share = np.where(inside[open_] & (turn % 8 != 7), share, 0.5)
        between = low[open_] + share * (high[open_] - low[open_])
        between = np.clip(between, low[open_] + 1.0, high[open_] - 1.0)
        place = np.where(rising[open_], ahead, np.where(falling[open_], back, between))
        place = np.clip(place, np.minimum(start[open_], _FURTHEST), _FURTHEST).astype(np.int64)
        found = value(place, open_)
        # A right end that turns out to be above the target becomes the left end.
        low[open_] = np.where(rising[open_], high[open_], low[open_])
        at_low[open_] = np.where(rising[open_], at_high[open_], at_low[open_])
        left = ~rising[open_] & (found >= target[open_])
        # Far from the tilt's own epsilon a bound may vanish in its errors: go less far.
        lost = falling[open_] & (found < at_high[open_] * (1.0 - 1e-6))
        careful[open_] |= lost
        stride[open_] = np.where(lost, np.maximum(0.1 * (high[open_] - place), 1.0), stride[open_])
        stuck[open_] = lost & (place == high[open_] - 1)
        place, found = np.where(lost, high[open_], place), np.where(lost, at_high[open_], found)
        low[open_], at_low[open_] = (
            np.where(left, place, low[open_]),
            np.where(left, found, at_low[open_]),
        )
        high[open_] = np.where(left, high[open_], place)
        at_high[open_] = np.where(left, at_high[open_], found)
        moves[open_] = np.where(
            left, np.maximum(moves[open_], 0) + 1, np.minimum(moves[open_], 0) - 1
        )
    return low, at_low, high, at_high


def _bounds(used: BoolArray, lower: FloatArray, upper: FloatArray) -> Bounds:
    """Return bounds for all users from those of the `used` ones; zeros for the others."""
    all_lower, all_upper = np.zeros(used.size), np.zeros(used.size)
    all_lower[used], all_upper[used] = np.minimum(lower, upper), upper
    # The errors of the two discretisations are of second order and about as 1 to 2.
    with np.errstate(invalid="ignore"):
        estimate = all_lower + (all_upper - all_lower) / 3.0
    return Bounds(all_lower, np.clip(estimate, all_lower, all_upper), all_upper)
