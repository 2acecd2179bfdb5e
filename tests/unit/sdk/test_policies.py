"""From a guarantee to a policy: never more than was promised, and errors that help."""

from fractions import Fraction

import pytest
from msgspec import UNSET

from accounting import budget_units, candidate_orders, gdp_budget, renyi_budgets, zcdp_budget
from streams.records import Policy
from streams.sdk.datasets import policy_from
from streams.sdk.errors import InvalidRequest

NOTHING = {
    "partitions": 4,
    "measure": "zcdp",
    "epsilon": None,
    "delta": None,
    "budget": None,
    "orders": None,
    "odometer_step": None,
    "on_exhaustion": "halt",
    "user_ids": None,
}


def policy(name="d", **arguments) -> Policy:
    return policy_from(name, **{**NOTHING, **arguments})


UNIT = 2**44


def test_budgets_are_rounded_down_and_mu_counts_by_its_square():
    rho = zcdp_budget(1.0, 1e-5)
    assert policy(epsilon=1.0, delta=1e-5).budget == [int(Fraction(rho) * UNIT)]
    mu = gdp_budget(1.0, 1e-5)
    assert policy(measure="gdp", epsilon=1.0, delta=1e-5).budget == [int(Fraction(mu) ** 2 * UNIT)]
    assert policy(budget=0.3).budget == [int(Fraction(0.3) * UNIT)]
    assert policy(measure="renyi", orders=[2, 8], budget=[1, 0.1]).budget == [
        UNIT,
        int(Fraction(0.1) * UNIT),
    ]
    own = policy(measure="renyi", epsilon=8.0, delta=1e-5)
    assert own.per_user_order is True
    ladder = candidate_orders(8.0, 1e-5)
    assert own.orders == ladder.orders.tolist()
    assert own.budget == [budget_units(number) for number in ladder.budgets.tolist()]
    budgets = renyi_budgets(8.0, 1e-5, [8, 32])
    assert policy(measure="renyi", orders=[8, 32], epsilon=8.0, delta=1e-5).budget == [
        int(Fraction(number) * UNIT) for number in budgets.tolist()
    ]


def test_user_ids_are_unset_by_default():
    assert policy(budget=1).user_ids is UNSET
    for kind in ("one-kind", "integer", "string", "mixed"):
        assert policy(budget=1, user_ids=kind).user_ids == kind


def test_pure_dp_needs_no_delta():
    assert policy(measure="pure-dp", epsilon=0.5).budget == [UNIT // 2]
    assert policy(measure="pure-dp", epsilon=0.5, delta=1e-6).budget == [UNIT // 2]


UNUSABLE = [
    {"budget": 1, "measure": "vibes"},
    {"budget": 1, "on_exhaustion": "drop"},
    {"budget": 1, "user_ids": "uuid"},
    {"budget": 1, "parents": "a b"},
    {"budget": 1, "parents": ["a", "b c"]},
    {"budget": 1, "parents": [f"d{number}" for number in range(8)]},
    {"budget": 1, "measure": ["zcdp"]},
    {},
    {"budget": 1, "epsilon": 1, "delta": 0.1},
    {"epsilon": 1},
    {"budget": float("nan")},
    {"budget": 0},
    {"budget": 1, "odometer_step": 0},
    {"epsilon": 1, "delta": 2},
    {"measure": "renyi", "budget": [1, 2], "orders": [2]},
    {"measure": "renyi", "budget": [1], "orders": [1.0]},
    {"measure": "renyi", "budget": [1, 1], "orders": [3, 2]},
    {"measure": "renyi", "budget": [1, 2]},
    {"budget": 1, "orders": [2]},
    {"name": "with space", "budget": 1},
    {"epsilon": 1, "delta": 0},
    {"budget": 1e9},
    {"measure": "renyi", "budget": [1], "orders": [2, 4]},
]


@pytest.mark.parametrize("arguments", UNUSABLE)
def test_invalid_policy_is_rejected(arguments):
    with pytest.raises(InvalidRequest):
        policy(**arguments)
