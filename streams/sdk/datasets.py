"""From a guarantee in the words of people to a policy in whole units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import msgspec

from accounting import InvalidInput, budget_units, gdp_budget, zcdp_budget
from streams.policies import check_policy
from streams.schemas import Measure, OnExhaustion, Policy, Refused
from streams.sdk.errors import InvalidCharge

_ODOMETER_STEPS = 8


def policy_from(
    name: str,
    *,
    partitions: int,
    measure: Measure,
    epsilon: float | None,
    delta: float | None,
    budget: float | Sequence[float] | None,
    orders: Sequence[float] | None,
    odometer_step: float | Sequence[float] | None,
    on_exhaustion: OnExhaustion,
) -> Policy:
    """The policy that promises no more than what is asked for; budgets are rounded down.

    Raises:
        InvalidCharge: the arguments make no policy.
    """
    given = budget is not None, epsilon is not None or delta is not None
    if given == (True, True) or given == (False, False):
        raise InvalidCharge("give either budget, or epsilon and delta")
    try:
        if budget is None:
            budget = _budget_from(measure, epsilon, delta)
        units = [_units(number, measure, "budget") for number in _numbers(budget)]
        if odometer_step is None:
            steps = [max(1, number // _ODOMETER_STEPS) for number in units]
        else:
            numbers = _numbers(odometer_step)
            steps = [_units(number, measure, "odometer_step") for number in numbers]
        # Through the wire's own types, so that the client refuses what the worker would refuse.
        policy = msgspec.convert(
            {
                "dataset": name,
                "partitions": partitions,
                "measure": measure,
                "budget": units,
                "odometer_step": steps,
                "orders": [float(order) for order in orders or []],
                "on_exhaustion": on_exhaustion,
            },
            Policy,
        )
        check_policy(policy)
    except (msgspec.ValidationError, InvalidInput, TypeError) as error:
        raise InvalidCharge(f"no policy can be made of this: {error}") from error
    except Refused as refused:
        raise InvalidCharge(refused.detail) from refused
    return policy


def _budget_from(measure: Measure, epsilon: float | None, delta: float | None) -> float:
    if epsilon is None or delta is None:
        raise InvalidCharge("epsilon and delta belong together: give both")
    match measure:
        case "zcdp" | "approx-dp":
            return zcdp_budget(epsilon, delta)
        case "gdp":
            return gdp_budget(epsilon, delta)
        case _:
            raise InvalidCharge("measure renyi needs budget, one number per order, and orders")


def _numbers(value: float | Sequence[float]) -> list[float]:
    return [float(number) for number in value] if isinstance(value, Sequence) else [float(value)]


def _units(number: float, measure: Measure, name: str) -> int:
    """Whole units, rounded down; mu counts by its square."""
    if not 0 < number < math.inf:
        raise InvalidCharge(f"{name} is {number}; it must be finite and positive")
    exact = Fraction(number)
    return budget_units(exact * exact if measure == "gdp" else exact)
