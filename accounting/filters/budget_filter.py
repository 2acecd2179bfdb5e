"""The base class of privacy filters: admission, budget-aware clipping, and remaining budgets.

The filters themselves and their guarantees are in `accounting.filters.measure_filters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import Mechanism, PureDP
from accounting.exact.argument_checks import (
    BoolArray,
    FloatArray,
    IntArray,
    norm_vector,
    positive_finite,
    unit_array,
    user_count,
    whole_number,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.units import MAX_BUDGET_UNITS, MAX_COST_UNITS, cost_units, from_units_down
from accounting.filters.admission import fits, pay

_END_BITS: Final = 48  # the square of a norm that is a relative 2**-49 below the largest


@dataclass(frozen=True, init=False)
class BudgetFilter(ABC):
    """A privacy filter, an immutable rule; the caller owns its state.

    Throughout, `state` holds units, shape (n,) or (n, k); `mechanism` is the step; and `norms` has
    the shape (n,), finite, >= 0. A mechanism that the measure does not cover is `InvalidInput`.

    Attributes:
        measure: the name of the measure (`accounting.MEASURES`).
        budget_units: one budget in units, rounded down, or one per order.
    """

    measure: ClassVar[str]
    budget_units: tuple[int, ...]

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing."""
        return np.zeros(user_count("n", n), dtype=np.int64)

    def admit(self, state: IntArray, cost: npt.ArrayLike) -> tuple[IntArray, BoolArray]:
        """Return (new_state, admitted): a user is admitted if the remaining budget covers `cost`.

        The charge is the cost in units, rounded up, and the budget in units is rounded down. So a
        cost of exactly the budget is denied if the budget is not a whole number of units.

        Args:
            state: units spent so far.
            cost: float64 >= 0 of the shape of the state, in the unit of the measure (nats; mu
                squared for GDP). Infinity is never admitted.

        Returns:
            The new state, and bool of shape (n,).
        """
        return self.admit_units(state, cost_units(cost))

    def admit_units(self, state: IntArray, cost_units: IntArray) -> tuple[IntArray, BoolArray]:
        """Return (new_state, admitted) as `admit` does, for costs in units."""
        spent = self._checked(state)
        charge = unit_array("cost", cost_units, MAX_COST_UNITS)
        if charge.shape != spent.shape:
            raise InvalidInput("cost", charge.shape, f"of the shape of the state, {spent.shape}")
        return pay(spent, charge, np.array(self.budget_units))

    def admit_norms(
        self, state: IntArray, mechanism: Mechanism, norms: npt.ArrayLike
    ) -> tuple[IntArray, BoolArray]:
        """Return (new_state, admitted) as `admit` does, for a step that costs `charge_units`."""
        return self.admit_units(state, self.charge_units(mechanism, norms))

    def remaining(self, state: IntArray) -> FloatArray:
        """Return the remaining budget in the unit of the measure, rounded down; shape of the state.

        It is the largest cost that `admit` admits at each order by itself.
        """
        return from_units_down(self._left(self._checked(state)))

    def exhausted(self, state: IntArray) -> BoolArray:
        """Return whether a user has nothing left at one order or more; bool (n,)."""
        empty = self._left(self._checked(state)) == 0
        return empty if empty.ndim == 1 else np.asarray(empty.any(axis=1))

    def grant(
        self,
        state: IntArray,
        mechanism: Mechanism,
        norms: npt.ArrayLike,
        clip_norm: float | None = None,
    ) -> tuple[IntArray, FloatArray]:
        """Return (new_state, granted_norms): budget-aware clipping, FZ Alg. 7.

        The norms are clipped to `clip_norm` first; then see `largest_norms`. The mechanism must
        clip every user's contribution to the granted norm. If it computes in float32, the norms to
        clip to are `round_to(granted, np.float32, "down")`. `clip_norm`: > 0; None does not clip.
        """
        vector = norm_vector("norms", norms)
        if clip_norm is not None:
            vector = np.minimum(vector, positive_finite("clip_norm", clip_norm))
        granted = self.largest_norms(state, mechanism, vector)
        return state + self.charge_granted(state, mechanism, vector, granted), granted

    def largest_norms(
        self, state: IntArray, mechanism: Mechanism, norms: npt.ArrayLike
    ) -> FloatArray:
        """Return the largest norms that fit, shape (n,); `charge_granted` charges them.

        - A norm that fits is granted unchanged and charged its cost.
        - Otherwise the granted norm is the largest that the remaining units pay for, or at most a
          relative 2**-49 less; its exact cost is at most these units. All that is left is charged,
          so the user is exhausted. Of several orders, the tightest (the smallest
          floor(left / order), the first if equal) is charged all that is left of it, and every
          other order the cost of the granted norm.
        - A user with too little left for any norm is granted 0 and charged 0.
        - For `PoissonGaussian`, bisection finds the norm, at most a relative 2**-20 below one that
          does not fit; the tightest order is the first that the latter exceeds.

        For all other mechanisms, every machine grants the same bits: only IEEE-exact operations
        are used.

        Raises:
            InvalidInput: for `PureDP`, which has no norm to clip.
        """
        if isinstance(mechanism, PureDP):
            raise InvalidInput(
                "mechanism",
                mechanism,
                "a mechanism whose norms can be clipped; use admit for pure DP",
            )
        granted = norm_vector("norms", norms).copy()
        spent = self._checked(state)
        if len(spent) != granted.size:
            raise InvalidInput("norms", granted.shape, f"one norm for each of {len(spent)} users")
        charged = self._charge(mechanism, granted)
        short = np.flatnonzero(~fits(spent, charged, np.array(self.budget_units)))
        if short.size:
            granted[short] = self._largest(mechanism, granted[short], spent[short])
        return granted

    def charge_granted(
        self,
        state: IntArray,
        mechanism: Mechanism,
        norms: npt.ArrayLike,
        granted: npt.ArrayLike,
    ) -> IntArray:
        """Return the charge to users who are granted the least of what several filters grant.

        FZ Alg. 7 for a step that must fit several budgets, possibly of different measures: each
        filter computes with `largest_norms` the norm that it would grant alone, and the smallest of
        these norms is granted. It fits every budget, because the cost of a norm, rounded up, never
        falls as the norm grows, and each filter can pay for the norm that it grants alone. It is
        the largest norm that fits, up to the relative 2**-49 by which a filter may grant less.

        A norm is charged its cost, with one exception. If the granted norm is less than asked for,
        and costs all that is left (to a relative 2**-48), all that is left is charged; of several
        orders, at the tightest. So the filter that granted the least always exhausts the user, as
        if there were no other budget. A grant of 0 is charged 0.

        `norms` were asked for. The charge is in units, of the shape of the state.

        Raises:
            InvalidInput: for granted norms above the norms asked for, or above what this filter can
                pay for.
        """
        asked, least = norm_vector("norms", norms), norm_vector("granted", granted)
        spent = self._checked(state)
        if not asked.shape == least.shape == spent.shape[:1]:
            raise InvalidInput("granted", least.shape, f"one norm for each of {len(spent)} users")
        charged = self._charge(mechanism, least)
        payable = fits(spent, charged, np.array(self.budget_units))
        if bool((least > asked).any()) or not payable.all():
            raise InvalidInput("granted", least.tolist(), "at most what every filter grants")
        lower = np.flatnonzero((least < asked) & (least > 0.0))
        if lower.size:
            charged[lower] = self._to_the_end(mechanism, least[lower], spent[lower], charged[lower])
        return charged

    def charge_units(self, mechanism: Mechanism, norms: npt.ArrayLike) -> IntArray:
        """Return the charge of a step in units, rounded up; of the shape of the state.

        Raises:
            InvalidInput: for a mechanism that the measure does not cover.
        """
        return self._charge(mechanism, norm_vector("norms", norms))

    @abstractmethod
    def _charge(self, mechanism: Mechanism, norms: FloatArray) -> IntArray:
        """Return the charge of each norm in units, of the shape of the state."""

    @abstractmethod
    def _largest(self, mechanism: Mechanism, norms: FloatArray, spent: IntArray) -> FloatArray:
        """Return the largest norms that fit, for `norms` that do not fit."""

    @abstractmethod
    def _to_the_end(
        self, mechanism: Mechanism, granted: FloatArray, spent: IntArray, charged: IntArray
    ) -> IntArray:
        """Return `charged`, or all that is left where `granted` uses up what pays for norms."""

    def _checked(self, state: IntArray) -> IntArray:
        """Return `state` if every entry is between 0 and its budget, or raise `InvalidInput`."""
        budgets = self.budget_units
        spent = unit_array("state", state, max(budgets))
        if spent.ndim == 0 or spent.shape[1:] != self.initial_state(0).shape[1:]:
            raise InvalidInput("state", spent.shape, "of the shape that initial_state returns")
        if len(budgets) > 1 and bool((spent > np.array(budgets)).any()):
            most = spent.max(axis=0).tolist()
            raise InvalidInput("state", most, f"at most the budgets {budgets}")
        return spent

    def _left(self, spent: IntArray) -> IntArray:
        """Return the units left of each budget, of the shape of the state."""
        return np.asarray(np.array(self.budget_units) - spent)

    @staticmethod
    def _is_the_end(payable: IntArray, cost: IntArray) -> BoolArray:
        """Return where a cost is all that is payable, except for the rounding of norms."""
        return np.asarray(payable - cost <= payable >> _END_BITS)

    def _set(self, budgets: Sequence[int]) -> Self:
        """Store validated budgets; only constructors call this."""
        units = [whole_number("budget_units", number, 0, MAX_BUDGET_UNITS) for number in budgets]
        object.__setattr__(self, "budget_units", tuple(units))
        return self
