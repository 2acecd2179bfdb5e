"""No shown epsilon is below what a budget or a bound implies."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from accounting import MEASURES, InvalidInput, from_units_down, renyi_to_epsilon
from streams.operations.guarantees import budget_epsilon, spent_epsilon, spent_share
from streams.records import OdometerRecord, Policy
from tests.unit.web import test_owner

ORDERS = [256.0, 512.0, 1024.0]


def policy(measure: str, epsilon: float, delta: float, orders: object = None) -> Policy:
    terms = {"measure": measure, "epsilon": epsilon, "delta": delta, "orders": orders}
    return test_owner.policy("d", sampled_levels=False, **terms)


def test_budget_epsilon_is_the_worst_per_user_order() -> None:
    kept = policy("renyi", 2.0, 1e-6)
    assert kept.per_user_order is True
    assert 0.9 * 2.0 < kept.epsilon(1e-6) <= 2.0 * (1 + 1e-6)
    budgets = from_units_down(np.array(kept.budget))
    for order, budget in zip(kept.orders, budgets, strict=True):
        implied = renyi_to_epsilon([order], np.array([budget]), 1e-9)
        assert kept.epsilon(1e-9) >= budget_epsilon(kept, order, 1e-9) >= implied


def test_full_spending_is_the_whole_budget() -> None:
    for measure in ("zcdp", "gdp"):
        kept = policy(measure, 1.0, 1e-5)
        bound = MEASURES[measure].stated(np.array(kept.budget)).tolist()
        assert spent_share(kept, bound, None) == 1.0
        # A spend that is the whole budget holds at a time that may follow outputs, so it is more.
        found = spent_epsilon(kept, bound, None, 1e-5)
        assert kept.epsilon(1e-5) < found < 1.2 * kept.epsilon(1e-5)
    # mu is counted in its square: half of mu is a quarter of the budget.
    kept = policy("gdp", 1.0, 1e-5)
    half = float(MEASURES["gdp"].stated(np.array(kept.budget))[0]) / 2
    assert spent_share(kept, [half], None) == pytest.approx(0.25)


def test_bound_of_another_policy_has_no_epsilon() -> None:
    kept = policy("renyi", 1.0, 1e-5, ORDERS)
    assert spent_epsilon(kept, [0.1], None, 1e-5) is None
    assert spent_share(kept, [0.1], None) is None
    assert spent_share(kept, [0.1], 3.0) is None  # an order that the policy does not have
    assert spent_share(kept, [0.1], 256.0) is None  # an order that is no user's own
    budget = MEASURES["renyi"].stated(np.array(kept.budget)).tolist()
    assert spent_share(kept, [*budget[1:], 2 * budget[-1]], None) is None  # above the budget


@pytest.mark.parametrize("measure", ["zcdp", "gdp", "pure-dp", "renyi"])
def test_no_smaller_epsilon_with_sampled_levels(measure) -> None:
    kept = test_owner.policy("d", measure=measure, sampled_levels=True)
    order = kept.orders[3] if kept.orders else None
    bound = MEASURES[measure].stated(np.array(kept.budget) // 2).tolist()
    bound = bound if order is None else bound[3:4]
    assert spent_epsilon(kept, bound, order, 1e-5) is None
    assert spent_share(kept, bound, order) == pytest.approx(0.5)
    assert 0 < budget_epsilon(kept, order, 1e-5) <= 1.0 + 1e-6
    with pytest.raises(InvalidInput):
        kept.first_epsilon()
    with pytest.raises(InvalidInput):
        odometer(kept, 0.5, bound=bound).epsilon(kept)


def odometer(kept: Policy, share: float, **fields: object) -> OdometerRecord:
    """Return the odometer record of a user who has spent so much of the budget."""
    row = MEASURES[kept.measure]
    bound = row.stated([int(share * units) for units in kept.budget]).tolist()
    given = {"dataset": kept.dataset, "user": 7, "partition": 0, "offset": 3, "bound": bound}
    return OdometerRecord(**(given | fields))


@pytest.mark.parametrize("measure", ["zcdp", "gdp", "pure-dp", "renyi"])
def test_odometer_record_has_the_any_time_epsilon(measure) -> None:
    kept = policy(measure, 1.0, 1e-5, ORDERS if measure == "renyi" else None)
    whole, part = odometer(kept, 1.0), odometer(kept, 0.25)
    row, orders = MEASURES[measure], kept.orders or None
    for one in (whole, part):
        assert one.epsilon(kept) == one.epsilon(kept, 1e-5)
        at_any_time = {"when": "any time", "budget": kept.budget[0]}
        assert one.epsilon(kept) == row.epsilon(one.bound, 1e-5, orders, **at_any_time)
        assert one.epsilon(kept) >= row.epsilon(one.bound, 1e-5, orders)
    assert 0 < part.epsilon(kept) < whole.epsilon(kept)
    # An eighth of the budget, before there is a record.
    assert 0 < kept.first_epsilon(1e-5) < part.epsilon(kept)
    assert kept.epsilon() == kept.epsilon(1e-5)


def test_epsilon_uses_the_own_order() -> None:
    kept = policy("renyi", 2.0, 1e-6)
    at = 3
    one = odometer(kept, 1.0)
    own = odometer(kept, 1.0, bound=one.bound[at : at + 1], order=kept.orders[at])
    assert own.epsilon(kept, 1e-6) == renyi_to_epsilon([kept.orders[at]], own.bound, 1e-6)
    assert own.epsilon(kept, 1e-6) <= 2.0 * (1 + 1e-9)


def test_record_of_another_dataset_is_rejected() -> None:
    kept = policy("zcdp", 1.0, 1e-5)
    for fields in ({"dataset": "e"}, {"bound": [0.1, 0.2]}, {"order": 8.0}, {"bound": [2.0]}):
        with pytest.raises(InvalidInput):
            odometer(kept, 1.0, **fields).epsilon(kept)
    one = odometer(kept, 1.0)
    for wrong in (0.0, 1.0, -1.0, float("nan")):
        for epsilon in (kept.epsilon, kept.first_epsilon, partial(one.epsilon, kept)):
            with pytest.raises(InvalidInput):
                epsilon(wrong)
