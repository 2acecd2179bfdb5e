"""A privacy filter on the user's device (Feldman and Zrnic, Remark 4.6), without the service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from accounting.costs.mechanisms import Mechanism
from accounting.exact.argument_checks import whole_number
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.units import MAX_BUDGET_UNITS
from accounting.filters.budget_filter import BudgetFilter


class LocalFilter:
    """One user's filter on a device: a rule and the user's spend.

        device = LocalFilter(GdpFilter(mu=1.0), spent=stored)
        if device.admit(Gaussian(4.0), norm):
            store(device.spent)     # first store the charge,
            send(answer)            # then answer

    Unlike the rule, this object changes: an admitted or granted step is charged immediately and
    permanently. Write `spent` to durable storage before sending anything. A device that fails in
    between has paid for an unsent answer, which costs utility but no privacy; in the other order,
    the charge would be lost.

    Whether a device answers is visible, and a charge may depend on private data. The guarantee
    covers the answers if a denied step is answered as it would be without this user's data: with
    noise only. Not answering is equivalent only if all charges follow from public facts.
    Neighbouring datasets differ by adding or removing this user's data.

    Args:
        rule: a `BudgetFilter`, such as `GdpFilter`.
        spent: omitted at first; later the stored value of `spent`.
    """

    def __init__(self, rule: BudgetFilter, spent: Sequence[int] | None = None) -> None:
        if not isinstance(rule, BudgetFilter):
            raise InvalidInput("rule", rule, "a filter, such as ZcdpFilter(1.0)")
        self.rule = rule
        self._state = rule.initial_state(1)
        if spent is not None:
            if not isinstance(spent, Sequence):
                raise InvalidInput("spent", spent, "a list of whole numbers, as stored")
            units = [whole_number("spent", number, 0, MAX_BUDGET_UNITS) for number in spent]
            if len(units) != self._state.size:
                allowed = f"{self._state.size} numbers for this rule"
                raise InvalidInput("spent", len(units), allowed)
            self._state = np.array(units, dtype=np.int64).reshape(self._state.shape)
            try:
                rule.exhausted(self._state)  # checks that no spend is above its budget
            except InvalidInput as error:
                raise InvalidInput("spent", spent, error.allowed) from None

    def __repr__(self) -> str:
        return f"LocalFilter({self.rule!r}, spent={self.spent})"

    @property
    def spent(self) -> list[int]:
        """The spend as plain integers to store: units of 2**-44, one per budget."""
        return self._state.reshape(-1).tolist()

    @property
    def remaining(self) -> float | list[float]:
        """The remaining budget, rounded down: one number, or one per order."""
        return cast("float | list[float]", self.rule.remaining(self._state)[0].tolist())

    @property
    def exhausted(self) -> bool:
        """True if the budget is used up at one order or more."""
        return bool(self.rule.exhausted(self._state)[0])

    def admit(self, mechanism: Mechanism, norm: float) -> bool:
        """Charge a step and return True if its cost fits; otherwise return False.

        Args:
            mechanism: the step, which defines what the norm measures.
            norm: the norm of this user's contribution, finite, >= 0.
        """
        self._state, admitted = self.rule.admit_norms(self._state, mechanism, [norm])
        return bool(admitted[0])

    def admit_cost(self, cost: float | Sequence[float]) -> bool:
        """Charge a cost in the unit of the rule, as `admit` does; one number or one per order."""
        self._state, admitted = self.rule.admit(self._state, [cost])
        return bool(admitted[0])

    def grant(self, mechanism: Mechanism, norm: float, clip_norm: float | None = None) -> float:
        """Charge a step and return the norm to clip to: budget-aware clipping, FZ Alg. 7.

        The result is the least of `norm`, `clip_norm` (> 0) and the norm that the remaining budget
        pays for.
        """
        self._state, granted = self.rule.grant(self._state, mechanism, [norm], clip_norm)
        return float(granted[0])
