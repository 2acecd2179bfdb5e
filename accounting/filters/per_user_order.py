"""The filter at a per-user Rényi order: a Rényi filter at one order, which may differ by user.

A Rényi filter at one order a, with a budget B_a that alone implies (epsilon, delta), gives its user
(epsilon, delta)-DP. The order may differ from user to user, and may be chosen from the user's own
data. It is fixed when the user is enrolled, from that data and the outputs released before.

The theorem and its proof are in ``docs/research/filters.md``, "Rényi order per user": the order is
chosen before the user's first contribution. It is new and not peer reviewed.

The running sum at this order, converted with the whole delta, also holds at every stopping time
(`docs/research/any-time.md`), as long as charges do not follow the user's own sampling coins.

"Whichever order still holds" is another rule, and is not proven for costs that are chosen
adaptively. Here the order never changes. The state is one number per user instead of one per order,
and more steps are admitted than if all orders had to hold. Neighbouring datasets differ by adding
or removing one user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import Mechanism
from accounting.exact.argument_checks import (
    BoolArray,
    FloatArray,
    IntArray,
    finite_numbers,
    norm_vector,
    renyi_orders,
    unit_array,
    user_count,
    whole_array,
    whole_numbers,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.units import MAX_BUDGET_UNITS, MAX_COST_UNITS, budget_units, from_units_down
from accounting.filters.admission import pay
from accounting.filters.measure_filters import RenyiFilter

OrderArray = npt.NDArray[np.uint8]

MAX_ORDERS: Final = 256
_BLOCK: Final = 2**14  # users times orders at a time


def best_order(costs: npt.ArrayLike, budgets: Sequence[int]) -> OrderArray:
    """Return the index of the order that admits most steps of each charge.

    At this order budget // max(cost, 1) is largest. Ties go to the largest quotient of the two as
    float64 numbers (IEEE 754 division: the same on every machine), then to the first order. So a
    charge of 0 gets the order with the largest budget, and a charge that fits at no order gets the
    one at which it is nearest to fitting.

    Args:
        costs: units of each charge at each order, int64, shape (n, k): rows of a cost table.
        budgets: units, one per order, k of them, at most 256.

    Returns:
        uint8, shape (n,).

    Raises:
        InvalidInput: for other arguments.
    """
    rows = unit_array("costs", costs, MAX_COST_UNITS)
    units = whole_numbers("budgets", budgets, 0, MAX_BUDGET_UNITS)
    if not 1 <= len(units) <= MAX_ORDERS:
        raise InvalidInput("budgets", len(units), f"one per order, at most {MAX_ORDERS}")
    whole = np.array(units, dtype=np.int64)
    if rows.ndim != 2 or rows.shape[1] != whole.size:
        raise InvalidInput("costs", rows.shape, f"of shape (n, {whole.size}), a column per order")
    chosen = np.empty(len(rows), dtype=np.uint8)
    height = max(1, _BLOCK // whole.size)
    for start in range(0, len(rows), height):
        block = slice(start, start + height)
        charges = np.maximum(rows[block], 1)
        steps = whole // charges
        most = steps == steps.max(axis=1, keepdims=True)
        chosen[block] = np.where(most, whole / charges, -1.0).argmax(axis=1)
    return chosen


@dataclass(frozen=True, init=False)
class PerUserOrderFilter:
    """Admit while the sum of Rényi divergences at the user's order is at most its budget.

    The state is two arrays that the caller owns, with one row per user: `spent`, int64 units at the
    user's order, shape (n,), and `order`, the index of that order, uint8, shape (n,). The order is
    set at enrolment (see `best_order`) and never changes. A charge that does not fit is not
    charged; budgets count in whole units.

    Args:
        orders: k orders, > 1, at most 2**40, all different; k at most 256.
        budgets: k budgets in nats, >= 0, each of which alone implies the guarantee
            (`accounting.candidate_orders`), rounded down to units.
    """

    measure = "renyi"
    orders: tuple[float, ...]
    budget_units: tuple[int, ...]

    def __init__(self, orders: npt.ArrayLike, budgets: npt.ArrayLike) -> None:
        given = finite_numbers("budgets", budgets)
        self._set(orders, [budget_units(one, argument="budgets") for one in given])

    @classmethod
    def from_units(cls, orders: npt.ArrayLike, budgets: Sequence[int]) -> Self:
        """Return the filter with budgets in units, 0 to `MAX_BUDGET_UNITS`, one per order."""
        return cls.__new__(cls)._set(orders, budgets)

    def initial_state(self, n: int) -> IntArray:
        """Return `spent` of n users who have spent nothing."""
        return np.zeros(user_count("n", n), dtype=np.int64)

    def bind(self, mechanism: Mechanism, norms: npt.ArrayLike) -> OrderArray:
        """Return the order that admits most steps of each norm, shape (n,), for enrolment."""
        vector = norm_vector("norms", norms)
        chosen = np.empty(vector.size, dtype=np.uint8)
        whole = self._filter()
        for start in range(0, vector.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            costs = whole.charge_units(mechanism, vector[block])
            chosen[block] = best_order(costs, self.budget_units)
        return chosen

    def charge_units(
        self, order: OrderArray, mechanism: Mechanism, norms: npt.ArrayLike
    ) -> IntArray:
        """Return what a step charges each user at the user's order, shape (n,); rounded up."""
        vector = norm_vector("norms", norms)
        charge = np.empty(vector.size, dtype=np.int64)
        for index, members in self._groups(order, vector.size):
            charge[members] = self._filter(index).charge_units(mechanism, vector[members])[:, 0]
        return charge

    def admit_units(
        self, spent: IntArray, order: OrderArray, cost_units: IntArray
    ) -> tuple[IntArray, BoolArray]:
        """Return (new_spent, admitted): spent + cost if that is within the budget, otherwise spent.

        Args:
            spent: units, shape (n,).
            order: uint8, shape (n,).
            cost_units: of each user at the user's order, int64, shape (n,).

        Raises:
            InvalidInput: for spends above the budget, negative units, or shapes that differ.
        """
        budgets = self.budgets_at(order)
        units = self._checked(spent, budgets)
        charge = unit_array("cost", cost_units, MAX_COST_UNITS)
        if charge.shape != units.shape:
            raise InvalidInput("cost", charge.shape, f"of the shape of the state, {units.shape}")
        return pay(units, charge, budgets)

    def admit_norms(
        self, spent: IntArray, order: OrderArray, mechanism: Mechanism, norms: npt.ArrayLike
    ) -> tuple[IntArray, BoolArray]:
        """Return `admit_units` of what a step of these norms charges."""
        return self.admit_units(spent, order, self.charge_units(order, mechanism, norms))

    def grant_units(
        self, spent: IntArray, order: OrderArray, mechanism: Mechanism, norms: npt.ArrayLike
    ) -> tuple[IntArray, FloatArray, IntArray]:
        """Return (new_spent, granted_norms, charged_units): budget-aware clipping, FZ Alg. 7.

        The result is that of `RenyiFilter.grant_units` with each user's order alone.
        """
        granted = norm_vector("norms", norms).copy()
        units = self._checked(spent, self.budgets_at(order)).copy()
        if units.size != granted.size:
            raise InvalidInput("norms", granted.shape, f"one norm for each of {units.size} users")
        charged = np.zeros_like(units)
        for index, members in self._groups(order, granted.size):
            column = units[members, np.newaxis]
            state, norm, charge = self._filter(index).grant_units(
                column, mechanism, granted[members]
            )
            units[members], granted[members], charged[members] = state[:, 0], norm, charge[:, 0]
        return units, granted, charged

    def charge_granted(
        self,
        spent: IntArray,
        order: OrderArray,
        mechanism: Mechanism,
        norms: npt.ArrayLike,
        granted: npt.ArrayLike,
    ) -> IntArray:
        """Return the charge of users who are granted the least of what several filters grant.

        The result is that of `RenyiFilter.charge_granted` with each user's order alone; shape (n,).
        """
        asked, least = norm_vector("norms", norms), norm_vector("granted", granted)
        units = self._checked(spent, self.budgets_at(order))
        if not asked.size == least.size == units.size:
            raise InvalidInput("granted", least.shape, f"one norm for each of {units.size} users")
        charged = np.zeros_like(units)
        for index, members in self._groups(order, asked.size):
            column = units[members, np.newaxis]
            charged[members] = self._filter(index).charge_granted(
                column, mechanism, asked[members], least[members]
            )[:, 0]
        return charged

    def budgets_at(self, order: OrderArray) -> IntArray:
        """Return each user's budget in units, shape (n,).

        Raises:
            InvalidInput: for an index without an order.
        """
        indices = whole_array("order", order)
        if indices.dtype != np.uint8 or indices.ndim != 1:
            raise InvalidInput("order", indices.dtype, "uint8 of shape (n,)")
        if indices.size and int(indices.max()) >= len(self.orders):
            raise InvalidInput("order", int(indices.max()), f"below {len(self.orders)}")
        return np.array(self.budget_units, dtype=np.int64).take(indices)

    def remaining(self, spent: IntArray, order: OrderArray) -> FloatArray:
        """Return what is left at the user's order, in nats, rounded down; shape (n,)."""
        budgets = self.budgets_at(order)
        return from_units_down(budgets - self._checked(spent, budgets))

    def exhausted(self, spent: IntArray, order: OrderArray) -> BoolArray:
        """Return whether the user has nothing left, bool (n,)."""
        budgets = self.budgets_at(order)
        return np.asarray(self._checked(spent, budgets) == budgets)

    def _filter(self, index: int | None = None) -> RenyiFilter:
        part = slice(None) if index is None else slice(index, index + 1)
        return RenyiFilter.from_units(self.orders[part], self.budget_units[part])

    def _groups(self, order: OrderArray, n: int) -> list[tuple[int, npt.NDArray[np.intp]]]:
        """Return each order in use, with the rows of its users."""
        if self.budgets_at(order).size != n:
            raise InvalidInput("order", order.shape, f"one index for each of {n} users")
        return [(index, np.flatnonzero(order == index)) for index in np.unique(order).tolist()]

    def _checked(self, spent: IntArray, budgets: IntArray) -> IntArray:
        units = unit_array("state", spent, MAX_BUDGET_UNITS)
        if units.shape != budgets.shape:
            raise InvalidInput("state", units.shape, f"of the shape of order, {budgets.shape}")
        if bool((units > budgets).any()):
            bad = int(np.argmax(units > budgets))
            raise InvalidInput("state", int(units[bad]), f"at most the budget {int(budgets[bad])}")
        return units

    def _set(self, orders: npt.ArrayLike, budgets: Sequence[int]) -> Self:
        alphas = renyi_orders("orders", orders)
        units = whole_numbers("budgets", budgets, 0, MAX_BUDGET_UNITS)
        if alphas.size > MAX_ORDERS or len(units) != alphas.size:
            allowed = f"one for each of {alphas.size} orders, at most {MAX_ORDERS}"
            raise InvalidInput("budgets", budgets, allowed)
        object.__setattr__(self, "orders", tuple(alphas.tolist()))
        object.__setattr__(self, "budget_units", tuple(units))
        return self
