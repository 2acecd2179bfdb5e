"""The filter at a per-user Rényi order: a Rényi filter at one order, which may differ by user.

A Rényi filter at one order a, with a budget B_a that alone implies (epsilon, delta), gives its user
(epsilon, delta)-DP. The order may differ from user to user, and may be chosen from the user's own
data. It is fixed when the user is enrolled, from that data and the outputs released before.

The theorem and its proof are in ``docs/research/theorems.tex``, "Rényi order per user": the order
is chosen before the user's first contribution. It is new and not peer reviewed.

The running sum at this order, converted with the whole delta, also holds at every stopping time
(`docs/research/odometers.md`), as long as charges do not follow the user's own sampling coins.

"Whichever order still holds" is another rule, and is not proven for costs that are chosen
adaptively. Here the order never changes. The state is one number per user instead of one per order,
and more steps are admitted than if all orders had to hold. Neighbouring datasets differ by adding
or removing one user.

The users of one order have the `RenyiFilter` of that order alone. Here is how the order is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import unit_array
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.units import MAX_BUDGET_UNITS, MAX_COST_UNITS

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
    whole = unit_array("budgets", budgets, MAX_BUDGET_UNITS)
    if whole.ndim != 1 or not 1 <= whole.size <= MAX_ORDERS:
        raise InvalidInput("budgets", whole.shape, f"one per order, at most {MAX_ORDERS}")
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
