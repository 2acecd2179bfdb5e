"""Amounts in the unit of a measure, as the epsilon that they imply: never less than holds.

A policy has its budget in the unit of its measure, and no delta: what it implies has an epsilon for
every delta. So whoever is told an epsilon is told the delta beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accounting import from_units_down, gdp_to_epsilon, renyi_to_epsilon, zcdp_to_epsilon
from streams.ledger.policies import has_own_orders, measure_of
from streams.schemas import Measure, Policy


def implied_epsilon(
    measure: Measure, stated: Sequence[float], orders: Sequence[float], delta: float
) -> float:
    """The epsilon that amounts imply at delta.

    Args:
        measure: what they are amounts of.
        stated: in its unit, rounded up; one for each order, or one alone.
        orders: the Rényi orders at which all of them hold; none for other measures.
        delta: above 0 and below 1.
    """
    match measure:
        case "renyi":
            return float(renyi_to_epsilon(orders, np.array(stated), delta))
        case "gdp":
            return float(gdp_to_epsilon(stated[0], delta))
        case "pure-dp":
            return float(stated[0])
    return float(zcdp_to_epsilon(stated[0], delta))


def budget_of(policy: Policy) -> str:
    """The budget in the unit of its measure, rounded down."""
    units = [float(from_units_down(number)) for number in policy.budget]
    match policy.measure:
        case "renyi" if has_own_orders(policy):
            return f"{len(units)} orders, each user its own"
        case "renyi":
            return f"{len(units)} orders"
        case "gdp":
            return f"mu {units[0] ** 0.5:.6g}"
        case "pure-dp":
            return f"epsilon {units[0]:.6g}"
    return f"rho {units[0]:.6g}"


def epsilon_of(policy: Policy, delta: float) -> float:
    """The epsilon that the budget of a dataset guarantees at delta, to each of its users."""
    return _largest_epsilon(policy, policy.budget, delta)


def first_epsilon(policy: Policy, delta: float) -> float:
    """The same of the first increment of odometers: who has no checkpoint has spent no more."""
    return _largest_epsilon(policy, first_increment(policy), delta)


def first_increment(policy: Policy) -> list[int]:
    """In units, at each order: odometers begin with a bound of this, and write when it rises."""
    return [min(pair) for pair in zip(policy.odometer_step, policy.budget, strict=True)]


def _largest_epsilon(policy: Policy, units: Sequence[int], delta: float) -> float:
    stated = measure_of(policy).stated(np.array(units, dtype=np.int64)).tolist()
    if has_own_orders(policy):  # each user has one of the orders, and nobody knows here which
        pairs = zip(policy.orders, stated, strict=True)
        return max(implied_epsilon(policy.measure, [b], [order], delta) for order, b in pairs)
    return implied_epsilon(policy.measure, stated, policy.orders, delta)


def budget_epsilon(policy: Policy, order: float | None, delta: float) -> float:
    """The same for one user, who may be bound to one of the orders."""
    if order is None or order not in policy.orders:
        return epsilon_of(policy, delta)
    at = policy.orders.index(order)
    stated = measure_of(policy).stated(np.array(policy.budget, dtype=np.int64)).tolist()
    return implied_epsilon(policy.measure, [stated[at]], [order], delta)


def spent_epsilon(
    policy: Policy, bound: Sequence[float], order: float | None, delta: float
) -> float | None:
    """The epsilon that an odometer's bound implies at delta; None if it is of another policy.

    Args:
        policy: of the dataset.
        bound: as a checkpoint of the odometer has it.
        order: that the user is bound to, if to one alone.
        delta: above 0 and below 1.
    """
    orders = policy.orders if order is None else [order]
    if measure_of(policy).per_order and len(orders) != len(bound):
        return None
    return implied_epsilon(policy.measure, bound, orders, delta)


def spent_share(policy: Policy, bound: Sequence[float], order: float | None) -> float | None:
    """How much of the budget an odometer's bound is, 0 to 1, as the measure counts it.

    Where there are several orders, it is that of the order at which most is spent.
    """
    budget = measure_of(policy).stated(np.array(policy.budget, dtype=np.int64)).tolist()
    if order is not None:
        budget = [b for at, b in zip(policy.orders, budget, strict=True) if at == order]
    if len(budget) != len(bound):
        return None
    power = measure_of(policy).power
    shares = (spent / whole for spent, whole in zip(bound, budget, strict=True))
    return min(1.0, float(max(shares)) ** power)
