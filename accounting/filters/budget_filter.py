"""What all privacy filters share: admission, budget-aware clipping, and what is left.

The filters themselves, and what each guarantees, are in `accounting.filters.measure_filters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import Mechanism, PureDP
from accounting.exact.errors import InvalidInput
from accounting.exact.rounding import DOWN
from accounting.exact.units import MAX_BUDGET_UNITS, UNIT_BITS, cost_units
from accounting.exact.validation import (
    BoolArray,
    FloatArray,
    IntArray,
    nonnegative_array,
    norm_vector,
    positive_finite,
    user_count,
    whole_number,
)
from accounting.filters.admission import (
    PaysFromRest,
    admit_within,
    checked_state,
    exhausted_within,
    fitting,
    limits,
    remaining_within,
    rests_pay,
)

_SMALLEST_REST = Fraction(2) ** (UNIT_BITS - 1074)  # in units: no smaller cost is a float64
_END_BITS: Final = 48  # the square of a norm that is a relative 2**-49 below the largest


@dataclass(frozen=True, init=False)
class BudgetFilter(ABC):
    """What the filters share.

    Attributes:
        measure: its name (`accounting.MEASURES`).
        budget_units: the whole units of one budget, or of one per order.
        budget_rests: what each has beyond them, in units, less than 1, exactly; empty if all are
            whole.
    """

    measure: ClassVar[str]
    budget_units: tuple[int, ...]
    budget_rests: tuple[Fraction, ...]

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing."""
        return np.zeros(user_count("n", n), dtype=np.int64)

    def admit(self, state: IntArray, cost: npt.ArrayLike) -> tuple[IntArray, BoolArray]:
        """Return (new_state, admitted), admitting whoever can pay `cost` in full.

        A cost fits if what is spent and the cost are together at most the budget, as exact
        numbers; it is charged in units, rounded up.

        Args:
            state: units, shape (n,) or (n, k).
            cost: float64 >= 0 of the shape of the state, in the unit of the measure (nats; mu
                squared for GDP); other numbers are rounded up to float64, and infinity is never
                admitted.

        Returns:
            The new state, and bool of shape (n,).
        """
        if not self.budget_rests:
            return self.admit_units(state, cost_units(cost))
        costs = nonnegative_array("cost", cost)
        pays = rests_pay(self.budget_rests, costs)
        return admit_within(self.budget_units, state, cost_units(costs), self.budget_rests, pays)

    def admit_units(self, state: IntArray, cost_units: IntArray) -> tuple[IntArray, BoolArray]:
        """Return (new_state, admitted) for costs of which only whole units are known.

        What is spent and the cost must be at most the whole units of the budget.
        """
        return admit_within(self.budget_units, state, cost_units, self.budget_rests)

    def admit_norms(
        self, state: IntArray, mechanism: Mechanism, norms: npt.ArrayLike
    ) -> tuple[IntArray, BoolArray]:
        """Return (new_state, admitted), admitting whoever can pay for a step of their norm.

        What is charged is `charge_units`. Whether it fits is decided on the exact cost, a rational
        number; for Rényi orders, at which `charge_units` rounds up twice, in whole units.

        Args:
            state: units, shape (n,) or (n, k).
            mechanism: the step.
            norms: shape (n,), finite, >= 0.

        Raises:
            InvalidInput: for what the measure does not cover.
        """
        vector = norm_vector("norms", norms)
        charge, pays = self._charge(mechanism, vector), self._exact_decision(mechanism, vector)
        return admit_within(self.budget_units, state, charge, self.budget_rests, pays)

    def remaining(self, state: IntArray) -> FloatArray:
        """Return what is left, in the unit of the measure, rounded down; shape of the state.

        It is the largest cost that `admit` admits at the order by itself.
        """
        return remaining_within(self.budget_units, state, self.budget_rests)

    def exhausted(self, state: IntArray) -> BoolArray:
        """Return whether nothing is left, at some order at least; bool (n,)."""
        return exhausted_within(self.budget_units, state, self.budget_rests)

    def grant(
        self,
        state: IntArray,
        mechanism: Mechanism,
        norms: npt.ArrayLike,
        clip_norm: float | None = None,
    ) -> tuple[IntArray, FloatArray]:
        """Return (new_state, granted_norms): budget-aware clipping, FZ Alg. 7.

        As `grant_units`, for norms that are first clipped to `clip_norm`. The mechanism must clip
        every user's contribution to the granted norm. If it computes in float32,
        `round_to(granted, np.float32, "down")` are the limits to clip to.

        Args:
            state: units, shape (n,) or (n, k).
            mechanism: the step.
            norms: shape (n,), finite, >= 0.
            clip_norm: > 0, rounded down; None does not clip.
        """
        vector = norm_vector("norms", norms)
        if clip_norm is not None:
            vector = np.minimum(vector, positive_finite("clip_norm", clip_norm, DOWN))
        return self.grant_units(state, mechanism, vector)[:2]

    def grant_units(
        self, state: IntArray, mechanism: Mechanism, norms: npt.ArrayLike
    ) -> tuple[IntArray, FloatArray, IntArray]:
        """Return (new_state, granted_norms, charged_units): the largest norms that can be paid.

        - A norm that fits is granted as it is and charged what it costs.
        - Else the granted norm is what the whole units that are left pay for, at most a relative
          2**-49 less, and its cost is at most these in exact arithmetic. All that is left is
          charged, so that the user is exhausted. Of several orders, the tightest (the least
          floor(left / order), the first if equal) is charged all that is left of it, and each
          other what the granted norm costs.
        - A user with nothing left is granted 0 and charged 0. One with less than a unit left at
          some order is granted 0 too, and charged that.
        - For `PoissonGaussian`, the norm is found by bisection, at most a relative 2**-20 less
          than one that does not fit; the tightest order is the first that this one exceeds.

        Of the other mechanisms every machine grants the same bits: only IEEE-exact operations
        are used.

        Args:
            state: units, shape (n,) or (n, k).
            mechanism: the step.
            norms: shape (n,), finite, >= 0.

        Returns:
            The new state, norms of shape (n,), and units of the shape of the state.

        Raises:
            InvalidInput: for `PureDP`, which has no norm that could be clipped, and for what the
                measure does not cover.
        """
        if isinstance(mechanism, PureDP):
            raise InvalidInput(
                "mechanism", mechanism, "one whose norms can be clipped; use admit for pure DP"
            )
        granted = norm_vector("norms", norms).copy()
        spent = checked_state(self.budget_units, state, self.budget_rests)
        if len(spent) != granted.size:
            raise InvalidInput("norms", granted.shape, f"one norm for each of {len(spent)} users")
        charged = self._charge(mechanism, granted)
        if spent.shape != charged.shape:
            raise InvalidInput("state", spent.shape, f"of shape {charged.shape}")
        pays = self._exact_decision(mechanism, granted)
        fits = fitting(self.budget_units, spent + charged, charged, self.budget_rests, pays)
        short = np.flatnonzero(~(fits if fits.ndim == 1 else fits.all(axis=1)))
        if short.size:
            granted[short], charged[short] = self._last_grant(
                mechanism, granted[short], spent[short]
            )
        return state + charged, granted, charged

    def charge_granted(
        self,
        state: IntArray,
        mechanism: Mechanism,
        norms: npt.ArrayLike,
        granted: npt.ArrayLike,
    ) -> IntArray:
        """Return what users are charged here who are granted the least of what filters grant.

        FZ Alg. 7 where a step has to fit several budgets, which may be of different measures: each
        filter says by `grant_units` what it would grant alone, and the least of these norms is
        granted. It fits every budget: the cost of a norm, rounded up, never falls as the norm
        grows, and each filter can pay for the norm that it grants alone, which is no less. It is
        the largest that does, up to the relative 2**-49 by which a filter may grant less.

        A norm is charged what it costs. But where it is less than was asked for, and costs all that
        the whole units that are left pay for, to a relative 2**-48, all that is left is charged (of
        several orders, at the tightest): so it always is where the least was granted, and the user
        is exhausted as if there were no other budget. Whoever is granted 0 is charged 0.

        Args:
            state: units, shape (n,) or (n, k).
            mechanism: the step.
            norms: that were asked for, shape (n,), finite, >= 0.
            granted: shape (n,), at most what this filter grants.

        Returns:
            Units, of the shape of the state.

        Raises:
            InvalidInput: for granted norms above those asked for, or that this filter cannot pay
                for; for less than was asked for of `PoissonGaussian`, which no formula inverts; and
                for what the measure does not cover.
        """
        asked, least = norm_vector("norms", norms), norm_vector("granted", granted)
        spent = checked_state(self.budget_units, state, self.budget_rests)
        if not asked.shape == least.shape == spent.shape[:1]:
            raise InvalidInput("granted", least.shape, f"one norm for each of {len(spent)} users")
        charged = self._charge(mechanism, least)
        pays = self._exact_decision(mechanism, least)
        fits = fitting(self.budget_units, spent + charged, charged, self.budget_rests, pays)
        if bool((least > asked).any() or not fits.all()):
            raise InvalidInput("granted", least.tolist(), "what every filter grants, and no more")
        lower = np.flatnonzero((least < asked) & (least > 0.0))
        if lower.size:
            charged[lower] = self._to_the_end(mechanism, least[lower], spent[lower], charged[lower])
        return charged

    def charge_units(self, mechanism: Mechanism, norms: npt.ArrayLike) -> IntArray:
        """Return what a step charges in units, rounded up; of the shape of the state.

        Raises:
            InvalidInput: for what the measure does not cover.
        """
        return self._charge(mechanism, norm_vector("norms", norms))

    @abstractmethod
    def _charge(self, mechanism: Mechanism, norms: FloatArray) -> IntArray:
        """Return the charge of each norm in units, of the shape of the state."""

    def _exact_decision(self, mechanism: Mechanism, norms: FloatArray) -> PaysFromRest | None:
        """Return what decides about the last unit, if more is known of a cost than whole units."""
        return None

    @abstractmethod
    def _last_grant(
        self, mechanism: Mechanism, norms: FloatArray, spent: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """Return (norms that can still be paid, charges) for `norms` that cannot."""

    @abstractmethod
    def _to_the_end(
        self, mechanism: Mechanism, granted: FloatArray, spent: IntArray, charged: IntArray
    ) -> IntArray:
        """Return `charged`, or all that is left where `granted` leaves nothing worth a norm."""

    def _left(self, spent: IntArray) -> IntArray:
        """Return how many whole units are left of each budget."""
        return np.maximum(np.array(self.budget_units) - spent, 0)

    @staticmethod
    def _is_the_end(payable: IntArray, cost: IntArray) -> BoolArray:
        """Return where a cost is all of what is payable, but for the rounding of norms."""
        return np.asarray(payable - cost <= payable >> _END_BITS)

    def _all_left(self, spent: IntArray) -> IntArray:
        """Return the charges that leave nothing."""
        return limits(self.budget_units, self.budget_rests) - spent

    def _set(self, budgets: Sequence[int], rests: Sequence[Fraction] = ()) -> Self:
        """Store validated budgets; only constructors call this."""
        units = [whole_number("budget_units", number, 0, MAX_BUDGET_UNITS) for number in budgets]
        object.__setattr__(self, "budget_units", tuple(units))
        kept = tuple(rest if rest >= _SMALLEST_REST else Fraction(0) for rest in rests)
        object.__setattr__(self, "budget_rests", kept if any(kept) else ())
        return self
