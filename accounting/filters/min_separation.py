"""Minimum separation: a filter for the steps of a banded matrix mechanism (DP-FTRL).

A participation in step t of a mechanism with b bands is charged in full, as a plain Gaussian step
(`accounting.costs.banded`). Charges add up only between participations at least b steps apart. So a
user is admitted to step t if

    the filter admits the charge, and the user did not participate in steps t - b + 1 to t.

A user who is not admitted is left out of the step and charged nothing. A user with a charge of 0
does not participate, is always admitted, and may participate in the next steps. The service decides
the same in a run with `min_separation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import Mechanism
from accounting.exact.errors import InvalidInput
from accounting.exact.units import MAX_COST_UNITS
from accounting.exact.validation import BoolArray, IntArray, norm_vector, unit_array, whole_number
from accounting.filters.budget_filter import BudgetFilter

MAX_STEP: Final = 2**61


class MinSeparationState(NamedTuple):
    """The state of n users, which the caller owns.

    Attributes:
        spent: units, the state of the filter; shape (n,) or (n, k).
        next_step: the first step in which each user may participate; int64, shape (n,), initially
            0.
    """

    spent: IntArray
    next_step: IntArray


@dataclass(frozen=True)
class MinSeparationFilter:
    """A filter that admits participations at least `min_separation` steps apart.

    Attributes:
        rule: the budget filter, for Gaussian steps, such as `ZcdpFilter` or `GdpFilter`.
        min_separation: b, 1 to 2**61, at least the number of bands of the mechanism; with 1 a user
            may participate in every step.
    """

    rule: BudgetFilter
    min_separation: int

    def __post_init__(self) -> None:
        if not isinstance(self.rule, BudgetFilter):
            raise InvalidInput("rule", self.rule, "a filter, such as ZcdpFilter(1.0)")
        separation = whole_number("min_separation", self.min_separation, 1, MAX_STEP)
        object.__setattr__(self, "min_separation", separation)

    def initial_state(self, n: int) -> MinSeparationState:
        """Return the state of n users who have not participated yet."""
        spent = self.rule.initial_state(n)
        return MinSeparationState(spent, np.zeros(len(spent), dtype=np.int64))

    def admit_units(
        self, state: MinSeparationState, step: int, cost_units: IntArray
    ) -> tuple[MinSeparationState, BoolArray]:
        """Return (new_state, admitted) for charges in units.

        Args:
            state: the result of `initial_state` or of the step before.
            step: its number, 0 to 2**61. A user is not admitted twice to one step, nor to a step
                before one in which the user participated.
            cost_units: int64, of the shape of what is spent.

        Raises:
            InvalidInput: for other arguments.
        """
        charge = unit_array("cost", cost_units, MAX_COST_UNITS)
        takes_part = np.asarray(charge > 0 if charge.ndim == 1 else (charge > 0).any(axis=-1))
        allowed = self._allowed(state, step, takes_part)
        part = charge * (allowed if charge.ndim == 1 else allowed[:, np.newaxis])
        return self._settled(state, step, takes_part, *self.rule.admit_units(state.spent, part))

    def admit_norms(
        self, state: MinSeparationState, step: int, mechanism: Mechanism, norms: npt.ArrayLike
    ) -> tuple[MinSeparationState, BoolArray]:
        """Return (new_state, admitted) for a participation with these norms.

        Args:
            state: as for `admit_units`.
            step: as for `admit_units`.
            mechanism: the result of `banded_step` for the column of this step.
            norms: of the contributions, shape (n,), finite, >= 0; 0 for users who do not
            participate.
        """
        vector = norm_vector("norms", norms)
        takes_part = vector > 0.0
        part = np.where(self._allowed(state, step, takes_part), vector, 0.0)
        return self._settled(
            state, step, takes_part, *self.rule.admit_norms(state.spent, mechanism, part)
        )

    def _allowed(self, state: MinSeparationState, step: int, takes_part: BoolArray) -> BoolArray:
        number = whole_number("step", step, 0, MAX_STEP)
        following = unit_array("next_step", state.next_step, 2 * MAX_STEP)
        if following.shape != takes_part.shape:
            allowed = f"one user for each of {following.shape}, as in the state"
            raise InvalidInput("users", takes_part.shape, allowed)
        return np.asarray((following <= number) | ~takes_part)

    def _settled(
        self,
        state: MinSeparationState,
        step: int,
        takes_part: BoolArray,
        spent: IntArray,
        fits: BoolArray,
    ) -> tuple[MinSeparationState, BoolArray]:
        admitted = fits & self._allowed(state, step, takes_part)
        following = np.where(admitted & takes_part, step + self.min_separation, state.next_step)
        return MinSeparationState(spent, following), admitted
