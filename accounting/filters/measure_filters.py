"""The measures' individual privacy filters: which users a step admits, and with which norm.

A filter is an immutable rule. Its state is an int64 array of spent units
(`accounting.exact.units`), one row per user, that the caller owns: shape (n,), or (n, k) for a
filter of k Rényi orders. Costs are rounded up to units and budgets down, so no sequence of
admissions, in any order, in any batches, exceeds a budget in exact arithmetic. A cost of exactly
the budget is admitted if the budget is a whole number of units. The rule and its proof are in
`accounting.filters.admission`. A budget of 0 admits steps that cost nothing; a budget above 0 is at
least one unit. Neighbouring datasets differ by adding or removing one user.

`accounting.measures` has a table of their guarantees, which hold if each step uses the admitted
users only. FZ: Feldman and Zrnic (arXiv numbering). K: Koskela, Tobaben and Honkela. Run for every
user, this is FZ Alg. 3: a user whose charge does not fit is left out of this step, is charged
nothing, and may be admitted to a later, cheaper one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from accounting.costs.costs import renyi_units
from accounting.costs.mechanisms import Laplace, Mechanism, PoissonGaussian, PoissonRecords
from accounting.costs.power_cost import GDP, PURE, ZCDP, PowerCost, units_within_orders
from accounting.costs.step_shape import ONE_STEP, StepShape
from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    finite_numbers,
    renyi_orders,
    user_count,
    whole_number,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.units import MAX_BUDGET_UNITS, budget_units
from accounting.filters.budget_filter import BudgetFilter

_GRANT_ULPS = 2**32  # of 2**-52 each: the precision of the search for a granted norm
_LARGEST = np.finfo(np.float64).max
_NEARLY = 1.0 - 2.0**-48  # of the largest norm that fits, which is itself rounded down


class _OneBudgetFilter(BudgetFilter):
    """A filter with one budget: state of shape (n,), costs from `cost`."""

    cost: ClassVar[PowerCost]

    @classmethod
    def from_units(cls, budget: int) -> Self:
        """Return the filter with a budget in units, 0 to `MAX_BUDGET_UNITS`."""
        return cls.__new__(cls)._set([budget])

    def _charge(self, mechanism: Mechanism, norms: FloatArray) -> IntArray:
        return self.cost.units(mechanism, norms)

    def _largest(self, mechanism: Mechanism, norms: FloatArray, spent: IntArray) -> FloatArray:
        return self.cost.norms_within(mechanism, self._left(spent))

    def _to_the_end(
        self, mechanism: Mechanism, granted: FloatArray, spent: IntArray, charged: IntArray
    ) -> IntArray:
        left = self._left(spent)
        return np.where(self._is_the_end(left, charged), left, charged)


class ZcdpFilter(_OneBudgetFilter):
    """Admit while the sum of rho is at most the budget (FZ Remark 4.4): rho-zCDP.

    A pure eps-DP step costs rho = eps^2 / 2, a Gaussian one its own rho. For (epsilon, delta)-DP,
    the budget is `zcdp_budget(epsilon, delta)` (FZ Thm 4.9).
    """

    measure = "zcdp"
    cost = ZCDP

    def __init__(self, rho: float) -> None:
        self._set([budget_units(rho, argument="rho")])


class GdpFilter(_OneBudgetFilter):
    """Admit while the sum of mu squared is at most the budget's square (K Thm 11, 12): mu-GDP.

    Costs and remaining budgets are in mu squared. Gaussian steps only, not subsampled ones.
    """

    measure = "gdp"
    cost = GDP

    def __init__(self, mu: float) -> None:
        self._set([budget_units(mu, power=2, argument="mu")])


class PureDPFilter(_OneBudgetFilter):
    """Admit while the sum of epsilons is at most the budget: epsilon-DP.

    The Rényi filter at order infinity (FZ Thm 4.3), which needs only the product of likelihood
    ratios (`accounting.costs.pure`). Laplace and pure DP steps only. Costs and remaining budgets
    are epsilons.
    """

    measure = "pure-dp"
    cost = PURE

    def __init__(self, epsilon: float) -> None:
        self._set([budget_units(epsilon, argument="epsilon")])


@dataclass(frozen=True, init=False)
class StepsFilter(BudgetFilter):
    """Admit while a user has taken part in fewer than N steps of a public shape.

    All outputs together are dominated by N copies of the shape's step, for every epsilon, in both
    directions, at every stopping time (`docs/research/filters.md`). A norm below the clip
    norm costs as much as the clip norm; norm 0 costs nothing. Costs and remaining budgets are in
    steps.

    Args:
        shape: the shape of the steps.
        steps: N, >= 0.
    """

    measure = "steps"
    shape: StepShape

    def __init__(self, shape: StepShape, steps: int) -> None:
        most = MAX_BUDGET_UNITS // ONE_STEP
        self._set_shape(shape, whole_number("steps", steps, 0, most) * ONE_STEP)

    @classmethod
    def from_units(cls, shape: StepShape, budget: int) -> Self:
        """Return the filter with a budget in units, 0 to `MAX_BUDGET_UNITS`."""
        return cls.__new__(cls)._set_shape(shape, budget)

    def _charge(self, mechanism: Mechanism, norms: FloatArray) -> IntArray:
        return self.shape.units(mechanism, norms)

    def _largest(self, mechanism: Mechanism, norms: FloatArray, spent: IntArray) -> FloatArray:
        return np.where(self._left(spent) >= ONE_STEP, self.shape.largest_norm(mechanism), 0.0)

    def _to_the_end(
        self, mechanism: Mechanism, granted: FloatArray, spent: IntArray, charged: IntArray
    ) -> IntArray:
        return charged

    def _set_shape(self, shape: StepShape, budget: int) -> Self:
        object.__setattr__(self, "shape", shape)
        return self._set([budget])


@dataclass(frozen=True, init=False)
class RenyiFilter(BudgetFilter):
    """Admit while the sum of Rényi divergences is at most the budget at every order.

    The state and the costs have shape (n, k).

    Args:
        orders: k orders, > 1, at most 2**40, all different.
        budgets: k budgets in nats, >= 0, rounded down to units.
    """

    measure = "renyi"
    orders: tuple[float, ...]

    def __init__(self, orders: npt.ArrayLike, budgets: npt.ArrayLike) -> None:
        given = finite_numbers("budgets", budgets)
        self._set_orders(orders, [budget_units(one, argument="budgets") for one in given])

    @classmethod
    def from_units(cls, orders: npt.ArrayLike, budgets: Sequence[int]) -> Self:
        """Return the filter with budgets in units, 0 to `MAX_BUDGET_UNITS`, one per order."""
        return cls.__new__(cls)._set_orders(orders, budgets)

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing, shape (n, k)."""
        return np.zeros((user_count("n", n), len(self.orders)), dtype=np.int64)

    def _charge(self, mechanism: Mechanism, norms: FloatArray) -> IntArray:
        return renyi_units(mechanism, norms, self.orders)

    def _largest(self, mechanism: Mechanism, norms: FloatArray, spent: IntArray) -> FloatArray:
        left = self._left(spent)
        if isinstance(mechanism, PoissonGaussian | PoissonRecords):
            return self._bisected(mechanism, norms, left)
        if isinstance(mechanism, Laplace):
            return np.asarray(self._laplace_norms_within(mechanism, left).min(axis=1))
        payable = units_within_orders(left, np.array(self.orders))
        return ZCDP.norms_within(mechanism, payable.min(axis=1))

    def _to_the_end(
        self, mechanism: Mechanism, granted: FloatArray, spent: IntArray, charged: IntArray
    ) -> IntArray:
        left, rows = self._left(spent), np.arange(granted.size)
        if isinstance(mechanism, PoissonGaussian | PoissonRecords):
            above = (granted.view(np.int64) + _GRANT_ULPS).view(np.float64)
            exceeded = self._charge(mechanism, np.minimum(above, _LARGEST)) > left
            tightest, ends = exceeded.argmax(axis=1), exceeded.any(axis=1)
        elif isinstance(mechanism, Laplace):
            payable_norms = self._laplace_norms_within(mechanism, left)
            tightest = payable_norms.argmin(axis=1)
            ends = granted >= payable_norms[rows, tightest] * _NEARLY
        else:
            payable = units_within_orders(left, np.array(self.orders))
            tightest = payable.argmin(axis=1)
            ends = self._is_the_end(payable[rows, tightest], ZCDP.units(mechanism, granted))
        ended = np.flatnonzero(ends)
        at = ended, tightest[ended]
        charged[at] = left[at]
        return charged

    def _laplace_norms_within(self, mechanism: Laplace, left: IntArray) -> FloatArray:
        """Return about the largest norms that cost at most `left` at each order, (n, k).

        The cost is the smaller of two bounds, so a norm may fit by either.
        """
        by_order = ZCDP.norms_within(mechanism, units_within_orders(left, np.array(self.orders)))
        return np.maximum(by_order, PURE.norms_within(mechanism, left))

    def _bisected(
        self, mechanism: PoissonGaussian | PoissonRecords, norms: FloatArray, left: IntArray
    ) -> FloatArray:
        """Return norms that fit, while slightly larger ones do not; (n,), as `norms`.

        Rounding makes costs monotone in the norm only up to the last digits; bisection does not
        depend on these. The bits of floats >= 0 have the order of the floats, so halving their
        distance finds small numbers as fast as large ones.
        """
        # Norm 0 costs nothing and fits, even if nothing is left.
        high = np.where((left == 0).any(axis=1), 0.0, norms).view(np.int64)
        low = np.zeros_like(high)
        while (rows := np.flatnonzero(high - low > _GRANT_ULPS)).size:
            middle = low[rows] + (high[rows] - low[rows]) // 2
            fits = (self._charge(mechanism, middle.view(np.float64)) <= left[rows]).all(axis=1)
            low[rows[fits]] = middle[fits]
            high[rows[~fits]] = middle[~fits]
        return low.view(np.float64)

    def _set_orders(self, orders: npt.ArrayLike, budgets: Sequence[int]) -> Self:
        alphas = renyi_orders("orders", orders)
        if isinstance(budgets, np.ndarray):
            budgets = budgets.tolist()  # one number, if it has no dimension
        if not isinstance(budgets, Sequence) or len(budgets) != alphas.size:
            raise InvalidInput("budgets", budgets, f"one for each of {alphas.size} orders")
        object.__setattr__(self, "orders", tuple(alphas.tolist()))
        return self._set(budgets)
