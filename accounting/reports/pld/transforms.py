"""Transforms of tilted lattice losses, and bounds of a composition from them by Plancherel.

Let S be a sum of losses on a lattice, b_j the mass at `offset` + j h, and B = sum b_j e^(t j h) for
a tilt t > 0. With x_j = j h - e, e = epsilon - offset,

    delta(epsilon) = sum_j b_j (1 - e^-x_j)_+ = B e^(-t e) sum_{x_j > 0} (tilted mass)_j v(x_j),
    v(x) = e^(-t x) (1 - e^-x).

The sum on the right is an inner product. By Plancherel it is taken over the transforms, n
frequencies for a period of n h (Koskela et al., Lemma D.1): that of the tilted mass is a product of
powers of the transforms of the steps, and that of v is closed. The result is, exactly,

    D(epsilon) = sum over all integers k of e^(-k t n h) delta(epsilon - k n h),

so it is never below delta, and its excess is bounded by delta <= 1 for k > 0 and by Chernoff's
bound for k < 0. Tilted near the saddle point, nothing cancels, even if delta is small. A composed
transform decays within few frequencies; for those above, a bound on their contribution is added.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from accounting.exact.argument_checks import FloatArray, IntArray
from accounting.reports.pld.discretisation import LOSS_ERROR, StepLoss

# Tilts, relative to that of the table, at which Chernoff's bound limits what is aliased.
_CHERNOFF_TILTS: Final = (1.125, 1.25, 1.5, 2.0, 3.0)
# Errors of a step's transform, relative to its value at 0 and beyond those of the masses: of its
# logarithm and power; and of itself, per doubling of its size (each term passes through that many
# additions and products). The transform back has the same errors, and those of a product.
_STEP_ERROR, _STAGE_ERROR = 2.0**-48, 2.0**-50
_ROUNDING = 2.0**-50
_SUM_ERROR = 2.0**-46
_FURTHEST = 2.0**60  # places beyond this count as this
_PLACES: Final = 129  # tried at a time in the search for an epsilon


class Lattice(NamedTuple):
    """The lattice step h, the number of frequencies n, a power of two, and the tilt t."""

    step: float
    size: int
    tilt: float


class LossTransforms:
    """The transforms of the losses of one step at each level, filled when needed.

    Args:
        levels: the number of levels.
        lattice: the lattice of all levels, and the tilt.
        added: whether the direction is add.
        upper: whether the losses dominate or are dominated.
        kept: frequencies kept, beside 0; those above enter as a bound.
    """

    def __init__(self, levels: int, lattice: Lattice, added: bool, upper: bool, kept: int) -> None:
        self.lattice, self.upper, self._added = lattice, upper, added
        columns = min(kept, lattice.size // 2) + 1
        self.filled = np.zeros(levels, dtype=np.bool_)
        # At each level, at the table's tilt and at those of Chernoff: the log of the mass B.
        self.log_mass = np.zeros((levels, 1 + len(_CHERNOFF_TILTS)))
        # The log of the transform over its value at 0, (levels, 2 columns), real and imaginary
        # parts in turn: a product of real matrices takes a twentieth of the time of a complex one.
        self.transform = np.zeros((levels, 2 * columns))
        # Offset, its error, mass of infinite loss, relative error of a mass, log of the largest
        # transform above the frequencies kept.
        self.limits = np.zeros((levels, 5))
        weights = _weights(lattice)
        self.weights = weights[:columns]
        sizes = 2.0 * np.abs(weights)
        self.size_kept, self.size_above = float(sizes[:columns].sum()), float(sizes[columns:].sum())
        self.log_weights = log_largest_weight(lattice.tilt * np.array([1.0, *_CHERNOFF_TILTS]))

    def fill(self, level: int, losses: StepLoss, unbounded: bool = False) -> None:
        """Compute the row of a level; `unbounded`: its losses are only valid as a lower bound."""
        self.filled[level] = True
        found = losses.above if self.upper else losses.below
        if found is None:
            return  # the row of a harmless step, zeros, is below that of any step
        step, size, tilt = self.lattice
        _, log_mass = found.directed(self._added)
        indices, offset = found.indices, found.offset
        if self._added:
            indices, offset = -indices, -offset
        exponents = log_mass + np.multiply.outer(
            tilt * np.array([1.0, *_CHERNOFF_TILTS]), step * indices.astype(np.float64)
        )
        largest = exponents.max(axis=1)
        tilted = np.exp(exponents - largest[:, np.newaxis])
        self.log_mass[level] = largest + np.log(tilted.sum(axis=1))
        ratio = tilted[0] / tilted[0].sum()
        spectrum = np.fft.rfft(np.bincount(indices & (size - 1), weights=ratio, minlength=size))
        error = 2.0 * losses.error + _STEP_ERROR + _STAGE_ERROR * math.log2(size)
        kept, rest = np.split(spectrum, [self.weights.size])
        above = float(np.abs(rest).max(initial=0.0)) * (1.0 + _ROUNDING) + error
        with np.errstate(divide="ignore"):
            transform = np.log(kept)
        transform.real = np.clip(transform.real, -700.0, 0.0)
        self.transform[level] = transform.view(np.float64)
        infinity = 0.0
        if self.upper:
            infinity = 1.0 if unbounded else losses.infinity_mass
        limits = offset, LOSS_ERROR * losses.largest, infinity, error, math.log(min(above, 1.0))
        self.limits[level] = limits


class Composition:
    """The composed loss of one history of `counts` steps, shape (levels,), at a table's levels.

    Its bounds on delta are linear in exp(epsilon) between lattice points, as delta of the lattice
    losses is.
    """

    def __init__(self, table: LossTransforms, counts: FloatArray) -> None:
        self._table, self._upper = table, table.upper
        size = table.lattice.size
        log_mass = counts @ table.log_mass
        self._log_mass, self._chernoff = float(log_mass[0]), log_mass[1:]
        offset, offset_error, infinity, error, log_above = (counts @ table.limits).tolist()
        # A sum of one product per level.
        rounding = _ROUNDING * (4.0 + counts.size)
        self._relative = error + rounding * float(counts @ np.abs(table.log_mass[:, 0]))
        shift = offset_error + rounding * float(counts @ np.abs(table.limits[:, 0]))
        self._offset = offset + (shift if self._upper else -shift)
        self._infinity_mass = min(infinity * (1.0 + 2.0**-40), 1.0)
        terms = table.weights * np.exp((counts @ table.transform).view(np.complex128))
        self._sums = size * np.fft.irfft(terms, size)
        error += rounding * math.pi * float(counts.sum()) + _SUM_ERROR
        error += _STAGE_ERROR * math.log2(size)
        self._truncated = math.exp(min(log_above, 0.0)) * table.size_above
        self._error = (error * table.size_kept + self._truncated) * (1.0 + 2.0**-20)

    def log_truncated(self, epsilon: float) -> float:
        """Return roughly the log of what the frequencies left out add to delta."""
        if self._truncated == 0.0:
            return -math.inf
        place = np.array(epsilon - self._offset)
        return math.log(self._truncated) + float(self._log_scale(place))

    def delta(self, epsilon: float) -> float:
        """Return the bound on delta."""
        rounding = _ROUNDING if self._upper else -_ROUNDING
        step = self._table.lattice.step
        place = (epsilon - self._offset) / step
        place = min(max(place - abs(place) * rounding, -_FURTHEST), _FURTHEST)
        at = math.floor(place)
        left, right = self._delta(np.array([at, at + 1])).tolist()
        part = math.expm1((place - at) * step) / math.expm1(step)
        return float(min((left + min(part, 1.0) * (right - left)) * (1.0 + rounding), 1.0))

    def epsilon(self, delta: float, guess: float) -> float:
        """Return the bound on epsilon within a period of a guess: infinity, or 0, if none."""
        step, size, _ = self._table.lattice
        start = math.floor(min(max(-self._offset / step, -_FURTHEST), _FURTHEST))
        near = math.floor(min(max((guess - self._offset) / step, start), _FURTHEST))
        low, high = max(start, near - size), near + size
        while True:
            places = low + np.unique(np.linspace(0, high - low, _PLACES).astype(np.int64))
            enough = self._delta(places) >= delta
            # Every place is a bound. Far from the tilt's own epsilon, bounds get lost in errors.
            if self._upper:
                if enough.all():
                    return math.inf
                right = int(enough.argmin())
                left = max(right - 1, 0)
            else:
                if not enough.any():
                    return 0.0
                left = enough.size - 1 - int(enough[::-1].argmax())
                right = min(left + 1, enough.size - 1)
            low, high = int(places[left]), int(places[right])
            if high - low <= 1:
                break
        place = low * step
        if high > low:
            at_low, at_high = self._delta(np.array([low, high])).tolist()
            place += math.log1p(math.expm1(step) * (at_low - delta) / (at_low - at_high))
        rounding = _ROUNDING * (abs(self._offset) + abs(place) + step)
        place += rounding if self._upper else -rounding
        return float(max(self._offset + place, 0.0))

    def _log_scale(self, place: FloatArray) -> FloatArray:
        """Return the log of what the sums are multiplied by; `place`: epsilon - offset."""
        step, size, tilt = self._table.lattice
        scale = math.log(-math.expm1(-step) / size)
        return np.asarray(self._log_mass - tilt * (place + step) + scale)

    def _delta(self, at: IntArray) -> FloatArray:
        """Return bounds on delta at epsilon = offset + `at` * step, of the shape of `at`."""
        step, size, tilt = self._table.lattice
        place, total = at.astype(np.float64) * step, self._sums[(at + 1) & (size - 1)]
        slack = 16.0 + abs(self._log_mass) + tilt * (np.abs(place) + step)
        slack = self._relative + _ROUNDING * slack
        log_scale = self._log_scale(place)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            if self._upper:
                bound = np.exp(log_scale + slack) * np.maximum(total + self._error, 0.0)
                log_chernoff = self._log_mass - tilt * place + self._table.log_weights[0] + slack
                bound = np.where(np.isnan(bound), np.inf, bound)
                bound = np.minimum(bound, np.exp(np.minimum(log_chernoff, 1.0)))
                bound += self._infinity_mass + np.nextafter(0.0, 1.0)
                return np.asarray(np.minimum(bound * (1.0 + 2.0**-48), 1.0))
            bound = np.exp(log_scale - slack) * (total - self._error)
            bound -= self._aliased(place, slack)
            bound = np.where(np.isnan(bound), 0.0, bound)
            return np.asarray(np.clip(bound * (1.0 - 2.0**-48), 0.0, 1.0))

    def _aliased(self, place: FloatArray, slack: FloatArray) -> FloatArray:
        step, size, tilt = self._table.lattice
        period = step * size
        left = 1.0 / math.expm1(tilt * period) if tilt * period < 700.0 else 1e-300
        right = np.full(place.size, np.inf)
        for column, factor in enumerate(_CHERNOFF_TILTS):
            t, gap = factor * tilt, (factor - 1.0) * tilt * period
            log_bound = self._chernoff[column] - t * place
            log_bound += self._table.log_weights[column + 1] + factor * slack
            right = np.minimum(right, np.exp(log_bound - gap) / -math.expm1(-gap))
        return (left + right) * (1.0 + 2.0**-20)


def log_largest_weight(tilt: FloatArray) -> FloatArray:
    """Return log of the largest e^(-t x) (1 - e^-x) over x > 0, the gain of Chernoff's bound."""
    return np.asarray(-tilt * np.log1p(1.0 / tilt) - np.log1p(tilt))


@lru_cache(maxsize=4)
def _weights(lattice: Lattice) -> np.ndarray[tuple[int], np.dtype[np.complex128]]:
    """Return half of the transform of v at lattice points, over e^(-t h) (1 - e^-h)."""
    step, size, tilt = lattice
    frequency = 2.0 * math.pi * np.arange(size // 2 + 1) / size
    one_minus_a = -np.expm1(-tilt * step + 1.0j * frequency)
    one_minus_b = -np.expm1(-(tilt + 1.0) * step + 1.0j * frequency)
    weights = np.asarray(1.0 / (one_minus_a * one_minus_b))
    weights.setflags(write=False)
    return weights
