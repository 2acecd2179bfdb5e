"""Individual privacy filters: who is admitted to a step, and with what norm.

A filter is an immutable rule. Its state is an int64 array of spent units (`accounting.units`), one
row per user, that the caller owns: shape (n,), or (n, k) for a filter of k Renyi orders. Costs are
rounded up to units and budgets down, so no sequence of admissions, in any order, in any batches,
exceeds a budget in exact arithmetic. Neighbouring data sets differ by adding or removing one user.

    filter          budget            guarantee when every step's users are the admitted ones
    RenyiFilter     nats per order    (a, budget)-Renyi DP at each order    FZ Thm 4.3, 4.5, Rem 4.4
    ZcdpFilter      rho               rho-zCDP                              FZ Remark 4.4
    GdpFilter       mu                mu-GDP; Gaussian steps only           K Thm 11, 12
    ApproxDPFilter  epsilon, delta    (epsilon, delta)-DP                   FZ Thm 4.9
    RogersFilter    epsilon, delta    (epsilon, delta)-DP; in `accounting.rogers`, to compare with

FZ: Feldman and Zrnic (arXiv numbering). K: Koskela, Tobaben and Honkela. Run for every user, this
is FZ Alg. 4: a user whose charge does not fit is left out of this step, is charged nothing, and
may be admitted to a later, cheaper one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from accounting.budgets import admit_within, exhausted_within, remaining_within
from accounting.conversions import zcdp_budget
from accounting.costs import Measure, charge_units
from accounting.errors import InvalidInput
from accounting.mechanisms import Mechanism, PoissonGaussian, PureDP, noise_scale
from accounting.order_units import units_within_orders
from accounting.units import (
    MAX_BUDGET_UNITS,
    UNIT_BITS,
    budget_units,
    cost_units,
    from_units_down,
)
from accounting.validation import (
    DOWN,
    BoolArray,
    FloatArray,
    IntArray,
    as_float_array,
    norm_vector,
    positive_finite,
    renyi_orders,
    user_count,
)

# The granted norm is a square root rounded three times, each within a relative 2**-53; 2**-50
# takes it below the exact root, 2**-1000 keeps it clear of subnormal numbers.
_SHAVE = 1.0 - 2.0**-50
_SMALLEST_GRANT = 2.0**-1000
_GRANT_ULPS = 2**32  # of 2**-52 each: where the search for a granted norm ends


@dataclass(frozen=True, init=False)
class BudgetFilter(ABC):
    """What the filters share. `budget_units`: one budget, or one per order, in units."""

    measure: ClassVar[Measure]
    budget_units: tuple[int, ...]

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing."""
        return np.zeros(user_count("n", n), dtype=np.int64)

    def admit(self, state: IntArray, cost: npt.ArrayLike) -> tuple[IntArray, BoolArray]:
        """Return (new_state, admitted), admitting whoever can pay `cost` in full.

        `cost`: float64 >= 0 of the shape of the state, in the unit of the measure (nats; mu
        squared for GDP), rounded up to units; infinity is never admitted. `admitted`: bool (n,).
        """
        return self.admit_units(state, cost_units(cost))

    def admit_units(self, state: IntArray, cost_units: IntArray) -> tuple[IntArray, BoolArray]:
        """Return (new_state, admitted), as `admit` does, for costs in units."""
        return admit_within(self.budget_units, state, cost_units)

    def remaining(self, state: IntArray) -> FloatArray:
        """Return what is left, in the unit of the measure, rounded down; shape of the state."""
        return from_units_down(remaining_within(self.budget_units, state))

    def exhausted(self, state: IntArray) -> BoolArray:
        """Return whether nothing is left, at some order at least; bool (n,)."""
        return exhausted_within(self.budget_units, state)

    def grant(
        self,
        state: IntArray,
        mechanism: Mechanism,
        norms: npt.ArrayLike,
        clip_norm: float | None = None,
    ) -> tuple[IntArray, FloatArray]:
        """Return (new_state, granted_norms): budget-aware clipping, FZ Alg. 7.

        As `grant_units`, for norms that are first clipped to `clip_norm` (> 0) if it is given.
        The mechanism must clip every user's contribution to the granted norm.
        """
        vector = norm_vector("norms", norms)
        if clip_norm is not None:
            vector = np.minimum(vector, positive_finite("clip_norm", clip_norm, DOWN))
        return self.grant_units(state, mechanism, vector)[:2]

    def grant_units(
        self, state: IntArray, mechanism: Mechanism, norms: npt.ArrayLike
    ) -> tuple[IntArray, FloatArray, IntArray]:
        """Return (new_state, granted_norms, charged_units): the largest norms that can be paid.

        - A norm whose charge fits is granted as it is and charged what it costs.
        - Else the granted norm is what the remainder pays for, at most a relative 2**-49 less,
          and its cost is at most the remainder in exact arithmetic. The whole remainder is
          charged, so that the user is exhausted. Of several orders, the tightest (the least
          floor(remaining / order), the first if equal) is charged its whole remainder, and each
          other what the granted norm costs.
        - A user with nothing left is granted 0 and charged 0.
        - For `PoissonGaussian`, the norm is found by bisection, at most a relative 2**-20 less
          than one that does not fit; the tightest order is the first that this one exceeds.

        Of the other mechanisms every machine grants the same bits: only IEEE-exact operations
        are used. `norms`: shape (n,), finite, >= 0. `charged_units` has the shape of the state.
        Raises `InvalidInput` for `PureDP`, which has no norm that could be clipped, and for what
        the measure does not cover.
        """
        if isinstance(mechanism, PureDP):
            raise InvalidInput(
                "mechanism", mechanism, "one whose norms can be clipped; use admit for pure DP"
            )
        granted = norm_vector("norms", norms).copy()
        left = remaining_within(self.budget_units, state)
        if len(left) != granted.size:
            raise InvalidInput("norms", granted.shape, f"one norm for each of {len(left)} users")
        charged = self._charge(mechanism, granted)
        over = charged > left
        short = np.flatnonzero(over if over.ndim == 1 else over.any(axis=1))
        if short.size:
            granted[short], charged[short] = self._last_grant(
                mechanism, granted[short], left[short]
            )
        return state + charged, granted, charged

    @abstractmethod
    def _charge(self, mechanism: Mechanism, norms: FloatArray) -> IntArray:
        """Return the charge of each norm in units, of the shape of the state."""

    def _last_grant(
        self, mechanism: Mechanism, norms: FloatArray, left: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """Return (norms that `left` units pay for, charges) for `norms` that they do not."""
        return _norm_within(mechanism, left, self.measure), left

    def _set(self, budgets: Sequence[int]) -> Self:
        """Store validated budgets; only constructors call this."""
        for budget in budgets:
            if isinstance(budget, bool) or not isinstance(budget, (int, np.integer)):
                raise InvalidInput("budget_units", budget, "an integer")
            if not 1 <= budget <= MAX_BUDGET_UNITS:
                raise InvalidInput("budget_units", budget, f"from 1 to {MAX_BUDGET_UNITS} units")
        object.__setattr__(self, "budget_units", tuple(int(budget) for budget in budgets))
        return self


class _OneBudgetFilter(BudgetFilter):
    """A filter whose state has shape (n,)."""

    @classmethod
    def from_units(cls, budget: int) -> Self:
        """Return the filter with a budget in units, 1 to `MAX_BUDGET_UNITS`."""
        return cls.__new__(cls)._set([budget])

    def _charge(self, mechanism: Mechanism, norms: FloatArray) -> IntArray:
        return charge_units(self.measure, mechanism, norms)


class ZcdpFilter(_OneBudgetFilter):
    """Admit while the sum of rho is at most the budget (FZ Remark 4.4): rho-zCDP."""

    measure = "zcdp"

    def __init__(self, rho: float) -> None:
        self._set([budget_units(positive_finite("rho", rho, DOWN))])


class GdpFilter(_OneBudgetFilter):
    """Admit while the sum of mu squared is at most the budget's square (K Thm 11, 12): mu-GDP.

    Costs and what remains are in mu squared. Only for Gaussian steps; not for subsampled ones.
    """

    measure = "gdp"

    def __init__(self, mu: float) -> None:
        self._set([budget_units(Fraction(positive_finite("mu", mu, DOWN)) ** 2)])


class ApproxDPFilter(_OneBudgetFilter):
    """Admit while the sum of rho is at most B*, which implies (epsilon, delta)-DP (FZ Thm 4.9).

    B* is `zcdp_budget(epsilon, delta)`; a pure eps-DP step costs rho = eps^2 / 2, a Gaussian one
    its own rho. Costs and what remains are in nats of rho. Raises `InvalidInput` if B* is less
    than one unit.
    """

    measure = "approx-dp"

    def __init__(self, epsilon: float, delta: float) -> None:
        self._set([budget_units(zcdp_budget(epsilon, delta))])


@dataclass(frozen=True, init=False)
class RenyiFilter(BudgetFilter):
    """Admit while the sum of Renyi divergences is at most the budget at every order.

    `orders`: k orders, > 1, at most 2**40, all different; `budgets`: k budgets in nats. The
    state and the costs have shape (n, k).
    """

    measure = "renyi"
    orders: tuple[float, ...]

    def __init__(self, orders: npt.ArrayLike, budgets: npt.ArrayLike) -> None:
        numbers = as_float_array("budgets", budgets, DOWN)
        self._set_orders(orders, [budget_units(budget) for budget in numbers.reshape(-1).tolist()])

    @classmethod
    def from_units(cls, orders: npt.ArrayLike, budgets: Sequence[int]) -> Self:
        """Return the filter with budgets in units, 1 to `MAX_BUDGET_UNITS`, one per order."""
        return cls.__new__(cls)._set_orders(orders, budgets)

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing, shape (n, k)."""
        return np.zeros((user_count("n", n), len(self.orders)), dtype=np.int64)

    def _charge(self, mechanism: Mechanism, norms: FloatArray) -> IntArray:
        return charge_units(self.measure, mechanism, norms, self.orders)

    def _last_grant(
        self, mechanism: Mechanism, norms: FloatArray, left: IntArray
    ) -> tuple[FloatArray, IntArray]:
        rows = np.arange(norms.size)
        if isinstance(mechanism, PoissonGaussian):
            granted, tightest = self._largest_within(mechanism, norms, left)
        else:
            payable = units_within_orders(left, np.array(self.orders))
            tightest = payable.argmin(axis=1)
            granted = _norm_within(mechanism, payable[rows, tightest], "zcdp")
        charges = self._charge(mechanism, granted)
        charges[rows, tightest] = left[rows, tightest]
        charges[(left == 0).any(axis=1)] = 0
        return granted, charges

    def _largest_within(
        self, mechanism: PoissonGaussian, norms: FloatArray, left: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """Return (norms that fit, the first order that a little larger ones exceed).

        Rounding makes costs monotone in the norm only up to the last digits. Bisection does not
        depend on that: at every step the lower norm was seen to fit and the upper one not to.
        """
        # Bits of floats >= 0 are ordered as the floats are. Norm 0 costs nothing and fits.
        low, high = np.zeros(norms.size, dtype=np.int64), norms.view(np.int64).copy()
        high[(left == 0).any(axis=1)] = 0
        tightest = (self._charge(mechanism, norms) > left).argmax(axis=1)
        while (open_rows := np.flatnonzero(high - low > _GRANT_ULPS)).size:
            middle = low[open_rows] + (high[open_rows] - low[open_rows]) // 2
            over = self._charge(mechanism, middle.view(np.float64)) > left[open_rows]
            fits = ~over.any(axis=1)
            low[open_rows[fits]] = middle[fits]
            high[open_rows[~fits]] = middle[~fits]
            tightest[open_rows[~fits]] = over[~fits].argmax(axis=1)
        return low.view(np.float64), tightest

    def _set_orders(self, orders: npt.ArrayLike, budgets: Sequence[int]) -> Self:
        alphas = renyi_orders("orders", orders)
        if len(budgets) != alphas.size:
            raise InvalidInput("budgets", len(budgets), f"one for each of {alphas.size} orders")
        object.__setattr__(self, "orders", tuple(alphas.tolist()))
        return self._set(budgets)


def _norm_within(mechanism: Mechanism, units: IntArray, measure: Measure) -> FloatArray:
    """Return norms, shape (n,), that cost at most `units` in exact arithmetic, and little less."""
    bits = UNIT_BITS if measure == "gdp" else UNIT_BITS - 1
    roots = np.sqrt(units.astype(np.float64) * math.ldexp(1.0, -bits)) * _SHAVE
    norms = np.asarray(roots * noise_scale(mechanism))
    norms[norms < _SMALLEST_GRANT] = 0.0
    return norms
