"""Budgets and bounds as people read them: in the measure's unit, as an epsilon, as a share.

An epsilon is always shown with its delta. The budget's epsilon and the epsilon of what a user has
spent are two statements. Each holds by itself at that delta, and neither replaces the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accounting import InvalidInput, from_units_down
from streams.ledger.policies import has_per_user_order, measure_of
from streams.records import Policy


def budget_of(policy: Policy) -> str:
    """The budget in the unit of its measure, rounded down."""
    units = [float(from_units_down(number)) for number in policy.budget]
    match policy.measure:
        case "renyi" if has_per_user_order(policy):
            return f"{len(units)} orders, each user its own"
        case "renyi":
            return f"{len(units)} orders"
        case "gdp":
            return f"mu {units[0] ** 0.5:.6g}"
        case "pure-dp":
            return f"epsilon {units[0]:.6g}"
    return f"rho {units[0]:.6g}"


def budget_epsilon(policy: Policy, order: float | None, delta: float) -> float:
    """Return the epsilon that the budget guarantees to one user.

    Args:
        policy: of the dataset.
        order: the user's own Rényi order, if the user has one.
        delta: of the guarantee, strictly between 0 and 1.
    """
    if order is None or order not in policy.orders:
        return policy.epsilon(delta)
    at, row = policy.orders.index(order), measure_of(policy)
    return row.epsilon(row.stated(np.array(policy.budget[at : at + 1])), delta, [order])


def spent_epsilon(
    policy: Policy, bound: Sequence[float], order: float | None, delta: float
) -> float | None:
    """Return the any-time epsilon of an odometer's bound.

    None if norm levels may follow sampling coins, because only the budget has an epsilon then, or
    if the bound is of another policy.

    Args:
        policy: of the dataset.
        bound: of an odometer record.
        order: the user's own Rényi order, if the user has one.
        delta: of the guarantee, strictly between 0 and 1.
    """
    if policy.has_sampled_levels or spent_share(policy, bound, order) is None:
        return None
    return policy.spent_epsilon(bound, order, delta)


def first_epsilon(policy: Policy, delta: float) -> float | None:
    """Return the any-time epsilon of a user without an odometer record.

    None if norm levels may follow sampling coins, because only the budget has an epsilon then.

    Args:
        policy: of the dataset.
        delta: of the guarantee, strictly between 0 and 1.
    """
    return None if policy.has_sampled_levels else policy.first_epsilon(delta)


def spent_share(policy: Policy, bound: Sequence[float], order: float | None) -> float | None:
    """Return `Policy.spent_share`; None if the bound is of another policy."""
    try:
        return policy.spent_share(bound, order)
    except InvalidInput:
        return None
