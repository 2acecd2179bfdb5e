"""The privacy filter of Rogers, Roth, Ullman and Vadhan for pure DP steps.

The service does not use it.

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
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.conversions.amounts import bisected
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
from accounting.exact.products import ratio_ceil
from accounting.exact.units import MAX_COST_UNITS, UNIT_BITS, cost_units

_ONE_UNIT: Final = 2.0**-UNIT_BITS
_LARGEST_EPSILON: Final = 512.0  # spread, at most epsilon^2 / 2, then fits the range of units
# The float64 form of the condition has a relative error far below this, with any libm.
_MARGIN: Final = 2.0**-45
# eps expm1(eps) is known to a relative 2**-50: four units in the last place, and two products.
_DRIFT_ERROR: Final = 2.0**-49
_BISECTIONS: Final = 64
_BLOCK: Final = 16384  # users at a time, so that the temporaries stay in the cache


@dataclass(frozen=True, init=False)
class RogersFilter:
    """Admit pure DP steps while the condition above holds: (epsilon, delta)-DP.

    Neighbouring datasets differ by adding or removing one user; a user who is denied is left out
    of the step, is charged nothing, and may be admitted to a later, cheaper one.

    The state is an int64 array of shape (n, 2) that the caller owns: spread and drift of each user
    in units of 2**-44, every charge rounded up. A step is denied where float64 leaves open whether
    the condition holds, a relative 2**-45 below the edge.

    There is no `grant`: the cost of a step is eps itself, which has no norm to clip.

    Args:
        epsilon: nats, >= 0, at most 512; 0 admits the steps that cost nothing.
        delta: > 0, less than 1/e, as the theorem requires.
    """

    epsilon: float
    delta: float
    _log_inverse_delta: float = field(repr=False, compare=False)
    _prior: float = field(repr=False, compare=False)

    def __init__(self, epsilon: float, delta: float) -> None:
        largest = nonnegative_finite("epsilon", epsilon)
        if largest > _LARGEST_EPSILON:
            raise InvalidInput("epsilon", epsilon, f"at most {_LARGEST_EPSILON}")
        small = probability("delta", delta)
        if small >= math.exp(-1.0):
            raise InvalidInput("delta", delta, "less than 1/e, for which the theorem is stated")
        object.__setattr__(self, "epsilon", largest)
        object.__setattr__(self, "delta", small)
        object.__setattr__(self, "_log_inverse_delta", -math.log(small))
        object.__setattr__(self, "_prior", largest * largest / (28.04 * self._log_inverse_delta))
        if largest > 0.0:
            # One unit of spread alone takes more than 2**-22, for any delta.
            least = np.ones((1, 2), dtype=np.int64)
            if largest < 2.0 ** -(UNIT_BITS // 2) or not self._fits(least)[0]:
                allowed = f"0, or enough for one charge of 2**-{UNIT_BITS}"
                raise InvalidInput("epsilon", epsilon, allowed)

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
        spent = self._checked_state(state)
        charge = unit_array("cost_units", cost_units, MAX_COST_UNITS)
        if charge.shape != spent.shape:
            raise InvalidInput("cost", charge.shape[:1], f"of shape ({len(spent)},), as the state")
        # spent <= 2**61 and charge <= 2**62, so the sum is exact.
        total = spent + charge
        admitted = self._fits(total)
        np.copyto(total, spent, where=~admitted[:, np.newaxis])
        return total, admitted

    def cost_units(self, cost: npt.ArrayLike) -> IntArray:
        """Return the charge for `cost`: eps^2 2**44 and eps (e^eps - 1) 2**43, rounded up, (n, 2).

        Saturates at `MAX_COST_UNITS` in both columns for a step that costs more than epsilon by
        itself, and is therefore never admitted.
        """
        eps = nonnegative_array("cost", cost)
        if eps.ndim != 1:
            raise InvalidInput("cost", eps.shape, "one number per user, of shape (n,)")
        plain = np.minimum(eps, self.epsilon)
        drift = plain * np.expm1(plain)
        too_much = (eps > self.epsilon) | (drift > 4.0 * self.epsilon)
        plain[too_much] = drift[too_much] = 0.0
        units = np.empty((eps.size, 2), dtype=np.int64)
        units[:, 0] = ratio_ceil(plain, 1.0, UNIT_BITS, MAX_COST_UNITS, power=2)
        # A positive number that underflows is still charged.
        units[:, 1] = np.maximum(cost_units(0.5 * drift * (1.0 + _DRIFT_ERROR)), plain > 0.0)
        units[too_much] = MAX_COST_UNITS
        return units

    def remaining(self, state: IntArray) -> FloatArray:
        """Return the eps of the largest single step that is still admitted, in nats, shape (n,).

        Rounded down, by at most 2**-20 epsilon: a step of this eps is admitted.
        """
        spent = self._checked_state(state)
        results = np.empty(len(spent))
        for start in range(0, len(spent), _BLOCK):
            block = slice(start, start + _BLOCK)
            results[block] = self._largest_step(spent[block])
        return results

    def exhausted(self, state: IntArray) -> BoolArray:
        """Return whether only costs of 0 can be admitted; bool (n,)."""
        return ~self._fits(self._checked_state(state) + 1)

    def _fits(self, total: IntArray) -> BoolArray:
        """Return whether the condition certainly holds for units of shape (n, 2)."""
        if self.epsilon == 0.0:  # H is 0, and so is the left side without spending
            return np.asarray(~total.any(axis=1))
        # Decimal arithmetic would decide the cases at the edge as well; no step is worth it.
        return np.asarray(self._bound(*_nats(total)) <= self.epsilon * (1.0 - _MARGIN))

    def _bound(self, spread: FloatArray, drift: FloatArray) -> FloatArray:
        """Return the left side of the condition, in nats, to a relative `_MARGIN`."""
        deviation = np.log1p(spread / self._prior)
        deviation *= 0.5
        deviation += 1.0
        deviation *= spread + self._prior
        deviation *= 2.0 * self._log_inverse_delta
        np.sqrt(deviation, out=deviation)
        deviation += drift
        return deviation

    def _largest_step(self, spent: IntArray) -> FloatArray:
        if self.epsilon == 0.0:
            return np.zeros(len(spent))
        # One unit more than is spent makes up for the rounding of the step to units.
        spread, drift = _nats(spent + 1)

        def fits(eps: FloatArray) -> BoolArray:
            bound = self._bound(spread + eps * eps, drift + 0.5 * eps * np.expm1(eps))
            return np.asarray(bound <= self.epsilon * (1.0 - 2.0 * _MARGIN))

        nothing, all_of_it = np.zeros(len(spent)), np.full(len(spent), self.epsilon)
        return bisected(fits, nothing, all_of_it, _BISECTIONS)[0]

    def _checked_state(self, state: IntArray) -> IntArray:
        # The condition keeps spread to epsilon^2 / 2, and drift to epsilon.
        epsilon = Fraction(self.epsilon)
        largest = math.floor(max(epsilon * epsilon / 2, epsilon) * 2**UNIT_BITS)
        spent = unit_array("state", state, largest)
        if spent.ndim != 2 or spent.shape[1] != 2:
            raise InvalidInput("state", spent.shape, "of shape (n, 2), as initial_state gives it")
        return spent


def _nats(units: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return (spread, drift), each of shape (n,), to the nearest float64."""
    spread: FloatArray = np.multiply(units[:, 0], _ONE_UNIT)
    drift: FloatArray = np.multiply(units[:, 1], _ONE_UNIT)
    return spread, drift
