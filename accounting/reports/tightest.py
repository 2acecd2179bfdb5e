"""Bounds from all methods together, and one falling curve through the upper ones.

Loss distributions, Rényi divergences and, for histories of Gaussian steps alone, the Gaussian
trade-off each bound delta(epsilon) from above at every point. Rényi's and the Gaussian bound fall
in their argument. Those of loss distributions need not, for each point has a lattice of its own:
they are taken at fixed deltas only, `_PER_DECADE` of them to a power of ten, where they are apart
by more than they err. Between two of these points delta is below the chord, being convex in
exp(epsilon). What results is one falling curve, which both delta and epsilon are read from.

Far in the tail of histories with few and large losses, intervals may be wider than such points are
apart. There, a method's bound at the point itself is taken where it is less by a twentieth. So the
bounds fall but for that, and are at most 6 % above the least upper bound of all methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from accounting.conversions import gdp_to_delta, gdp_to_epsilon
from accounting.costs.mechanisms import Gaussian, PoissonGaussian
from accounting.exact.validation import FloatArray, IntArray
from accounting.reports.bounds import Bounds
from accounting.reports.histories import Mechanisms, per_level
from accounting.reports.pld.report import PldReport
from accounting.reports.renyi import RenyiReport
from accounting.reports.saddlepoint.report import SaddlePointReport

_PER_DECADE: Final = 32
_DECADES: Final = 300
# Literals at whole powers of ten, which are the deltas that are mostly asked for.
ANCHORS: Final = np.array(
    [
        float(f"1e-{k // _PER_DECADE}") * 10.0 ** (-(k % _PER_DECADE) / _PER_DECADE)
        for k in range(_PER_DECADE * _DECADES + 1)
    ]
)
ANCHORS.setflags(write=False)
# How steep log delta is, at most, in usual histories: that of a Gaussian tail is 2.
_STEEPEST: Final = 2.5
_APART: Final = math.log(10.0) / _PER_DECADE
# Of the curve, less than which the bound of loss distributions at the point itself is taken.
_LOOSE: Final = 0.95
_WIDE: Final = 0.02
_LOOKS: Final = (1, 2, 4, 8)
_ROUNDING: Final = 2.0**-48
# `gdp_to_delta` is above the exact value by at most 2e-12 of it, above this delta.
_GAUSSIAN_ERROR, _SMALLEST_DELTA = 1e-11, 1e-300
# Ratios of norm and noise that Gaussian DP takes for infinite, and whose squares do not overflow.
_LARGE: Final = 1e150


class TightestReport:
    """Bounds from all methods that hold for a histogram; those given are of its levels.

    Saddle points are asked for only where the rest leaves a wide interval.
    `ratios`: as `gaussian_ratios` returns them.
    """

    def __init__(
        self,
        pld: PldReport,
        renyi: RenyiReport,
        saddle_point: Callable[[], SaddlePointReport],
        ratios: FloatArray,
    ) -> None:
        self._pld, self._renyi, self._saddle_point = pld, renyi, saddle_point
        self._other = np.isnan(ratios)
        self._squares = np.where(self._other, 0.0, np.minimum(ratios, _LARGE)) ** 2
        # Of sums over the levels, and of roots.
        self._slack = (ratios.size + 32.0) * 2.0**-52

    def epsilon(self, counts: IntArray, delta: float) -> Bounds:
        """Return bounds of epsilon at `delta`, 0 < delta < 1; `counts`: int64, (n, levels)."""

        def of_gaussian(mu: FloatArray) -> Bounds:
            upper = gdp_to_epsilon(mu, delta)
            more = delta * (1.0 + _GAUSSIAN_ERROR)
            lower = (
                gdp_to_epsilon(mu * (1.0 - 2.0 * self._slack), more)
                if more < 1.0
                else np.zeros_like(mu)
            )
            return Bounds(lower * (1.0 - _ROUNDING), upper, upper)

        def of_any(rows: IntArray) -> Bounds:
            place = int(np.searchsorted(-ANCHORS, -delta, side="right")) - 1
            curve, places = _Curve(self._pld, rows), np.full(rows.shape[0], place)
            everyone = np.arange(places.size)
            left = curve.upper(everyone, places)
            by_renyi = self._renyi.epsilon(rows, delta).upper
            if delta == ANCHORS[place]:
                return _joined(curve.bounds(place), left, by_renyi)
            known = self._pld.epsilon(rows, delta)
            if place + 1 == ANCHORS.size:
                return _joined(known, np.maximum(left, known.upper), by_renyi)
            right = curve.upper(everyone, places + 1)
            height, low = curve.heights(places, left), ANCHORS[place + 1]
            part = np.maximum(height - delta, 0.0) / np.maximum(height - low, 1e-320)
            return _joined(known, _up_the_chord(left, right, part), by_renyi)

        return self._bounds(
            counts, of_gaussian, of_any, lambda report, rows: report.epsilon(rows, delta)
        )

    def delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds of delta at `epsilon`, finite, >= 0; `counts` as for `epsilon`."""

        def of_gaussian(mu: FloatArray) -> Bounds:
            upper = gdp_to_delta(mu, epsilon)
            lower = gdp_to_delta(mu * (1.0 - 2.0 * self._slack), epsilon) * (1.0 - _GAUSSIAN_ERROR)
            return Bounds(np.where(lower > _SMALLEST_DELTA, lower, 0.0), upper, upper)

        def of_any(rows: IntArray) -> Bounds:
            known = self._pld.delta(rows, epsilon)
            by_renyi = self._renyi.delta(rows, epsilon).upper
            if epsilon == 0.0:
                return _joined(known, known.upper, by_renyi)
            start = np.minimum(known.upper, by_renyi)
            return _joined(known, _Curve(self._pld, rows).delta(epsilon, start), by_renyi)

        return self._bounds(
            counts, of_gaussian, of_any, lambda report, rows: report.delta(rows, epsilon)
        )

    def _bounds(
        self,
        counts: IntArray,
        of_gaussian: Callable[[FloatArray], Bounds],
        of_any: Callable[[IntArray], Bounds],
        by_saddle_point: Callable[[SaddlePointReport, IntArray], Bounds],
    ) -> Bounds:
        """Return the bounds of all users; zeros for those without steps."""
        result = Bounds(*np.zeros((3, counts.shape[0])))
        other = counts[:, self._other].any(axis=1)
        some = counts.any(axis=1)
        gaussian, rest = np.flatnonzero(some & ~other), np.flatnonzero(other)
        if gaussian.size:
            mu = np.sqrt((counts[gaussian] * self._squares).sum(axis=1)) * (1.0 + self._slack)
            for column, values in zip(result, of_gaussian(mu), strict=True):
                column[gaussian] = values
        if rest.size:
            found = of_any(counts[rest])
            wide = np.flatnonzero(found.lower < found.upper * (1.0 - _WIDE))
            if wide.size:
                closer = by_saddle_point(self._saddle_point(), counts[rest[wide]])
                lower = np.maximum(found.lower[wide], closer.lower)
                upper = found.upper[wide]
                upper = np.where(closer.upper < _LOOSE * upper, closer.upper, upper)
                lower = np.minimum(lower, upper)
                estimate = np.clip(closer.estimate, lower, upper)
                for column, values in zip(found, (lower, estimate, upper), strict=True):
                    column[wide] = values
            for column, values in zip(result, found, strict=True):
                column[rest] = values
        return result


class _Curve:
    """Upper bounds of epsilon at the anchors, which rise; computed for the users that need them."""

    def __init__(self, pld: PldReport, counts: IntArray) -> None:
        self._pld, self._counts = pld, counts
        self._kept: dict[int, Bounds] = {}

    def bounds(self, place: int) -> Bounds:
        """Return what was found at an anchor, shape (n,); NaN for users that were not asked for."""
        users = self._counts.shape[0]
        return self._kept.setdefault(place, Bounds(*np.full((3, users), np.nan)))

    def upper(self, users: IntArray, places: IntArray) -> FloatArray:
        """Return the bound at the anchor of each of `users`, infinite after the last anchor.

        A bound at a smaller delta holds at a larger one, and may be less, if intervals are wide: a
        few are looked at, until a lower bound says that no other can be.
        """
        result = np.full(users.size, np.inf)
        who = np.flatnonzero(places < ANCHORS.size)
        found = self._at(users[who], places[who])
        result[who] = found.upper
        steepness = _STEEPEST * (1.0 - np.log(ANCHORS[places[who]]))
        narrow = (found.upper - found.lower) * steepness <= _APART * found.upper
        who = who[~narrow & (found.upper > 0.0)]
        for further in _LOOKS:
            who = who[places[who] + further < ANCHORS.size]
            if who.size:
                found = self._at(users[who], places[who] + further)
                result[who] = np.minimum(result[who], found.upper)
                who = who[found.lower < result[who]]
        return result

    def delta(self, epsilon: float, start: FloatArray) -> FloatArray:
        """Return the height of the curve at `epsilon` > 0, shape (n,), looked for from `start`."""
        everyone, last = np.arange(start.size), ANCHORS.size
        low = np.searchsorted(-ANCHORS, -start, side="right") - 1
        low = np.clip(low, 0, last - 1).astype(np.int64)
        left, stride = self.upper(everyone, low), 1
        high, right = np.full_like(low, last), np.full_like(left, np.inf)
        # Ever further to either side, until the curve passes `epsilon` between the two.
        while (who := np.flatnonzero(left > epsilon)).size:
            high[who], right[who] = low[who], left[who]
            low[who], stride = np.maximum(low[who] - stride, 0), 2 * stride
            left[who] = self.upper(who, low[who])
        stride, who = 1, np.flatnonzero(high == last)
        while who.size:
            at = np.minimum(low[who] + stride, last)
            found, stride = self.upper(who, at), 2 * stride
            on = found <= epsilon
            low[who[on]], left[who[on]] = at[on], found[on]
            high[who[~on]], right[who[~on]] = at[~on], found[~on]
            who = who[on]
        while (who := np.flatnonzero(high - low > 1)).size:
            at = (low[who] + high[who]) // 2
            found = self.upper(who, at)
            on = found <= epsilon
            low[who[on]], left[who[on]] = at[on], found[on]
            high[who[~on]], right[who[~on]] = at[~on], found[~on]
        at_left = self.heights(low, left)
        height = _down_the_chord(left, at_left, right, _anchor(high), epsilon)
        return np.minimum(height, at_left)

    def heights(self, places: IntArray, left: FloatArray) -> FloatArray:
        """Return the deltas of the points at these anchors, whose epsilons are `left`, (n,).

        Where that is 0, or may be, the point is the beginning of the curve, at epsilon 0.
        """
        result = _anchor(places)
        maybe = self._at(np.arange(places.size), places).lower == 0.0
        low = np.flatnonzero((left == 0.0) | maybe)
        if low.size:
            result[low] = np.minimum(result[low], self._pld.delta(self._counts[low], 0.0).upper)
        return result

    def _at(self, users: IntArray, places: IntArray) -> Bounds:
        """Return what is known of each of `users` at its place; all that is not, is looked up."""
        missing = np.array(
            [
                np.isnan(self.bounds(place).upper[user])
                for user, place in zip(users.tolist(), places.tolist(), strict=True)
            ],
            dtype=np.bool_,
        )
        at_one = missing & (places == 0)
        for user in users[at_one].tolist():
            for column in self.bounds(0):
                column[user] = 0.0
        missing &= ~at_one
        if missing.any():
            found = self._pld.epsilon(self._counts[users[missing]], ANCHORS[places[missing]])
            self._put(users[missing], places[missing], found)
        result = Bounds(*np.empty((3, users.size)))
        for place in np.unique(places).tolist():
            rows = np.flatnonzero(places == place)
            for column, values in zip(result, self.bounds(place), strict=True):
                column[rows] = values[users[rows]]
        return result

    def _put(self, users: IntArray, places: IntArray, found: Bounds) -> None:
        for place in np.unique(places).tolist():
            rows = np.flatnonzero(places == place)
            for column, values in zip(self.bounds(place), found, strict=True):
                column[users[rows]] = values[rows]


def gaussian_ratios(mechanisms: Mechanisms, norms: FloatArray) -> FloatArray:
    """Return norm over noise of Gaussian steps, rounded up; NaN for other ones; shape (levels,)."""
    ratios = np.full(norms.size, np.nan)
    for level, mechanism in enumerate(per_level(mechanisms, norms.size)):
        match mechanism:
            case Gaussian(noise) | PoissonGaussian(noise, 1.0):
                with np.errstate(over="ignore", under="ignore"):
                    ratios[level] = np.nextafter(norms[level] / noise, np.inf)
    return ratios


def _anchor(place: IntArray | int) -> FloatArray:
    """Return the deltas of anchors, 0 after the last one."""
    return np.where(
        np.asarray(place) < ANCHORS.size, ANCHORS[np.minimum(place, ANCHORS.size - 1)], 0.0
    )


def _up_the_chord(left: FloatArray, right: FloatArray, part: FloatArray) -> FloatArray:
    """Return where the chord between two epsilons has come down by `part` of its height."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        width = np.where(right < np.inf, right - left, np.inf)
        moved = np.where(
            width < 1.0,
            np.log1p(np.expm1(np.minimum(width, 1.0)) * part),
            width + np.log(part - part * np.exp(-width) + np.exp(-width)),
        )
    moved = np.where(width < np.inf, moved, np.inf)
    return np.asarray(np.minimum(left + moved * (1.0 + _ROUNDING), right) * (1.0 + _ROUNDING))


def _down_the_chord(
    left: FloatArray, at_left: FloatArray, right: FloatArray, at_right: FloatArray, epsilon: float
) -> FloatArray:
    """Return the height of the chord at `epsilon`, rounded up."""
    with np.errstate(invalid="ignore", divide="ignore", under="ignore", over="ignore"):
        width, inside = right - left, np.clip(epsilon - left, 0.0, None)
        part = np.exp(inside - width) * np.expm1(-inside) / np.expm1(-width)
    part = np.where((width < np.inf) & (width > 0.0), np.clip(part, 0.0, 1.0), 0.0)
    height = at_left + part * (1.0 - _ROUNDING) * np.minimum(at_right - at_left, 0.0)
    return np.asarray(height * (1.0 + _ROUNDING))


def _joined(known: Bounds, curve: FloatArray, other: FloatArray) -> Bounds:
    """Return the interval of a report with an upper bound of the curve, and another one.

    The report's own where the curve is loose: then it is not certain to fall.
    """
    upper = np.where(known.upper < _LOOSE * curve, known.upper, curve)
    upper = np.minimum(upper, other)
    lower = np.minimum(known.lower, upper)
    return Bounds(lower, np.clip(known.estimate, lower, upper), upper)
