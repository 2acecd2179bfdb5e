"""Candidate Rényi orders for one (epsilon, delta): each user is bound to one of them."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from accounting.conversions.renyi import renyi_budgets
from accounting.exact.errors import InvalidInput
from accounting.exact.units import UNIT_BITS
from accounting.exact.validation import FloatArray

MAX_CANDIDATES: Final = 32
_SEARCHED: Final = np.exp2(np.arange(-20 * 32, 39 * 32) / 32.0)  # distances of orders from 1
_DIGITS: Final = 2.0**8  # short orders are exact, are multiplied fast, and can be read


class CandidateOrders(NamedTuple):
    """Rising orders, each with the largest budget in nats that alone implies the target.

    Shape (k,), k at most `MAX_CANDIDATES`: orders that rounding makes equal count once.
    """

    orders: FloatArray
    budgets: FloatArray


def candidate_orders(epsilon: float, delta: float) -> CandidateOrders:
    """Return orders of which one serves every charge nearly as well as the best of all orders.

    They range from the first order with a budget for (epsilon, delta) to the order where
    budget / order is largest. No larger order is better: Gaussian steps cost in proportion to the
    order, and sampled steps more than that. Budgets are about epsilon - log(1/delta) / (order - 1),
    so the distances from 1 are spaced evenly in their inverse, which spaces the budgets evenly. For
    steps of the sampled Gaussian with noise of at least half the clip norm, the best candidate
    admits within 2 % of what the best real order admits, if that is 50 steps or more.

    A filter at one of these orders implies (epsilon, delta) for its user
    (`accounting.filters.per_user_order`).

    Args:
        epsilon: nats, > 0.
        delta: strictly between 0 and 1.

    Raises:
        InvalidInput: for other arguments, or if no order has a budget of one unit.
    """
    usable, best = _ends(epsilon, delta)
    distances = 1.0 / np.linspace(1.0 / usable, 1.0 / best, MAX_CANDIDATES + 1)[1:]
    digits, exponents = np.frexp(distances)
    orders = 1.0 + np.ldexp(np.round(digits * _DIGITS) / _DIGITS, exponents)
    orders = np.unique(orders)
    budgets = renyi_budgets(epsilon, delta, orders)
    kept = budgets >= 2.0**-UNIT_BITS
    return CandidateOrders(orders[kept], budgets[kept])


def _ends(epsilon: float, delta: float) -> tuple[float, float]:
    """Return distances from 1: the first order with a budget, and the best order for Gaussians."""
    budgets = renyi_budgets(epsilon, delta, 1.0 + _SEARCHED)
    usable = np.flatnonzero(budgets >= 2.0**-UNIT_BITS)
    if not usable.size:
        raise InvalidInput("epsilon", epsilon, "large enough for a budget of 2**-44 at some order")
    best = int(np.argmax(budgets / (1.0 + _SEARCHED)))
    return float(_SEARCHED[usable[0]]), float(_SEARCHED[best])
