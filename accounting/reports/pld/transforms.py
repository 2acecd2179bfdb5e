"""Transforms of tilted lattice losses, and delta of a composition from them by Plancherel.

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
from typing import Final

import numpy as np

from accounting.exact.argument_checks import BoolArray, FloatArray, IntArray
from accounting.reports.pld.discretisation import LOSS_ERROR, LatticeLoss, StepLoss

# Tilts, relative to that of the table, at which Chernoff's bound limits what is aliased.
CHERNOFF_TILTS: Final = (1.125, 1.25, 1.5, 2.0, 3.0)
# Errors of a step's transform, relative to its value at 0 and beyond those of the masses: of its
# logarithm and power; and of itself, per doubling of its size (each term passes through that many
# additions and products).
_STEP_ERROR, _STAGE_ERROR = 2.0**-48, 2.0**-50
_ROUNDING = 2.0**-50
_SUM_ERROR = 2.0**-46
# Frequencies kept: at first, and at most for all levels together.
_FIRST_COLUMNS, _MOST_ENTRIES = 256, 2**22


class LossTransforms:
    """Tables for one lattice, tilt, direction and side: a row for each level, filled when needed.

    `step`: the lattice step h; `size`: n, a power of two; `tilt`: t; `added`: whether the direction
    is add; `upper`: whether the losses dominate or are dominated.
    """

    def __init__(
        self, levels: int, step: float, size: int, tilt: float, added: bool, upper: bool
    ) -> None:
        self.step, self.size, self.tilt = step, size, tilt
        self._added, self.upper = added, upper
        self.log_weights = log_largest_weight(tilt * np.array([1.0, *CHERNOFF_TILTS]))
        self._columns = min(size // 2, _FIRST_COLUMNS) + 1
        self._filled: BoolArray = np.zeros(levels, dtype=np.bool_)
        self._log_mass = np.zeros((levels, 1 + len(CHERNOFF_TILTS)))
        self._offset, self._offset_error = np.zeros(levels), np.zeros(levels)
        self._infinity_mass, self._error = np.zeros(levels), np.zeros(levels)
        self._log_modulus = np.zeros((levels, self._columns))
        self._phase = np.zeros((levels, self._columns))
        # Powers of two that the frequencies kept may reach, and how large those above can be.
        self.cutoffs = 2 ** np.arange(3, int(math.log2(size)))
        self._log_above = np.zeros((levels, self.cutoffs.size))
        weights = _weights(step, size, tilt)
        self.weights = weights[: self._columns].copy()
        # The sums of the weights' sizes up to each cutoff, and above it.
        sizes = np.abs(weights)
        self._size_below = np.cumsum(sizes)[self.cutoffs]
        above = np.append(np.add.reduceat(sizes, self.cutoffs[:-1] + 1), 0.0)
        self._size_above = np.cumsum(above[::-1])[::-1]
        self._roots = _roots(size)

    def missing(self, used: BoolArray) -> IntArray:
        """Return the levels among `used`, shape (levels,), that have no row yet."""
        return np.flatnonzero(used & ~self._filled)

    def fill(self, level: int, losses: StepLoss, unbounded: bool = False) -> None:
        """Compute the row of a level; `unbounded`: its losses are only valid as a lower bound."""
        self._filled[level] = True
        lattice = losses.above if self.upper else losses.below
        if lattice is None:
            return  # the row of a harmless step, zeros, is below that of any step
        indices, log_mass, offset = self._directed(lattice)
        distance = self.step * indices.astype(np.float64)
        for column, factor in enumerate((1.0, *CHERNOFF_TILTS)):
            exponent = log_mass + (factor * self.tilt) * distance
            largest = float(exponent.max())
            tilted = np.exp(exponent - largest)
            total = float(tilted.sum())
            self._log_mass[level, column] = largest + math.log(total)
            if column == 0:
                ratio = tilted / total
        wrapped = np.bincount(indices & (self.size - 1), weights=ratio, minlength=self.size)
        spectrum = np.fft.rfft(wrapped)
        error = 2.0 * losses.error + _STEP_ERROR + _STAGE_ERROR * math.log2(self.size)
        kept = spectrum[: self._columns]
        # Between each of the cutoffs and the next; the last one has none above.
        squares = spectrum.real**2 + spectrum.imag**2
        above = np.maximum.reduceat(squares, self.cutoffs[:-1] + 1)
        above = np.append(above, 0.0)
        above = np.sqrt(np.maximum.accumulate(above[::-1])[::-1]) * (1.0 + _ROUNDING)
        with np.errstate(divide="ignore"):
            self._log_above[level] = np.log(np.minimum(above + error, 1.0))
            log_modulus = np.log(np.minimum(np.abs(kept), 1.0))
        self._log_modulus[level] = np.maximum(log_modulus, -700.0)
        self._phase[level] = np.angle(kept)
        self._error[level] = error
        if self.upper:
            self._infinity_mass[level] = 1.0 if unbounded else losses.infinity_mass
        self._offset[level], self._offset_error[level] = offset, LOSS_ERROR * losses.largest

    def _directed(self, lattice: LatticeLoss) -> tuple[IntArray, FloatArray, float]:
        if not self._added:
            return lattice.indices, lattice.log_removed, lattice.offset
        return -lattice.indices, lattice.log_added, -lattice.offset

    def needed_cutoffs(
        self, counts: FloatArray, epsilon: FloatArray, log_error: FloatArray
    ) -> IntArray:
        """Return for each user the least of `cutoffs` that truncates delta by less than an error.

        `epsilon`, `log_error`: where, and log of the error in delta, roughly; shape (n,).
        """
        place = epsilon - counts @ self._offset
        log_scale = counts @ self._log_mass[:, 0] - self.tilt * (place + self.step)
        log_scale += math.log(-math.expm1(-self.step) / self.size)
        with np.errstate(divide="ignore"):
            log_above = np.log(self._size_above) + counts @ self._log_above
        enough = log_above + log_scale[:, None] <= log_error[:, None]
        last = int(
            np.searchsorted(self.cutoffs, max(_MOST_ENTRIES // counts.shape[1], 1024), "right")
        )
        enough[:, last - 1 :] = True
        return np.asarray(self.cutoffs[enough.argmax(axis=1)])

    @property
    def entries(self) -> int:
        """Return roughly how many numbers this table holds."""
        return 2 * (self._phase.size + self.weights.size)

    def extend_to(self, cutoff: int) -> bool:
        """Make room for frequencies up to `cutoff`; return whether rows must be filled again."""
        if cutoff < self._columns:
            return False
        levels = self._filled.size
        self._columns = cutoff + 1
        self.weights = _weights(self.step, self.size, self.tilt)[: self._columns].copy()
        self._log_modulus = np.zeros((levels, self._columns))
        self._phase = np.zeros((levels, self._columns))
        self._filled[:] = False
        return True

    def compose(self, counts: FloatArray, cutoff: int) -> Composition:
        """Return the composition of `counts`, (n, levels), from frequencies up to `cutoff`."""
        return Composition(self, counts, cutoff)


class Composition:
    """The composed loss of n users: bounds on delta at lattice points.

    `offset`: the offset of each user's lattice, in the direction that is safe; shape (n,).
    """

    def __init__(self, table: LossTransforms, counts: FloatArray, cutoff: int) -> None:
        self._table, self._upper = table, table.upper
        keep = slice(0, cutoff + 1)
        log_masses = counts @ table._log_mass
        self._log_mass, self._chernoff = log_masses[:, 0], log_masses[:, 1:]
        # A sum of one product per level.
        rounding = _ROUNDING * (4.0 + counts.shape[1])
        self._relative = counts @ table._error + rounding * (counts @ np.abs(table._log_mass[:, 0]))
        shift = counts @ table._offset_error + rounding * (counts @ np.abs(table._offset))
        self.offset = counts @ table._offset + (shift if self._upper else -shift)
        self._infinity_mass = np.minimum(counts @ table._infinity_mass * (1.0 + 2.0**-40), 1.0)
        modulus = np.exp(counts @ table._log_modulus[:, keep])
        phase = counts @ table._phase[:, keep]
        self._terms = table.weights[keep] * modulus * np.exp(1.0j * phase)
        error = counts @ table._error + rounding * math.pi * counts.sum(axis=1) + _SUM_ERROR
        column = int(np.searchsorted(table.cutoffs, cutoff))
        self._error = error * float(table._size_below[column])
        if cutoff < table.size // 2:
            above = np.exp(np.minimum(counts @ table._log_above[:, column], 0.0))
            self._error += above * (1.0 + 2.0**-20) * float(table._size_above[column])
        self._error *= 1.0 + 2.0**-20

    def delta(self, at: IntArray, users: IntArray) -> FloatArray:
        """Return a bound on delta at epsilon = offset + `at` * step, for these `users`."""
        table, tilt, step = self._table, self._table.tilt, self._table.step
        frequencies = np.arange(self._terms.shape[1])
        first = (at + 1) & (table.size - 1)
        roots = table._roots[(first[:, None] * frequencies) & (table.size - 1)]
        total = (self._terms[users] * roots).real.sum(axis=1)
        log_mass = self._log_mass[users]
        place = at.astype(np.float64) * step
        slack = self._relative[users] + _ROUNDING * (
            16.0 + np.abs(log_mass) + tilt * (np.abs(place) + step)
        )
        log_scale = log_mass - tilt * (place + step) + math.log(-math.expm1(-step) / table.size)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            if self._upper:
                bound = np.exp(log_scale + slack) * np.maximum(total + self._error[users], 0.0)
                log_chernoff = log_mass - tilt * place + table.log_weights[0] + slack
                bound = np.where(np.isnan(bound), np.inf, bound)
                bound = np.minimum(bound, np.exp(np.minimum(log_chernoff, 1.0)))
                bound += self._infinity_mass[users] + np.nextafter(0.0, 1.0)
                return np.asarray(np.minimum(bound * (1.0 + 2.0**-48), 1.0))
            bound = np.exp(log_scale - slack) * (total - self._error[users])
            bound -= self._aliased(place, slack, users)
            bound = np.where(np.isnan(bound), 0.0, bound)
            return np.asarray(np.clip(bound * (1.0 - 2.0**-48), 0.0, 1.0))

    def _aliased(self, place: FloatArray, slack: FloatArray, users: IntArray) -> FloatArray:
        tilt, period = self._table.tilt, self._table.step * self._table.size
        left = 1.0 / math.expm1(tilt * period) if tilt * period < 700.0 else 1e-300
        right = np.full(place.size, np.inf)
        for column, factor in enumerate(CHERNOFF_TILTS):
            t, gap = factor * tilt, (factor - 1.0) * tilt * period
            log_bound = self._chernoff[users, column] - t * place
            log_bound += self._table.log_weights[column + 1] + factor * slack
            with np.errstate(over="ignore", under="ignore"):
                right = np.minimum(right, np.exp(log_bound - gap) / -math.expm1(-gap))
        return (left + right) * (1.0 + 2.0**-20)


def log_largest_weight(tilt: FloatArray) -> FloatArray:
    """Return log of the largest e^(-t x) (1 - e^-x) over x > 0, the gain of Chernoff's bound."""
    return np.asarray(-tilt * np.log1p(1.0 / tilt) - np.log1p(tilt))


@lru_cache(maxsize=32)
def _roots(size: int) -> np.ndarray[tuple[int], np.dtype[np.complex128]]:
    """Return the roots of unity, which all tables of a size share."""
    roots = np.exp(2.0j * math.pi * np.arange(size) / size)
    roots.setflags(write=False)
    return np.asarray(roots)


def _weights(
    step: float, size: int, tilt: float
) -> np.ndarray[tuple[int], np.dtype[np.complex128]]:
    """Return the transform of v at lattice points, over e^(-t h) (1 - e^-h).

    One half of the frequencies; those between the ends count twice, for the other half.
    """
    frequency = 2.0 * math.pi * np.arange(size // 2 + 1) / size
    one_minus_a = -np.expm1(-tilt * step + 1.0j * frequency)
    one_minus_b = -np.expm1(-(tilt + 1.0) * step + 1.0j * frequency)
    weights = 2.0 / (one_minus_a * one_minus_b)
    weights[0] *= 0.5
    weights[-1] *= 0.5
    return np.asarray(weights)
