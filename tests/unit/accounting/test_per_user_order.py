"""The per-user order: which it is, and which orders there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    PoissonGaussian,
    best_order,
    candidate_orders,
    renyi_budgets,
    renyi_cost,
    renyi_to_delta,
)

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
