"""On what terms the users of one dataset are charged by tariffs: arrays of units, for many at once.

    orders    a user has                           a charge fits
    "none"    one number; budget and increment     within the budget
    "own"     one number, and the index of the     within the budget of the user's order
              order that it is bound to
    "all"     a number for every order             within all budgets

Fitting is the rule in whole units (`accounting.filters.admission`), and the odometer is that of
`accounting.odometers.advance_units`. In arrays of m users, what is one number has shape
(m,), what is a number per order (m, k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from accounting.costs.tariffs import checked_tariff
from accounting.exact.errors import InvalidInput
from accounting.exact.units import MAX_BUDGET_UNITS
from accounting.exact.validation import IntArray, whole_numbers
from accounting.filters.per_user_order import MAX_ORDERS, OrderArray

Orders: TypeAlias = Literal["none", "own", "all"]


class BalanceColumns(Protocol):
    """The columns of a dataset, a row for every user; the caller owns them.

    They may be longer than there are users, and be replaced by longer ones between calls.

    Attributes:
        spent: units, int64, shape (n,), or (n, k) if orders are "all".
        base: units that were spent when the odometer last restarted, of the shape of `spent`.
        rungs: of the odometer, int64, shape (n,), at the start 1.
        order: uint8, shape (n,), read if orders are "own" and not otherwise.
    """

    spent: IntArray
    base: IntArray
    rungs: IntArray
    order: OrderArray


@dataclass(frozen=True)
class AccountTerms:
    """Budgets and odometer of one dataset.

    Attributes:
        budgets: whole units, one, or one per order.
        increments: of the odometer, units of 1 or more, as many.
        orders: see above.
    """

    budgets: tuple[int, ...]
    increments: tuple[int, ...]
    orders: Orders = "none"

    def __post_init__(self) -> None:
        if self.orders not in get_args(Orders):
            raise InvalidInput("orders", self.orders, f"one of {', '.join(get_args(Orders))}")
        _set_units(self, "budgets", self.budgets, 0)
        _set_units(self, "increments", self.increments, 1)
        count = len(self.budgets)
        if len(self.increments) != count:
            raise InvalidInput("increments", self.increments, f"{count}, as there are budgets")
        most = {"none": 1, "own": MAX_ORDERS, "all": count}[self.orders]
        if not 1 <= count <= most:
            allowed = f"one, or one per order, {MAX_ORDERS} at most if each user has one"
            raise InvalidInput("budgets", self.budgets, allowed)

    def checked_tariff(self, tariff: npt.ArrayLike, levels: int) -> IntArray:
        """Return a tariff of as many levels for these orders, or raise `InvalidInput`."""
        units = checked_tariff(tariff)
        shape = (levels + 1,) if self.orders == "none" else (levels + 1, len(self.budgets))
        if units.shape != shape:
            raise InvalidInput("tariff", units.shape, f"of shape {shape}")
        return np.ascontiguousarray(units)


def _set_units(terms: AccountTerms, name: str, values: Sequence[int], least: int) -> None:
    units = whole_numbers(name, values, least, MAX_BUDGET_UNITS)
    object.__setattr__(terms, name, tuple(units))
