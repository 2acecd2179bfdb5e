"""The tightest bounds: exact for Gaussian histories, else loss distributions and Rényi together.

Histories of Gaussian steps alone are exact except for rounding, by the Gaussian trade-off. For all
other histories, loss distributions give an interval and Rényi divergences another upper bound; the
smaller upper bound counts. Bounds at two nearby points need not be monotone, because each point of
the loss distributions is computed on its own lattice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from accounting.conversions import gdp_to_delta, gdp_to_epsilon
from accounting.costs.mechanisms import Gaussian, PoissonGaussian
from accounting.exact.validation import FloatArray, IntArray
from accounting.reports.bounds import Bounds
from accounting.reports.histories import Mechanisms, per_level
from accounting.reports.pld.pld_report import PldReport
from accounting.reports.renyi import RenyiReport

_ROUNDING: Final = 2.0**-48
# Above this delta, `gdp_to_delta` exceeds the exact value by at most a relative 2e-12.
_GAUSSIAN_ERROR, _SMALLEST_DELTA = 1e-11, 1e-300
# Larger ratios of norm and noise count as this one: Gaussian DP takes it for infinite, and its
# square does not overflow.
_LARGE: Final = 1e150


class TightestReport:
    """The tightest bounds for histograms over the levels of the given reports.

    Args:
        pld, renyi: reports for the same levels.
        ratios: as `gaussian_ratios` returns them.
    """

    def __init__(self, pld: PldReport, renyi: RenyiReport, ratios: FloatArray) -> None:
        self._pld, self._renyi = pld, renyi
        self._other = np.isnan(ratios)
        self._squares = np.where(self._other, 0.0, np.minimum(ratios, _LARGE)) ** 2
        # For sums over the levels, and for roots.
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

        return self._bounds(counts, of_gaussian, lambda report, rows: report.epsilon(rows, delta))

    def delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds of delta at `epsilon`, finite, >= 0; `counts` as for `epsilon`."""

        def of_gaussian(mu: FloatArray) -> Bounds:
            upper = gdp_to_delta(mu, epsilon)
            lower = gdp_to_delta(mu * (1.0 - 2.0 * self._slack), epsilon) * (1.0 - _GAUSSIAN_ERROR)
            return Bounds(np.where(lower > _SMALLEST_DELTA, lower, 0.0), upper, upper)

        return self._bounds(counts, of_gaussian, lambda report, rows: report.delta(rows, epsilon))

    def _bounds(
        self,
        counts: IntArray,
        of_gaussian: Callable[[FloatArray], Bounds],
        ask: Callable[[PldReport | RenyiReport, IntArray], Bounds],
    ) -> Bounds:
        """Return the bounds of all users; zeros for users without steps."""
        result = Bounds(*np.zeros((3, counts.shape[0])))
        other = counts[:, self._other].any(axis=1)
        gaussian, rest = np.flatnonzero(counts.any(axis=1) & ~other), np.flatnonzero(other)
        if gaussian.size:
            mu = np.sqrt((counts[gaussian] * self._squares).sum(axis=1)) * (1.0 + self._slack)
            for column, values in zip(result, of_gaussian(mu), strict=True):
                column[gaussian] = values
        if rest.size:
            known = ask(self._pld, counts[rest])
            upper = np.minimum(known.upper, ask(self._renyi, counts[rest]).upper)
            lower = np.minimum(known.lower, upper)
            found = Bounds(lower, np.clip(known.estimate, lower, upper), upper)
            for column, values in zip(result, found, strict=True):
                column[rest] = values
        return result


def gaussian_ratios(mechanisms: Mechanisms, norms: FloatArray) -> FloatArray:
    """Return norm over noise of Gaussian steps, rounded up; NaN for others; shape (levels,)."""
    ratios = np.full(norms.size, np.nan)
    for level, mechanism in enumerate(per_level(mechanisms, norms.size)):
        match mechanism:
            case Gaussian(noise) | PoissonGaussian(noise, 1.0):
                with np.errstate(over="ignore", under="ignore"):
                    ratios[level] = np.nextafter(norms[level] / noise, np.inf)
    return ratios
