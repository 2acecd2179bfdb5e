"""What a user has lost, from the realised history: PLD, Rényi and saddle point over one histogram.

These are reports. They hold for the history as it was realised, for one user: output-specific
(epsilon, delta)-DP at the set of outcomes that led there (Yu et al., Def. 4). They go to that
user, or out through a differentially private release. They are not filters and must never admit a
step: where later steps depend on earlier outcomes, only the filters and odometers of
`accounting.rules` are valid.

A norm must be a bound that the mechanism enforced in that step, by clipping this user to it (Yu et
al., Alg. 3), or the norm itself. A report on norms that were measured now and then and not
enforced is an estimate and must be called one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import Mechanism
from accounting.exact.errors import InvalidInput
from accounting.exact.validation import (
    FloatArray,
    IntArray,
    nonnegative_finite,
    probability,
    renyi_orders,
)
from accounting.reports.bounds import Bounds
from accounting.reports.grid import NormGrid
from accounting.reports.histories import level_counts
from accounting.reports.pld.report import PldReport
from accounting.reports.renyi import RenyiReport
from accounting.reports.saddlepoint.report import SaddlePointReport
from accounting.reports.tightest import TightestReport, gaussian_ratios

Method: TypeAlias = Literal["tightest", "pld", "renyi", "saddlepoint"]
METHODS: tuple[Method, ...] = get_args(Method)


class Report(Protocol):
    """A method: tables made once for a mechanism and the levels of a grid."""

    def epsilon(self, counts: IntArray, delta: float) -> Bounds:
        """Return bounds of epsilon at `delta` for counts of shape (n, levels)."""
        ...

    def delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds of delta at `epsilon` for counts of shape (n, levels)."""
        ...


class BoundedArray(np.ndarray[Any, np.dtype[np.float64]]):
    """Upper bounds, read-only float64, with the whole interval in `bounds`.

    Parts that are indexed (slices, masks, lists of users) have the bounds of their users, and
    copies (`copy`, the module copy, pickle) those of the whole. An element is a number; what is
    computed is a plain array. Whatever else is made of it, such as a view of another shape, has no
    `bounds`: asking for them raises AttributeError.
    """

    _bounds: Bounds | None

    def __new__(cls, bounds: Bounds) -> BoundedArray:
        """Return the upper bounds, with all three."""
        kept = Bounds(*(np.array(part, dtype=np.float64) for part in bounds))
        for part in kept:
            part.setflags(write=False)
        array = kept.upper.view(cls)
        array._bounds = kept
        return array

    @property
    def bounds(self) -> Bounds:
        """Lower bound, estimate and upper bound of each user, of the shape of this array."""
        bounds = self._known()
        if bounds is None:
            allowed = "only what the accountant returned, its parts and copies, has bounds"
            raise AttributeError(allowed)
        return bounds

    def _known(self) -> Bounds | None:
        # A view has no attribute; an array whose shape was set has bounds of another one.
        bounds: Bounds | None = getattr(self, "_bounds", None)
        return bounds if bounds is not None and bounds.upper.shape == self.shape else None

    def __getitem__(self, key: Any) -> Any:
        """Return a part with the bounds of its users, or an element."""
        part = np.asarray(self)[key]
        bounds = self._known()
        if bounds is None or not isinstance(part, np.ndarray):
            return part
        return BoundedArray(Bounds(*(column[key] for column in bounds)))

    def copy(self, order: Any = "C") -> Any:
        """Return a copy with the same bounds, read-only as well, in the order that it has."""
        bounds = self._known()
        return np.asarray(self).copy(order) if bounds is None else BoundedArray(bounds)

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy()

    def __array_wrap__(
        self,
        array: npt.NDArray[Any],
        context: tuple[Any, ...] | None = None,
        return_scalar: bool = False,
    ) -> Any:
        """Let results of arithmetic be plain arrays and numbers."""
        return array[()] if return_scalar else np.asarray(array)

    def __reduce__(self) -> Any:
        """Pickle with the bounds, or as a plain array."""
        bounds = self._known()
        return np.asarray(self).__reduce__() if bounds is None else (BoundedArray, (bounds,))


class ReportAccountant:
    """Reports for users from counts of steps at each level of the norms.

    `mechanism`: what all steps ran; or a sequence of mechanisms, if rates, noises or kinds of
    mechanisms differed. What a norm is, is said by its mechanism. `grid`: the levels; histograms
    are made by `NormGrid.counts` and `NormGrid.add_step`. With several mechanisms a sequence of as
    many grids, or one that all share; the counts are the histograms of the mechanisms, side by
    side: `np.concatenate([first, second], axis=1)`. A sampled step counts at the norm of the user
    whether or not the user was sampled.

    `orders`: for "renyi", shape (k,), > 1 and finite; a good set if not given.

    Neighbours differ by adding or removing the user; the larger direction counts. Each method's
    tables are computed at its first use and kept:

    - "tightest": the default, and the least of the upper bounds of the other methods, but for some
      thousandths, and the greatest of their lower ones; exact but for rounding for histories of
      Gaussian steps alone. Its delta does not rise with epsilon, nor its epsilon with delta,
      wherever intervals are narrow.
    - "pld": discretised privacy losses; certified bounds within a small distance of each other.
    - "renyi": an upper bound alone, loose by the conversion; the fastest.
    - "saddlepoint": certified bounds around an accurate estimate, at a cost that does not depend
      on the number of steps.

    The bounds of every method hold for the histogram given; rounding norms up to the grid makes
    them upper bounds for the norms themselves, and lower bounds of nothing but the rounded history.
    """

    def __init__(
        self,
        mechanism: Mechanism | Sequence[Mechanism],
        grid: NormGrid | Sequence[NormGrid],
        orders: npt.ArrayLike | None = None,
    ) -> None:
        each = [mechanism] if isinstance(mechanism, Mechanism) else list(_listed(mechanism))
        grids = list(grid) if isinstance(grid, Sequence) else [grid] * len(each)
        if not each or len(grids) != len(each):
            allowed = "one grid, or one for each of the mechanisms, of which there is one at least"
            raise InvalidInput("grid", f"{len(grids)} for {len(each)} mechanisms", allowed)
        for one in each:
            if not isinstance(one, Mechanism):
                allowed = "Gaussian, PoissonGaussian, Laplace or PureDP"
                raise InvalidInput("mechanism", one, allowed)
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
        self._reports: dict[Method, Report] = {}

    def epsilon(
        self, counts: npt.ArrayLike, delta: float, method: Method = "tightest"
    ) -> BoundedArray:
        """Return an upper bound of each user's epsilon at `delta`, shape (n,), with `.bounds`.

        `counts`: integers, 0 to 2**46, shape (n, levels), or (levels,) for one user, which gives
        shape (). 0 < `delta` < 1. In nats, >= 0; infinite where the method can say nothing; 0 for
        a user without steps. Raises `InvalidInput` for other arguments.
        """
        level = probability("delta", delta)
        return self._report(counts, method, lambda report, rows: report.epsilon(rows, level))

    def delta(
        self, counts: npt.ArrayLike, epsilon: float, method: Method = "tightest"
    ) -> BoundedArray:
        """Return an upper bound of each user's delta at `epsilon`, shape (n,), with `.bounds`.

        `epsilon`: nats, finite, >= 0; otherwise as for `epsilon`. At most 1, which is what a
        method returns where it can say nothing.
        """
        level = nonnegative_finite("epsilon", epsilon)
        return self._report(counts, method, lambda report, rows: report.delta(rows, level))

    def divergences(self, counts: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return the orders, shape (k,), and each user's Rényi divergence at them, (n, k).

        Nats, rounded up; the larger direction's. `counts` as for `epsilon`; (levels,) gives (k,).
        """
        report = self._method("renyi")
        assert isinstance(report, RenyiReport)
        checked = level_counts(counts, self._norms.size)
        found = report.divergences(np.atleast_2d(checked))
        return report.orders, found if checked.ndim == 2 else found[0]

    def _report(
        self, counts: npt.ArrayLike, method: Method, ask: Callable[[Report, IntArray], Bounds]
    ) -> BoundedArray:
        if method not in METHODS:
            raise InvalidInput("method", method, f"one of {', '.join(METHODS)}")
        checked = level_counts(counts, self._norms.size)
        if checked.ndim == 2:
            return BoundedArray(ask(self._method(method), checked))
        one = ask(self._method(method), checked[np.newaxis])
        return BoundedArray(Bounds(*(part.reshape(()) for part in one)))

    def _method(self, method: Method) -> Report:
        if method not in self._reports:
            self._reports[method] = self._build(method)
        return self._reports[method]

    def _saddle_point(self) -> SaddlePointReport:
        report = self._method("saddlepoint")
        assert isinstance(report, SaddlePointReport)
        return report

    def _build(self, method: Method) -> Report:
        mechanisms, norms = self._mechanisms, self._norms
        if method == "tightest":
            pld, renyi = self._method("pld"), self._method("renyi")
            assert isinstance(pld, PldReport)
            assert isinstance(renyi, RenyiReport)
            ratios = gaussian_ratios(mechanisms, norms)
            return TightestReport(pld, renyi, self._saddle_point, ratios)
        if method == "renyi":
            return RenyiReport(mechanisms, norms, self._orders)
        if method == "pld":
            return PldReport(mechanisms, norms)
        return SaddlePointReport(mechanisms, norms)


def _listed(mechanism: Sequence[Mechanism]) -> Sequence[Mechanism]:
    if not isinstance(mechanism, Sequence) or isinstance(mechanism, str):
        allowed = "Gaussian, PoissonGaussian, Laplace or PureDP, or a sequence of these"
        raise InvalidInput("mechanism", mechanism, allowed)
    return mechanism
