"""Reports of each user's privacy loss, from histograms of steps: PLD, Rényi and saddle point.

A report bounds the loss of a *fixed* schedule of these steps: (epsilon, delta)-DP for a user whose
norms, rates and number of steps were chosen before anything was released. If
outputs led to the schedule, Yu et al. (Def. 4) call the report output-specific. Then it is no
guarantee: it does not add up delta over the other possible schedules, and at a stop that outputs
decide, the real delta may be many times the reported one. The guarantees are the budget of a filter
and, at any time, `accounting.Measure.epsilon` of the spend. A report never admits a step.

Only the user may see a report, unless a differentially private release publishes it. A norm must be
a bound that the mechanism enforced in that step by clipping this user to it (Yu et al., Alg. 3), or
the norm itself. A report on norms that were measured occasionally and not enforced is an estimate,
and must be labelled as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from accounting.conversions.risk import risk_bounds
from accounting.costs.mechanisms import Mechanism, known
from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    choice,
    nonnegative_finite,
    probability,
    renyi_orders,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.reports.bounds import Bounds, level_counts
from accounting.reports.gaussian import GaussianReport
from accounting.reports.grid import NormGrid
from accounting.reports.pld.pld_report import PldReport
from accounting.reports.renyi_report import RenyiReport
from accounting.reports.saddlepoint import SaddlePointReport

Method: TypeAlias = Literal["tightest", "pld", "renyi", "saddlepoint"]
METHODS: tuple[Method, ...] = get_args(Method)
_LARGEST_EPSILON: Final = 1e200  # for upper bounds of delta, a larger epsilon counts as this
_LARGE_DELTAS: Final = (0.1, 0.3)  # for the risk of users who have lost much


_Report: TypeAlias = GaussianReport | PldReport | RenyiReport | SaddlePointReport
_Question: TypeAlias = Callable[[_Report, IntArray], Bounds]


class BoundedArray(np.ndarray[Any, np.dtype[np.float64]]):
    """Upper bounds, read-only float64, with the whole interval in `bounds`.

    Attributes:
        bounds: lower bound, estimate and upper bound of each user, of the shape of this array. Only
            results of the accountant have it; parts, copies and results of arithmetic do not.
    """

    bounds: Bounds

    def __new__(cls, bounds: Bounds) -> BoundedArray:
        """Return the upper bounds, with the whole interval attached."""
        kept = Bounds(*(np.array(part, dtype=np.float64) for part in bounds))
        for part in kept:
            part.setflags(write=False)
        array = kept.upper.view(cls)
        array.bounds = kept
        return array

    def __array_wrap__(
        self,
        array: npt.NDArray[Any],
        context: tuple[Any, ...] | None = None,
        return_scalar: bool = False,
    ) -> Any:
        """Return results of arithmetic as plain arrays and numbers."""
        return array[()] if return_scalar else np.asarray(array)


class ReportAccountant:
    """Reports for users from counts of steps at each level of the norms.

    `mechanism`: the mechanism of all steps, or a sequence if rates, noises or kinds of mechanisms
    differed; it defines the norm. `PoissonRecords` has reports by "renyi" only.

    `grid`: the levels; `NormGrid.counts` computes histograms. With several mechanisms, `grid` is a
    sequence of as many grids, or one grid for all, and the counts are the histograms of the
    mechanisms side by side:
    `np.concatenate([first, second], axis=1)`. A sampled step counts at the user's norm, whether or
    not the user was sampled.

    `orders`: for "renyi", shape (k,), > 1 and finite; if not given, orders from 1.01 to 131073.

    Neighbours differ by adding or removing the user; the larger direction counts. Each method's
    tables are computed at its first use and cached:

    - "tightest": the default. Exact except for rounding for histories of Gaussian steps alone;
      otherwise the interval of "pld", with the smallest upper bound of "pld", "renyi" and, for
      sampled Gaussian steps, of the same steps without sampling.
    - "pld": discretised privacy losses; certified bounds within a small distance of each other.
    - "renyi": an upper bound only, loose because of the conversion; the fastest.
    - "saddlepoint": an approximation, with the interval of its proven error; its time does not
      depend on the number of steps. The interval is narrow for many steps. If few draws decide
      (sampling rates of one in millions, or a handful of steps), it is wide, and the estimate may
      be anywhere in it. Where its upper end says nothing, `InvalidInput` is raised.

    The bounds hold for the histogram given. Because norms are rounded up to the grid, upper bounds
    also hold for the norms themselves, and lower bounds only for the rounded history.
    """

    def __init__(
        self,
        mechanism: Mechanism | Sequence[Mechanism],
        grid: NormGrid | Sequence[NormGrid],
        orders: npt.ArrayLike | None = None,
    ) -> None:
        listed = mechanism if isinstance(mechanism, Sequence) else [mechanism]
        each = [known(one) for one in listed]
        grids = list(grid) if isinstance(grid, Sequence) else [grid] * len(each)
        if not each or len(grids) != len(each):
            allowed = "one grid, or one per mechanism, for one mechanism or more"
            raise InvalidInput("grid", f"{len(grids)} for {len(each)} mechanisms", allowed)
        for one_grid in grids:
            if not isinstance(one_grid, NormGrid):
                raise InvalidInput("grid", one_grid, "a NormGrid")
        self.mechanism = mechanism
        self.grid = grid
        self._norms = np.concatenate([one_grid.norms for one_grid in grids])
        self._mechanisms = [
            one for one, one_grid in zip(each, grids, strict=True) for _ in range(one_grid.levels)
        ]
        self._orders = None if orders is None else renyi_orders("orders", orders)
        self._reports: dict[str, _Report] = {}

    def epsilon(
        self, counts: npt.ArrayLike, delta: float, method: Method = "tightest"
    ) -> BoundedArray:
        """Return an upper bound of each user's epsilon at `delta`, shape (n,), with `.bounds`.

        `counts`: integers, 0 to 2**46, shape (n, levels), or (levels,) for one user, which gives
        shape (). 0 < `delta` < 1. In nats, >= 0; 0 for a user without steps. Without a bound it is
        infinite; "saddlepoint" raises `InvalidInput` instead.
        """
        level = probability("delta", delta)
        return self._report(counts, method, lambda report, rows: report.epsilon(rows, level))

    def delta(
        self, counts: npt.ArrayLike, epsilon: float, method: Method = "tightest"
    ) -> BoundedArray:
        """Return an upper bound of each user's delta at `epsilon`, shape (n,), with `.bounds`.

        `epsilon`: nats, finite, >= 0; otherwise as for `epsilon`. At most 1, which means that the
        method has no bound; "saddlepoint" raises `InvalidInput` instead.
        """
        asked = nonnegative_finite("epsilon", epsilon)
        level = min(asked, _LARGEST_EPSILON)

        def found(report: _Report, rows: IntArray) -> Bounds:
            bounds = report.delta(rows, level)
            return bounds if level == asked else bounds._replace(lower=np.zeros(len(rows)))

        return self._report(counts, method, found)

    def risk(
        self, counts: npt.ArrayLike, false_positive_rate: float, method: Method = "tightest"
    ) -> tuple[FloatArray, FloatArray]:
        """Return true-positive rate and advantage of attacks on each user, at most, shape (n,).

        They are those of `accounting.Risk`, from points of each user's curve. `counts`, `method`:
        as for `epsilon`; 0 < `false_positive_rate` < 1. Rounded up; from a false-positive rate of
        0.01 on, the rate is at most a quarter above the exact one.
        """
        alpha = probability("false_positive_rate", false_positive_rate)
        at_zero = np.asarray(self.delta(counts, 0.0, method))
        rate, _ = risk_bounds(np.zeros_like(at_zero), at_zero, alpha)
        # Each point of the curve gives a bound (`accounting.conversions.risk`); the least counts.
        for delta in {max(alpha / 5.0, 5e-324), min(2.0 * alpha, 0.99), *_LARGE_DELTAS}:
            epsilon = np.asarray(self.epsilon(counts, delta, method))
            found, _ = risk_bounds(epsilon, np.full_like(epsilon, delta), alpha)
            rate = np.minimum(rate, found)
        return np.where(at_zero > 0.0, rate, alpha), at_zero

    def _report(self, counts: npt.ArrayLike, method: Method, ask: _Question) -> BoundedArray:
        choice("method", method, METHODS)
        checked = level_counts(counts, self._norms.size)
        rows = np.atleast_2d(checked)
        found = self._tightest(rows, ask) if method == "tightest" else ask(self._by(method), rows)
        return BoundedArray(Bounds(*(part.reshape(checked.shape[:-1]) for part in found)))

    def _tightest(self, rows: IntArray, ask: _Question) -> Bounds:
        """Return the exact bounds of Gaussian histories, and the best ones of the others."""
        gaussian = self._by("gaussian")
        assert isinstance(gaussian, GaussianReport)
        # Bounds at two nearby points need not be monotone: each point of the loss distributions
        # has its own lattice.
        return gaussian.exact_or(
            rows,
            lambda some: ask(gaussian, some),
            lambda some: (
                ask(self._by("pld"), some)
                .at_most(ask(self._by("renyi"), some).upper)
                .at_most(ask(gaussian, some).upper)
            ),
        )

    def _by(self, method: str) -> _Report:
        if method not in self._reports:
            levels = self._mechanisms, self._norms
            match method:
                case "renyi":
                    self._reports[method] = RenyiReport(*levels, self._orders)
                case "pld":
                    self._reports[method] = PldReport(*levels)
                case "gaussian":
                    self._reports[method] = GaussianReport(*levels)
                case _:
                    self._reports[method] = SaddlePointReport(*levels)
        return self._reports[method]
