"""The filter for approximate zCDP: steps that may each fail with a small probability.

The service does not use it.

A step is delta-approximate rho-zCDP for a user if there are events of probability 1 - delta, with
and without the user, given which the outputs differ by at most a rho in Rényi divergence at every
order a above 1, both ways (Bun and Steinke 2016, Def. 8.1). Examples are truncated noise,
propose-test-release, and any (eps, delta)-DP step, which is delta-approximate (eps^2 / 2)-zCDP.

J. Whitehouse, A. Ramdas, R. Rogers, Z. S. Wu, "Fully-Adaptive Composition in Differential Privacy",
ICML 2023 (arXiv 2203.05481), the filter for approximate zCDP: if steps are admitted while the sum
of rho, this step's included, is at most rho*, and the sum of delta at most delta*, all of them
together are delta*-approximate rho*-zCDP, for adaptive rho and delta. Run for every user (FZ Alg.
3), users whose charge does not fit are left out of the step. Neighbouring datasets differ
by adding or removing one user.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from accounting.conversions import zcdp_to_epsilon
from accounting.costs.mechanisms import Mechanism
from accounting.costs.power_cost import ZCDP
from accounting.exact.errors import InvalidInput
from accounting.exact.rounding import DOWN, UP, float_toward
from accounting.exact.units import UNIT_BITS, cost_units, from_units, from_units_down, split_budget
from accounting.exact.validation import (
    BoolArray,
    FloatArray,
    IntArray,
    exact_number,
    nonnegative_array,
    probability,
    user_count,
)
from accounting.filters.admission import admit_within, checked_state, exhausted_within

_DELTA_BITS: Final = 61  # a unit of delta is 2**-61: 4e-19


@dataclass(frozen=True, init=False)
class ApproxZcdpFilter:
    """Admit while the sums of rho and of delta are at most their budgets.

    The state is an int64 array of shape (n, 2) that the caller owns: rho of each user in units of
    2**-44, and delta in units of 2**-61, every charge rounded up and budgets rounded down.

    Args:
        rho: nats, >= 0, at most 131072.
        delta: >= 0, less than 1.
    """

    measure: ClassVar[str] = "approx-zcdp"
    budget_units: tuple[int, int]

    def __init__(self, rho: float, delta: float) -> None:
        share = exact_number("delta", delta)
        if not 0 <= share < 1:
            raise InvalidInput("delta", delta, "at least 0, and less than 1")
        units = split_budget("rho", rho)[0], int(share * 2**_DELTA_BITS)
        object.__setattr__(self, "budget_units", units)

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing, shape (n, 2)."""
        return np.zeros((user_count("n", n), 2), dtype=np.int64)

    def admit(
        self, state: IntArray, rho: npt.ArrayLike, delta: npt.ArrayLike
    ) -> tuple[IntArray, BoolArray]:
        """Return (new_state, admitted): a user is admitted if both remaining budgets suffice.

        Args:
            state: units, shape (n, 2).
            rho: nats, shape (n,), >= 0; infinity is never admitted.
            delta: shape (n,), or one number for all; from 0 to 1.
        """
        charge = cost_units(rho)
        if charge.ndim != 1:
            raise InvalidInput("rho", charge.shape, "one number per user, of shape (n,)")
        return self._admit_units(state, charge, delta)

    def admit_norms(
        self, state: IntArray, mechanism: Mechanism, norms: npt.ArrayLike, delta: npt.ArrayLike = 0
    ) -> tuple[IntArray, BoolArray]:
        """Admit as `admit` does, for a mechanism with a rho that fails with probability delta."""
        return self._admit_units(state, ZCDP.units(mechanism, norms), delta)

    def remaining(self, state: IntArray) -> FloatArray:
        """Return the remaining rho, in nats, and delta, rounded down; shape (n, 2)."""
        left = np.array(self.budget_units) - checked_state(self.budget_units, state)
        in_units = np.array([1.0, 2.0 ** (UNIT_BITS - _DELTA_BITS)])
        return np.asarray(from_units_down(left) * in_units)

    def exhausted(self, state: IntArray) -> BoolArray:
        """Return whether no rho is left, bool (n,)."""
        return exhausted_within(
            self.budget_units[:1], checked_state(self.budget_units, state)[:, 0]
        )

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of all admitted steps together, in nats, rounded up.

        (epsilon, delta* + (1 - delta*) delta')-DP for every (epsilon, delta') that rho*-zCDP
        implies (Bun and Steinke, Lemma 8.8).

        Args:
            delta: of the guarantee, above that of the budget, less than 1.
        """
        total = Fraction(probability("delta", delta))
        share = Fraction(self.budget_units[1], 2**_DELTA_BITS)
        if total <= share:
            raise InvalidInput("delta", delta, f"above the budget, {float_toward(share, UP)}")
        rest = float_toward((total - share) / (1 - share), DOWN)
        return zcdp_to_epsilon(float(from_units(np.int64(self.budget_units[0]))), rest)

    def _admit_units(
        self, state: IntArray, rho: IntArray, delta: npt.ArrayLike
    ) -> tuple[IntArray, BoolArray]:
        shares = nonnegative_array("delta", delta)
        if shares.size and shares.max() > 1.0:
            raise InvalidInput("delta", float(shares.max()), "at most 1 throughout")
        if shares.shape not in ((), rho.shape):
            raise InvalidInput("delta", shares.shape, f"one number, or of shape {rho.shape}")
        # Scaling by a power of two and ceil are exact.
        units = np.ceil(shares * 2.0**_DELTA_BITS).astype(np.int64)
        cost = np.stack([rho, np.broadcast_to(units, rho.shape)], axis=1)
        return admit_within(self.budget_units, state, cost)
