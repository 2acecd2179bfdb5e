"""Estimate delta and epsilon by integration along a vertical line.

With K the sum of a history's cumulant functions and F(z) = K(z) - z epsilon - log z - log(1 + z),

    delta(epsilon) = (1 / 2 pi) integral of exp(F(t + i u)) du         for every t > 0

(Asoodeh et al. 2022), in each direction. exp(F(t + i u)), as a function of u, is the Fourier
transform of e^{t x} delta(x) at x = epsilon, with delta(x) = E(1 - e^{x - L})_+ for every real x;
so by Poisson's summation formula the trapezoidal rule of step h = 2 pi / T, (h / 2 pi) times the
sum of exp(F(t + i k h)) over all integers k, is

    sum over all integers j of e^{t j T} delta(epsilon + j T),

delta(epsilon) and other terms that are all >= 0. Those with j < 0 make at most 1 / (e^{t T} - 1);
those with j > 0 are bounded by any larger tilt s thatoms

    delta(x) <= exp(K(s) - s x) m(s),      m(s) = s^s / (1 + s)^(1 + s)         (Rényi accounting).

For j < 0 one wants t T >= b, b = log(1 / delta) + log(1 / tolerance), and for j > 0 (s - t) T >=
K(s) + log m(s) - s epsilon + b. The least T for which some t has both is the least of
(K(s) + log m(s) + 2 b) / s over s, less epsilon. That t need not be the saddle point, and must not
be if losses have a heavy tail, which may dominate the saddle point. Any t is valid, so lines lie at
tabulated tilts: nothing is interpolated, and the number of nodes does not depend on the number of
steps.

The omitted terms with k > N and the errors of transforms are small and not bounded: these are
estimates. Bounds are in `tilted_sums`. With 50 expected participations or more epsilon is within
1e-3 for delta from 1e-15. For smaller deltas, or fewer participations, heavy tails may need
more nodes and finer grids than are used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from accounting.exact.validation import BoolArray, FloatArray, IntArray
from accounting.reports.saddlepoint.loss_columns import LossColumns
from accounting.reports.saddlepoint.tilted_losses import ComplexArray
from accounting.reports.saddlepoint.tilted_sums import TiltedSums

# The errors of delta by aliasing, in nats below it, and by omitted terms, relative to it.
_MARGIN: Final = 12.0
_TOLERANCE = 1e-7
# Delta is expected this many nats below Rényi's bound; the search goes further if it is not.
_BELOW, _ROUNDS = 4.0, 4
# Numbers of nodes.
_NODES: Final = (16, 32, 64, 128, 512)
# A transform is mostly negligible beyond this many inverse standard deviations.
_WIDTH = 6.0
_STEPS_TO_OCTAVE = 2.0
# The largest t / h: beyond it, only the first node would matter.
_MOST_TURNS = 512.0
_ROOT_STEPS, _ACCURACY = 60, 1e-11
_LARGEST_LOG, _SMALLEST_LOG_DELTA = 700.0, -1500.0
_SMALLEST_PERIOD, _LARGEST_PERIOD = 1e-200, 1e9
# The tilt of a line is below that of its aliases' bound; rounding to halves of an octave.
_BELOW_FAR, _ROUNDED = 0.95, 2.0**0.25


class Contour:
    """Estimates for n histories with a step each at least.

    `counts`: steps in each of `used`, some of the columns of `columns`; `sums`: theirs.
    Logarithms of delta, or epsilon in nats, shape (n,).
    """

    def __init__(
        self,
        columns: LossColumns,
        used: IntArray,
        counts: FloatArray,
        sums: TiltedSums,
    ) -> None:
        self._columns, self._used, self._counts = columns, used, counts
        self._sums = sums

    def epsilon(self, log_delta: float, ceiling: FloatArray, rows: IntArray) -> FloatArray:
        """Return roughly the epsilon at which log delta is `log_delta`, for the users `rows`.

        At most `ceiling`, shape (n,), which is the result for the other users.
        """
        result, target = ceiling.copy(), np.full(ceiling.shape, log_delta)
        bounds = (self._sums.height[rows] - log_delta) / self._sums.tilts
        reach = np.zeros(ceiling.shape)
        reach[rows] = _BELOW / self._sums.tilts[bounds.argmin(axis=1)]
        for _ in range(_ROUNDS):
            start = np.maximum(result - reach, 0.0)
            again = []
            for part, line in self._lines(rows, start, target):
                result[part] = line.epsilon(log_delta, start[part], ceiling[part])
                again.append(part[result[part] < start[part]])
            rows = np.concatenate([rows[:0], *again])
            if not rows.size:
                break
        return result

    def log_delta(self, epsilon: FloatArray, ceiling: FloatArray, rows: IntArray) -> FloatArray:
        """Return roughly the log of delta at `epsilon`; arguments as for `epsilon`."""
        result = ceiling.copy()
        for _ in range(_ROUNDS):
            target = np.maximum(result, _SMALLEST_LOG_DELTA) - _BELOW
            again = []
            for part, line in self._lines(rows, epsilon, target):
                result[part] = np.minimum(line.log_delta(epsilon[part]), ceiling[part])
                again.append(part[result[part] < target[part]])
            rows = np.concatenate([rows[:0], *again])
            if not rows.size:
                break
        return result

    def _lines(
        self, rows: IntArray, epsilon: FloatArray, log_delta: FloatArray
    ) -> Iterator[tuple[IntArray, Line]]:
        """Yield (users, the line they share) for all of `rows` for whom there is one.

        `epsilon` and `log_delta`: about what the lines are for, shape (n,).
        """
        place, halves = self._choose(rows, epsilon[rows], log_delta[rows])
        for at, half in np.unique(np.stack([place, halves]), axis=1).T.tolist():
            part = rows[(place == at) & (halves == half)]
            if at < 0:
                continue
            step = float(self._sums.tilts[at] * np.exp2(-half / _STEPS_TO_OCTAVE))
            few = _WIDTH / (step * self._sums.sigma[part, at])
            for nodes in _NODES:
                ready = few <= nodes if nodes < _NODES[-1] else np.ones(part.shape, dtype=np.bool_)
                if not ready.any():
                    continue
                line = self._line(part[ready], at, step, nodes)
                enough = line.enough(epsilon[part[ready]]) | (nodes == _NODES[-1])
                if enough.any():
                    yield part[ready][enough], line.of(enough)
                left = ~ready
                left[ready] = ~enough
                part, few = part[left], few[left]
                if not part.size:
                    break

    def _choose(
        self, rows: IntArray, epsilon: FloatArray, log_delta: FloatArray
    ) -> tuple[IntArray, IntArray]:
        """Return the place of each user's tilt, -1 for none; and t / h in halves of octaves."""
        t, places = self._sums.tilts, self._columns.line_places
        height, wanted = self._sums.height[rows], _MARGIN - log_delta
        # The least period, and the tilt for it: the nearest at which transforms are tabulated.
        total = (height + 2.0 * wanted[:, np.newaxis]) / t
        period = np.maximum(total.min(axis=1) - epsilon, _SMALLEST_PERIOD)
        best = np.minimum(wanted / period, _BELOW_FAR * t[total.argmin(axis=1)])
        chosen = np.searchsorted(t[places], best * _ROUNDED, side="right") - 1
        chosen = np.minimum(chosen, np.searchsorted(places, self._sums.known[rows]) - 1)
        place = places[np.maximum(chosen, 0)]
        tilt = t[place]
        # The period for that tilt, rounded up to one that others share.
        excess = height - np.multiply.outer(epsilon, t) + wanted[:, np.newaxis]
        gap = t - tilt[:, np.newaxis]
        needed = np.where(gap > 0.0, excess / np.where(gap > 0.0, gap, 1.0), np.inf).min(axis=1)
        turns = np.maximum(wanted, tilt * np.minimum(needed, _LARGEST_PERIOD / tilt))
        turns /= 2.0 * math.pi
        halves = np.ceil(_STEPS_TO_OCTAVE * np.log2(turns)).astype(np.int64)
        possible = (chosen >= 0) & (turns < _MOST_TURNS)
        return np.where(possible, place, -1), np.where(possible, halves, 0)

    def _line(self, rows: IntArray, place: int, step: float, nodes: int) -> Line:
        counts = self._counts[rows]
        taken = np.flatnonzero(counts.any(axis=0))
        table = self._columns.log_transforms(self._used[taken], place, step, nodes)
        counts = counts[:, taken]
        log_transform = counts @ table.real + 1j * (counts @ table.imag)
        return Line(
            float(self._sums.tilts[place]),
            step,
            self._sums.cumulant[rows, place],
            self._sums.mean[rows, place],
            np.exp(log_transform),
        )


class Line:
    """The sum over the nodes t + i k h of one line for each of n users.

    `cumulant`, `mean`: K and K' at t, shape (n,); `transform`: that of L - K', shape (n, nodes).
    """

    def __init__(
        self,
        tilt: float,
        step: float,
        cumulant: FloatArray,
        mean: FloatArray,
        transform: ComplexArray,
    ) -> None:
        self._tilt, self._step, self._cumulant, self._mean = tilt, step, cumulant, mean
        self._transform = transform
        self._u = step * np.arange(1.0, transform.shape[1] + 1.0)
        self._z = tilt + 1j * self._u
        self._weight = transform / (self._z * (1.0 + self._z))
        self._first = 0.5 / (tilt * (1.0 + tilt))

    def of(self, rows: BoolArray) -> Line:
        """Return the line for some of the users."""
        return Line(
            self._tilt, self._step, self._cumulant[rows], self._mean[rows], self._transform[rows]
        )

    def enough(self, epsilon: FloatArray) -> BoolArray:
        """Return whether further nodes do not matter at `epsilon`, for each user."""
        left_out = np.abs(self._weight[:, -1]) * self._u.size
        return np.asarray(left_out <= _TOLERANCE * self._values(epsilon)[0])

    def log_delta(self, epsilon: FloatArray) -> FloatArray:
        """Return log delta at `epsilon`, shape (n,); -infinity where rounding hides it."""
        return self._log(self._values(epsilon)[0], epsilon)

    def epsilon(self, log_delta: float, start: FloatArray, ceiling: FloatArray) -> FloatArray:
        """Return where log delta is `log_delta`, by Newton's method between ends that close in."""
        low, high, epsilon = np.zeros(start.shape), ceiling, start
        moving = np.ones(start.shape, dtype=np.bool_)
        for _ in range(_ROOT_STEPS):
            value, slope = self._values(epsilon)
            excess = self._log(value, epsilon) - log_delta
            with np.errstate(divide="ignore", invalid="ignore"):
                following = epsilon + excess * value / slope
            above = excess > 0.0
            low, high = np.where(above, epsilon, low), np.where(above, high, epsilon)
            inside = (following > low) & (following < high)
            following = np.where(inside, following, 0.5 * (low + high))
            # A converged entry no longer changes, so no user's result depends on the other users.
            moving &= np.abs(following - epsilon) > _ACCURACY * ceiling
            epsilon = np.where(moving, following, epsilon)
            if not moving.any():
                break
        return epsilon

    def _values(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return delta and its slope, downwards, by e^{K - t epsilon} h / pi."""
        turned = self._weight * np.exp(np.multiply.outer(self._mean - epsilon, 1j * self._u))
        value = self._first + turned.real.sum(axis=1)
        return value, self._first * self._tilt + (turned @ self._z).real

    def _log(self, value: FloatArray, epsilon: FloatArray) -> FloatArray:
        log_scale = self._cumulant - self._tilt * epsilon + math.log(self._step / math.pi)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.maximum(value, 0.0)) + log_scale)
