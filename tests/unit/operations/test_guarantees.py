"""An epsilon that is shown is never less than what a budget or a bound implies."""

from __future__ import annotations

import numpy as np
import pytest

from accounting import MEASURES, from_units_down, renyi_to_epsilon
from streams.ledger.policies import has_own_orders
from streams.operations.guarantees import epsilon_of, spent_epsilon, spent_share
from streams.schemas import Policy
from streams.sdk.datasets import policy_from

NOTHING = {
    "budget": None,
    "odometer_step": None,
    "on_exhaustion": "halt",
    "user_ids": None,
    "orders": None,
}
ORDERS = [256.0, 512.0, 1024.0]


def policy(measure: str, epsilon: float, delta: float | None, orders: object = None) -> Policy:
    given = {**NOTHING, "orders": orders, "epsilon": epsilon, "delta": delta}
    return policy_from("d", partitions=4, measure=measure, **given)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize(
    ("measure", "orders"),
    [("zcdp", None), ("gdp", None), ("approx-dp", None), ("renyi", None), ("renyi", ORDERS)],
)
def test_a_budget_is_told_as_the_epsilon_that_was_asked_for(measure, orders, epsilon) -> None:
    found = epsilon_of(policy(measure, epsilon, 1e-5, orders), 1e-5)
    assert found <= epsilon * (1 + 1e-6)
    assert found > 0.9 * epsilon


def test_with_own_orders_the_worst_of_them_is_told() -> None:
    kept = policy("renyi", 2.0, 1e-6)
    assert has_own_orders(kept)
    budgets = from_units_down(np.array(kept.budget))
    for order, budget in zip(kept.orders, budgets, strict=True):
        assert epsilon_of(kept, 1e-9) >= renyi_to_epsilon([order], np.array([budget]), 1e-9)


def test_what_was_spent_wholly_is_the_whole_budget() -> None:
    for measure in ("zcdp", "gdp", "approx-dp"):
        kept = policy(measure, 1.0, 1e-5)
        bound = MEASURES[measure].stated(np.array(kept.budget)).tolist()
        assert spent_share(kept, bound, None) == 1.0
        assert spent_epsilon(kept, bound, None, 1e-5) == epsilon_of(kept, 1e-5)
    # mu is counted in its square: half of mu is a quarter of the budget.
    kept = policy("gdp", 1.0, 1e-5)
    half = float(MEASURES["gdp"].stated(np.array(kept.budget))[0]) / 2
    assert spent_share(kept, [half], None) == pytest.approx(0.25)


def test_a_bound_of_another_policy_is_told_as_nothing() -> None:
    kept = policy("renyi", 1.0, 1e-5, ORDERS)
    assert spent_epsilon(kept, [0.1], None, 1e-5) is None
    assert spent_share(kept, [0.1], None) is None
    assert spent_share(kept, [0.1], 3.0) is None  # an order that the policy does not have
