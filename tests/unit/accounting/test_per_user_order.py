"""The per-user order: which it is, and that its filter is the Rényi filter of that order alone."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MEASURES,
    Gaussian,
    InvalidInput,
    Laplace,
    Mechanism,
    PerUserOrderFilter,
    PoissonGaussian,
    RenyiFilter,
    best_order,
    candidate_orders,
    renyi_budgets,
    renyi_cost,
    renyi_to_delta,
)
from tests.unit.accounting.refusals import refused

MECHANISMS: list[Mechanism] = [Gaussian(2.0), PoissonGaussian(1.0, 0.05), Laplace(3.0)]
units = st.integers(0, 2**61)


@given(st.lists(st.lists(st.integers(0, 2**62), min_size=3, max_size=3)), st.tuples(*[units] * 3))
def test_the_per_user_order_admits_most_steps_of_the_charge(
    rows: list[list[int]], budgets: tuple[int, ...]
) -> None:
    costs = np.array(rows, dtype=np.int64).reshape(-1, 3)
    chosen = best_order(costs, budgets)
    assert chosen.dtype == np.uint8
    for row, index in zip(rows, chosen.tolist(), strict=True):
        steps = [budget // max(cost, 1) for budget, cost in zip(budgets, row, strict=True)]
        assert steps[index] == max(steps)
        quotients = [float(b) / float(max(c, 1)) for b, c in zip(budgets, row, strict=True)]
        level = [q if s == max(steps) else -1.0 for q, s in zip(quotients, steps, strict=True)]
        assert index == level.index(max(level))


def test_a_charge_of_nothing_has_the_largest_budget_and_one_too_large_the_nearest() -> None:
    assert best_order(np.array([[0, 0, 0], [9, 8, 20]]), [4, 5, 7]).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("costs", "budgets"),
    [
        (np.zeros((2, 3), dtype=np.int64), [1, 2]),
        (np.zeros(3, dtype=np.int64), [1, 2, 3]),
        (np.zeros((2, 257), dtype=np.int64), [1] * 257),
        (np.zeros((2, 0), dtype=np.int64), []),
        (np.full((2, 1), -1), [1]),
        (np.zeros((2, 1), dtype=np.int64), [-1]),
        (np.zeros((2, 1)), [1]),
    ],
)
def test_what_has_no_order_is_refused(costs: np.ndarray, budgets: list[int]) -> None:
    with pytest.raises(InvalidInput):
        best_order(costs, budgets)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
@pytest.mark.parametrize("clip", [False, True])
def test_each_user_has_the_renyi_filter_of_the_per_user_order(
    mechanism: Mechanism, clip: bool
) -> None:
    orders, budgets = [2.0, 5.5, 16.0], [0.3, 0.9, 2.0]
    rule = PerUserOrderFilter(orders, budgets)
    rng = np.random.default_rng(3)
    order = rng.integers(0, 3, 40).astype(np.uint8)
    spent = rule.initial_state(40)
    singles = [
        RenyiFilter.from_units([a], [b]) for a, b in zip(orders, rule.budget_units, strict=True)
    ]
    states = [singles[index].initial_state(1) for index in order.tolist()]
    for _ in range(30):
        norms = rng.uniform(0.0, 1.0, 40)
        before = spent
        if clip:
            spent, granted, charged = rule.grant_units(spent, order, mechanism, norms)
            assert (charged == spent - before).all()
        else:
            spent, admitted = rule.admit_norms(spent, order, mechanism, norms)
        for user, index in enumerate(order.tolist()):
            if clip:
                states[user], alone, _ = singles[index].grant_units(
                    states[user], mechanism, norms[user : user + 1]
                )
                assert granted[user] == alone[0]
            else:
                states[user], one = singles[index].admit_norms(
                    states[user], mechanism, norms[user : user + 1]
                )
                assert admitted[user] == one[0]
            assert spent[user] == states[user][0, 0]
    alone_left = [
        singles[i].remaining(state)[0, 0] for i, state in zip(order.tolist(), states, strict=True)
    ]
    assert rule.remaining(spent, order).tolist() == alone_left
    assert rule.exhausted(spent, order).tolist() == [
        bool(singles[i].exhausted(state)[0])
        for i, state in zip(order.tolist(), states, strict=True)
    ]


def test_what_several_filters_grant_is_charged_at_the_per_user_order() -> None:
    orders, budgets = [2.0, 5.5, 16.0], [2**44, 2**45, 2**46]
    rule, step = PerUserOrderFilter.from_units(orders, budgets), Gaussian(1.0)
    rng = np.random.default_rng(4)
    order = rng.integers(0, 3, 200).astype(np.uint8)
    spent = (np.array(budgets)[order] * rng.choice([0.0, 0.5, 0.97, 1.0], 200)).astype(np.int64)
    norms = rng.uniform(0.0, 2.0, 200)
    _, alone, charged_alone = rule.grant_units(spent, order, step, norms)
    granted = np.where(rng.random(200) < 0.5, alone, alone * rng.uniform(0.0, 1.0, 200))
    charged = rule.charge_granted(spent, order, step, norms, granted)
    assert (charged == charged_alone)[granted == alone].all()
    for user, index in enumerate(order.tolist()):
        single = RenyiFilter.from_units([orders[index]], [budgets[index]])
        state, one = spent[user : user + 1, np.newaxis], slice(user, user + 1)
        expected = single.charge_granted(state, step, norms[one], granted[one])
        assert charged[user] == expected[0, 0]
    with refused("granted"):
        rule.charge_granted(spent, order, step, norms, granted[:-1])
    with refused("granted"):
        rule.charge_granted(spent, order, step, norms, norms + 1.0)


@given(st.data())
def test_no_sequence_of_charges_spends_more_than_the_budget_of_the_per_user_order(
    data: st.DataObject,
) -> None:
    rule = PerUserOrderFilter.from_units([2.0, 4.0], [100, 70])
    order = np.array([0, 1], dtype=np.uint8)
    spent = rule.initial_state(2)
    for _ in range(20):
        cost = np.array(data.draw(st.tuples(st.integers(0, 60), st.integers(0, 60))))
        total, admitted = rule.admit_units(spent, order, cost)
        assert admitted.tolist() == [
            s + c <= b for s, c, b in zip(spent, cost, (100, 70), strict=True)
        ]
        assert (total == spent + cost * admitted).all()
        spent = total


def test_states_and_orders_that_are_none_are_refused() -> None:
    rule = PerUserOrderFilter.from_units([2.0, 4.0], [100, 70])
    good = np.array([0, 1], dtype=np.uint8)
    cost = np.array([1, 1])
    for spent, order in [
        (np.array([0, 71]), good),
        (np.array([0, -1]), good),
        (np.array([0]), good),
        (np.array([0, 0]), np.array([0, 2], dtype=np.uint8)),
        (np.array([0, 0]), np.array([0, 1])),
    ]:
        with pytest.raises(InvalidInput):
            rule.admit_units(spent, order, cost)
    with pytest.raises(InvalidInput):
        rule.admit_units(np.array([0, 0]), good, np.array([1]))
    with pytest.raises(InvalidInput):
        PerUserOrderFilter([2.0], [1.0, 2.0])
    with pytest.raises(InvalidInput):
        rule.charge_units(good, Gaussian(1.0), [1.0])


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_every_rung_of_the_ladder_alone_implies_the_target(epsilon: float, delta: float) -> None:
    ladder = candidate_orders(epsilon, delta)
    assert 8 <= ladder.orders.size <= 32
    assert (np.diff(ladder.orders) > 0.0).all()
    assert (ladder.budgets == renyi_budgets(epsilon, delta, ladder.orders)).all()
    for order, budget in zip(*ladder, strict=True):
        assert budget > 0.0
        assert renyi_to_delta([order], [budget], epsilon) <= delta


def test_a_target_that_no_order_implies_has_no_ladder() -> None:
    with refused("epsilon"):
        candidate_orders(0.0, 1e-300)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_ladder_admits_nearly_as_many_steps_as_the_best_order_of_all(epsilon: float) -> None:
    ladder = candidate_orders(epsilon, 1e-5)
    orders = 1.0 + np.exp2(np.arange(-6 * 16, 10 * 16) / 16.0)
    budgets = renyi_budgets(epsilon, 1e-5, orders)
    for noise, rate in [(0.5, 1e-3), (0.8, 1e-3), (1.1, 1e-2), (5.0, 1.0)]:
        mechanism, norms = PoissonGaussian(noise, rate), [0.02, 0.1, 0.3, 1.0]
        best = (budgets / renyi_cost(mechanism, norms, orders)).max(axis=1)
        ours = (ladder.budgets / renyi_cost(mechanism, norms, ladder.orders)).max(axis=1)
        assert ((ours >= 0.98 * best) | (best < 50)).all()


def test_a_user_of_small_norms_takes_part_in_millions_of_steps_at_a_high_order() -> None:
    """At (1, 1e-5), rate 0.001, noise 0.8 C: 3.9 million steps at 0.1 C, at an order near 18."""
    ladder = candidate_orders(1.0, 1e-5)
    rule = PerUserOrderFilter(*ladder)
    charges = MEASURES["renyi"].cost_table(PoissonGaussian(0.8, 1e-3), 1.0, 10, ladder.orders)
    small, worst = best_order(charges[[1, 10]], rule.budget_units).tolist()
    assert 17.0 <= ladder.orders[small] <= 19.0
    assert 9.0 <= ladder.orders[worst] <= 10.0
    steps = [Fraction(rule.budget_units[i], int(charges[1, i])) for i in (small, worst)]
    assert 3.8e6 <= steps[0] <= 4.0e6
    assert math.floor(steps[1]) < 0.4e6


def test_a_step_of_nobody_is_granted_and_admitted() -> None:
    rule = PerUserOrderFilter.from_units([2.0, 8.0], [10, 20])
    nobody, order = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint8)
    spent, granted, charged = rule.grant_units(nobody, order, Gaussian(1.0), np.empty(0))
    assert spent.shape == granted.shape == charged.shape == (0,)
    assert rule.admit_units(nobody, order, nobody)[1].shape == (0,)
