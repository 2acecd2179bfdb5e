"""A ladder of Rényi orders for one (epsilon, delta), of which each user has one."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from accounting.conversions.renyi import renyi_budgets
from accounting.exact.errors import InvalidInput
from accounting.exact.units import UNIT_BITS
from accounting.exact.validation import FloatArray

RUNGS: Final = 32
_SEARCHED: Final = np.exp2(np.arange(-20 * 32, 39 * 32) / 32.0)  # distances of orders from 1
_DIGITS: Final = 2.0**8  # short orders are exact, are multiplied fast, and can be read


class Ladder(NamedTuple):
    """Orders, rising, each with the largest budget, in nats, that alone implies the target; (k,).

    Some are so near to one another that rounding makes them one: k is at most `RUNGS`.
    """

    orders: FloatArray
    budgets: FloatArray


def ladder_for(epsilon: float, delta: float) -> Ladder:
    """Return orders that between them serve every charge nearly as well as its best order does.

    They reach from where a budget for (epsilon, delta) begins to where budget / order is largest.
    Beyond, no order is better: Gaussian steps cost in proportion to the order, sampled ones more
    than that. Budgets are about e - log(1/delta) / (order - 1), so the distances from 1 are spaced
    evenly in their inverse, which spaces the budgets evenly. For steps of the sampled Gaussian with
    noise of half the clip bound or more, the best rung admits within 2% of what the best of all
    real orders does, if that is 50 steps or more.

    One filter of one of these orders implies (epsilon, delta) for its user
    (`accounting.filters.per_user_order`).

    Args:
        epsilon: nats, > 0.
        delta: strictly between 0 and 1.

    Raises:
        InvalidInput: for other arguments, or if no order has a budget of one unit.
    """
    usable, best = _ends(epsilon, delta)
    distances = 1.0 / np.linspace(1.0 / usable, 1.0 / best, RUNGS + 1)[1:]
    digits, exponents = np.frexp(distances)
    orders = 1.0 + np.ldexp(np.round(digits * _DIGITS) / _DIGITS, exponents)
    orders = np.unique(orders)
    budgets = renyi_budgets(epsilon, delta, orders)
    kept = budgets >= 2.0**-UNIT_BITS
    return Ladder(orders[kept], budgets[kept])


def _ends(epsilon: float, delta: float) -> tuple[float, float]:
    """Return how far from 1 the first order with a budget is, and the best for Gaussian steps."""
    budgets = renyi_budgets(epsilon, delta, 1.0 + _SEARCHED)
    usable = np.flatnonzero(budgets >= 2.0**-UNIT_BITS)
    if not usable.size:
        raise InvalidInput("epsilon", epsilon, "large enough for a budget of 2**-44 at some order")
    best = int(np.argmax(budgets / (1.0 + _SEARCHED)))
    return float(_SEARCHED[usable[0]]), float(_SEARCHED[best])
