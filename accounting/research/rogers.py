"""The privacy filter of Rogers, Roth, Ullman and Vadhan for pure DP steps.

R. Rogers, A. Roth, J. Ullman, S. Vadhan, "Privacy Odometers and Filters: Pay-as-you-Go
Composition", NeurIPS 2016, Thm 5.1, with all of delta for steps that have no delta of their own, as
Feldman and Zrnic restate it after Thm 4.9. A step that is eps-DP is admitted if, with it counted,

    drift + sqrt(2 log(1/delta) (spread + H) (1 + log(1 + spread / H) / 2))  <=  epsilon,

    spread = sum of eps^2,   drift = sum of eps (e^eps - 1) / 2,
    H = epsilon^2 / (28.04 log(1/delta)),

where log(1/delta) is inside the square root. `ZcdpFilter(zcdp_budget(epsilon, delta))` has the
same guarantee and admits more small steps; this filter is for comparison.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import (
    BoolArray,
    FloatArray,
    IntArray,
    nonnegative_array,
    nonnegative_finite,
    probability,
    unit_array,
    user_count,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.units import MAX_BUDGET_UNITS, MAX_COST_UNITS, UNIT_BITS, cost_units

_LARGEST_EPSILON: Final = 512.0  # spread, at most epsilon^2 / 2, then fits the range of units
# The float64 form of the condition has a relative error far below this, with any libm.
_MARGIN: Final = 2.0**-45
# eps^2 and eps expm1(eps) are known to a relative 2**-50: four units in the last place, and two
# products.
_COST_ERROR: Final = 2.0**-49


class RogersFilter:
    """Admit pure DP steps while the condition above holds: (epsilon, delta)-DP.

    Neighbouring datasets differ by adding or removing one user; a user who is denied is left out
    of the step, is charged nothing, and may be admitted to a later, cheaper one.

    The state is an int64 array of shape (n, 2) that the caller owns: spread and drift of each user
    in units of 2**-44, every charge rounded up. A step is denied where float64 leaves open whether
    the condition holds, a relative 2**-45 below the edge.

    Args:
        epsilon: nats, >= 0, at most 512; 0 admits the steps that cost nothing.
        delta: > 0, less than 1/e, as the theorem requires.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon = nonnegative_finite("epsilon", epsilon)
        self.delta = probability("delta", delta)
        if self.epsilon > _LARGEST_EPSILON:
            raise InvalidInput("epsilon", epsilon, f"at most {_LARGEST_EPSILON}")
        if self.delta >= math.exp(-1.0):
            raise InvalidInput("delta", delta, "less than 1/e, for which the theorem is stated")

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing, shape (n, 2)."""
        return np.zeros((user_count("n", n), 2), dtype=np.int64)

    def admit(self, state: IntArray, cost: npt.ArrayLike) -> tuple[IntArray, BoolArray]:
        """Return (new_state, admitted): a user is admitted if the condition covers `cost`.

        Args:
            state: int64, shape (n, 2).
            cost: eps of each user's step, in nats, shape (n,), >= 0; infinity is never admitted.

        Returns:
            The new state, and bool of shape (n,).
        """
        return self.admit_units(state, self.cost_units(cost))

    def admit_units(self, state: IntArray, cost_units: IntArray) -> tuple[IntArray, BoolArray]:
        """Return (new_state, admitted) as `admit` does, for charges in units, shape (n, 2)."""
        spent = unit_array("state", state, MAX_BUDGET_UNITS)
        charge = unit_array("cost_units", cost_units, MAX_COST_UNITS)
        if spent.ndim != 2 or spent.shape[1] != 2:
            raise InvalidInput("state", spent.shape, "of shape (n, 2), as initial_state gives it")
        if charge.shape != spent.shape:
            raise InvalidInput("cost", charge.shape[:1], f"of shape ({len(spent)},), as the state")
        # spent <= 2**61 and charge <= 2**62, so the sum is exact.
        total = spent + charge
        admitted = self._fits(total)
        return np.where(admitted[:, np.newaxis], total, spent), admitted

    def remaining(self, state: IntArray) -> FloatArray:
        """Return the eps of the largest single step that is still admitted, in nats, shape (n,).

        Rounded down by at most 2**-40 epsilon: a step of this eps is admitted.
        """
        low = np.zeros(len(state))
        # A single step costs more than its eps, so none above epsilon is admitted.
        high = np.full(len(state), self.epsilon)
        for _ in range(40):
            middle = 0.5 * (low + high)
            _, admitted = self.admit(state, middle)
            low, high = np.where(admitted, middle, low), np.where(admitted, high, middle)
        return low

    def cost_units(self, cost: npt.ArrayLike) -> IntArray:
        """Return the charge for `cost`: eps^2 2**44 and eps (e^eps - 1) 2**43, rounded up, (n, 2).

        Saturates at `MAX_COST_UNITS`, which no epsilon admits.
        """
        eps = nonnegative_array("cost", cost)
        if eps.ndim != 1:
            raise InvalidInput("cost", eps.shape, "one number per user, of shape (n,)")
        with np.errstate(over="ignore", under="ignore"):
            nats = np.stack([eps * eps, 0.5 * eps * np.expm1(eps)], axis=1)
        # A positive number that underflows is still charged.
        least = (eps > 0.0)[:, np.newaxis]
        return np.asarray(np.maximum(cost_units(nats * (1.0 + _COST_ERROR)), least))

    def _fits(self, total: IntArray) -> BoolArray:
        """Return whether the condition certainly holds for units of shape (n, 2)."""
        spread, drift = total.T * 2.0**-UNIT_BITS
        log = -math.log(self.delta)
        prior = self.epsilon * self.epsilon / (28.04 * log)
        with np.errstate(divide="ignore", invalid="ignore"):
            deviation = (spread + prior) * (1.0 + 0.5 * np.log1p(spread / prior))
            bound = drift + np.sqrt(2.0 * log * deviation)
            # Decimal arithmetic would decide the cases at the edge as well; no step is worth it.
            within = bound <= self.epsilon * (1.0 - _MARGIN)
        return np.asarray(within | ~total.any(axis=1))
