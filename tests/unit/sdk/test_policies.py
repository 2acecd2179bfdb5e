"""From a guarantee to a policy: never more than was promised, and errors that help."""

from fractions import Fraction

import pytest
from msgspec import structs

from accounting import budget_units, candidate_orders, gdp_budget, renyi_budgets, zcdp_budget
from streams.records import Policy
from streams.records.terms import TERMS
from streams.sdk.dataset_requests import policy_from
from streams.sdk.errors import InvalidRequest


def policy(name="d", **arguments) -> Policy:
    return policy_from(name, partitions=4, **{"measure": "zcdp", **arguments})


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


def test_pure_dp_needs_no_delta():
    assert policy(measure="pure-dp", epsilon=0.5).budget == [UNIT // 2]
    assert policy(measure="pure-dp", epsilon=0.5, delta=1e-6).budget == [UNIT // 2]


WHOLE = policy("whole", budget=1, user_ids="integer")
OWN_ORDER = policy("own", measure="renyi", epsilon=1.0, delta=1e-5)
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
    {"measure": "renyi", "budget": [1], "orders": "2"},
    {"budget": []},
    {"budget": 1, "parents": ["a", 5]},
    {"budget": 1, "parents": "d"},
    {"budget": 1, "sampled_levels": 3},
    {"budget": 1, "assume_independent_timing": "yes"},
    {"budget": 1, "sampling_rate": 0.5},
    {"budget": 1, "share": 0.5},
    {"share_of": "whole", "share": 0.5},
    {"share_of": WHOLE},
    {"share_of": WHOLE, "share": 2},
    {"share_of": WHOLE, "share": 1e-20},
    {"share_of": WHOLE, "share": 0.5, "budget": 1},
    {"share_of": WHOLE, "share": 0.5, "epsilon": 1, "delta": 1e-5},
    {"share_of": WHOLE, "share": 0.5, "orders": [2]},
    {"share_of": WHOLE, "share": 0.5, "parents": "other"},
    {"share_of": WHOLE, "share": 0.5, "user_ids": "string"},
    {"share_of": OWN_ORDER, "share": 0.5},
    {"share_of": "d", "share": 0.5},
    {"measure": "steps", "budget": 1},
    {"measure": "gdp", "budget": 1, "noise_multiplier": 2.0},
    {"measure": "steps", "budget": 3, "noise_multiplier": 2.0, "on_exhaustion": "clip"},
    {"measure": "steps", "epsilon": 1e-3, "delta": 1e-9, "noise_multiplier": 0.5},
    {"measure": "steps", "budget": 1.5, "noise_multiplier": 1.0},
    {"measure": "steps", "budget": [], "noise_multiplier": 1.0},
    {"budget": 1, "pseudonyms": "0" * 16, "user_ids": "string"},
    {"budget": 1, "allow": {}},
]


@pytest.mark.parametrize("arguments", UNUSABLE)
def test_invalid_policy_is_rejected(arguments):
    with pytest.raises(InvalidRequest):
        policy(**arguments)


def test_unknown_term_is_rejected_even_without_a_value():
    with pytest.raises(TypeError):
        policy(budget=1, epsilom=None)


def test_every_field_of_a_policy_is_a_term_or_follows():
    fields = {field.name for field in structs.fields(Policy)}
    assert fields - TERMS.keys() == {"dataset", "partitions", "pseudonyms", "per_user_order"}
    assert TERMS.keys() - fields == {"epsilon", "delta", "share"}
