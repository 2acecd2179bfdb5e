"""The exact report for histories of Gaussian steps alone: one Gaussian trade-off (Koskela et al.).

mu of a history is the root of the sum of the squared ratios c / s of its steps (Dong, Roth and Su
2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from accounting.conversions.gdp import gdp_to_delta, gdp_to_epsilon
from accounting.costs.mechanisms import Laplace, Mechanism, PureDP
from accounting.exact.argument_checks import FloatArray, IntArray
from accounting.reports.bounds import Bounds, step_sizes

_ROUNDING: Final = 2.0**-48
# Above this delta, `gdp_to_delta` exceeds the exact value by at most a relative 2e-12.
_DELTA_ERROR, _SMALLEST_DELTA = 1e-11, 1e-300
# Larger ratios count as this one: Gaussian DP takes it for infinite, and its square is finite.
_LARGE: Final = 1e150
# The conversions replace a smaller mu or a larger epsilon by a limit: no lower bound follows then.
_SMALLEST_MU, _LARGEST_EPSILON = 1e-99, 1e25


class GaussianReport:
    """Bounds for histories of Gaussian steps alone, exact except for rounding.

    For histories with sampled Gaussian steps, only the upper bounds hold: they are those of the
    same steps without sampling. A sampled step is a mixture of no step and of the unsampled one, so
    the unsampled one dominates it. With steps of pure DP the upper bound is infinite, and 1 for
    delta.

    `mechanisms`: that of each level; `norms`: the levels, shape (levels,), > 0.
    """

    def __init__(self, mechanisms: Sequence[Mechanism], norms: FloatArray) -> None:
        each, sizes = step_sizes(mechanisms, norms)
        self._pure = np.array([isinstance(step, Laplace | PureDP) for step in each])
        rates = np.array([getattr(step, "sampling_rate", 1.0) for step in each])
        self._other = self._pure | ((rates > 0.0) & (rates < 1.0))
        ratios = np.where(self._pure | (rates == 0.0), 0.0, sizes)
        above = np.where(ratios > 0.0, np.nextafter(ratios, np.inf), 0.0)
        self._squares = np.minimum(above, _LARGE) ** 2
        self._slack = (ratios.size + 32.0) * 2.0**-52  # of a sum over the levels and its root

    def epsilon(self, counts: IntArray, delta: float) -> Bounds:
        """Return bounds of epsilon at `delta`, 0 < delta < 1; `counts`: int64, (n, levels)."""
        mu, below = self._mu(counts)
        upper = gdp_to_epsilon(mu, delta)
        more = delta * (1.0 + _DELTA_ERROR)
        lower = gdp_to_epsilon(below, more) if more < 1.0 else np.zeros_like(mu)
        exact = np.isfinite(upper) & (below > _SMALLEST_MU)
        lower = np.where(exact, lower * (1.0 - _ROUNDING), 0.0)
        return Bounds(lower, upper, upper)

    def delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds of delta at `epsilon`, finite, >= 0; `counts` as for `epsilon`."""
        mu, below = self._mu(counts)
        upper = gdp_to_delta(mu, epsilon)
        lower = gdp_to_delta(below, epsilon) * (1.0 - _DELTA_ERROR)
        exact = (lower > _SMALLEST_DELTA) & (below > _SMALLEST_MU) & (epsilon <= _LARGEST_EPSILON)
        return Bounds(np.where(exact, lower, 0.0), upper, upper)

    def exact_or(
        self,
        counts: IntArray,
        exact: Callable[[IntArray], Bounds],
        other: Callable[[IntArray], Bounds],
    ) -> Bounds:
        """Return `exact` for histories of Gaussian steps alone, `other` for those with other steps.

        Both take the counts of some users. The bounds of users without steps are 0.
        """
        result = Bounds(*np.zeros((3, counts.shape[0])))
        others = counts[:, self._other].any(axis=1)
        for users, report in ((counts.any(axis=1) & ~others, exact), (others, other)):
            if users.any():
                for column, values in zip(result, report(counts[users]), strict=True):
                    column[users] = values
        return result

    def _mu(self, counts: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return mu of each history, rounded up and rounded down; shape (n,) each."""
        with np.errstate(over="ignore"):  # infinite, which is rounded up
            root = np.sqrt((counts * self._squares).sum(axis=1))
        above = np.where(counts[:, self._pure].any(axis=1), np.inf, root * (1.0 + self._slack))
        return above, root * (1.0 - self._slack)
