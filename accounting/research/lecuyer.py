"""An (epsilon, delta) odometer that holds at every time.

M. Lécuyer, "Practical Privacy Filters and Odometers with Rényi Differential Privacy and
Applications to Differentially Private Deep Learning", arXiv 2103.01379, 2021: at each of k orders a
there is a ladder of Rényi filters (Feldman and Zrnic, Thm 4.3, 4.5) with the budgets

    B_1, 2 B_1, 4 B_1, ...,   B_1 = log(2 k / delta) / (a - 1).

While filter f of order a has not halted, the privacy loss exceeds

    B_f + log(2 k f^2 / delta) / (a - 1)

with probability at most delta / (2 k f^2). Over k orders and f = 1, 2, 3, ... these add up to
delta pi^2 / 12, less than delta. So all hold together, at every time, and the bound is the least of
them over the orders, f being the first filter whose budget the costs so far do not exceed.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    probability,
    renyi_orders,
    unit_array,
    user_count,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import UP, float_toward
from accounting.exact.units import MAX_BUDGET_UNITS, UNIT_BITS, cost_units

BEYOND: Final = MAX_BUDGET_UNITS + 1  # the spend at an order that no rung bounds
_DIGITS: Final = 50  # of the decimal arithmetic for the tables, the same on every machine


class LecuyerOdometer:
    """A bound on epsilon, at `delta`, that may be read and acted upon at any time.

    The guarantee holds for neighbours that differ by adding or removing one user, in either
    direction, and for adaptive costs: with probability at least 1 - delta the privacy loss is at
    most the bound at every time. To stop before the bound exceeds a fixed epsilon is therefore
    (epsilon, delta)-DP. The bound never falls; it depends on the user's data and may be shown to
    that user alone (Feldman and Zrnic, sec. 4.4).

    The state is an int64 array of shape (n, k) that the caller owns: the costs so far at each
    order, in units of 2**-44 nats, rounded up. A user whose costs are 0 at some order has lost
    nothing, and the bound is 0.

    Args:
        orders: k orders, > 1, at most 2**40, all different.
        delta: strictly between 0 and 1.
    """

    def __init__(self, orders: npt.ArrayLike, delta: float) -> None:
        self.orders = tuple(renyi_orders("orders", orders).tolist())
        self.delta = probability("delta", delta)
        self._ladders = [_ladder(order, len(self.orders), self.delta) for order in self.orders]

    def initial_state(self, n: int) -> IntArray:
        """Return the state of n users who have spent nothing, shape (n, k)."""
        return np.zeros((user_count("n", n), len(self.orders)), dtype=np.int64)

    def advance(self, state: IntArray, cost: npt.ArrayLike) -> tuple[IntArray, FloatArray]:
        """Return (new_state, bound) after a step.

        Args:
            state: int64, shape (n, k).
            cost: Rényi divergence at each order, in nats, float64, shape (n, k), >= 0, rounded up;
                infinity makes an order unusable from then on.

        Returns:
            The new state, and the bound: epsilon in nats, float64, shape (n,), rounded up;
            infinite for a user whose costs are above the ladder (131072 nats) at every order.
        """
        spent, charge = unit_array("state", state, BEYOND), cost_units(cost)
        if spent.ndim != 2 or spent.shape[1] != len(self.orders):
            allowed = f"of shape (n, {len(self.orders)}), as returned by initial_state"
            raise InvalidInput("state", spent.shape, allowed)
        if charge.shape != spent.shape:
            raise InvalidInput("cost", charge.shape, f"of the shape of the state, {spent.shape}")
        # spent <= 2**61 + 1 and charge <= 2**62, so the sum is exact.
        total = np.minimum(spent + charge, BEYOND)
        each = [
            bounds[budgets.searchsorted(column)]
            for (budgets, bounds), column in zip(self._ladders, total.T, strict=True)
        ]
        return total, np.asarray(np.min(each, axis=0))


def _ladder(order: float, count: int, delta: float) -> tuple[IntArray, FloatArray]:
    """Return one ladder: (budgets in units, ascending; the bound of each budget).

    The ladder begins with a rung of budget 0, which bounds the loss by 0 without any delta, and
    the bounds end with infinity, for a spend above every budget.
    """
    budgets, bounds = [0], [0.0]
    with localcontext(Context(prec=_DIGITS)):
        a_minus_1, share = Decimal(order) - 1, 2 * count / Decimal(delta)
        budget = share.ln() / a_minus_1 * (1 << UNIT_BITS)
        while (whole := math.floor(budget)) <= MAX_BUDGET_UNITS:
            rung = len(budgets)
            bound = Decimal(whole) / (1 << UNIT_BITS) + (share * rung * rung).ln() / a_minus_1
            budgets.append(whole)
            # The last digits are rounded.
            bounds.append(float_toward(Fraction(bound * (1 + Decimal(10) ** (5 - _DIGITS))), UP))
            budget *= 2
    return np.array(budgets), np.array([*bounds, math.inf])
