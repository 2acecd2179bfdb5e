"""Filters and odometers against an adversary who sees everything, audited in exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from runpy import run_path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MEASURES,
    BudgetFilter,
    Gaussian,
    GdpFilter,
    PureDP,
    RenyiFilter,
    ZcdpFilter,
    cost_units,
    zcdp_budget,
)
from accounting.release import ExactNoise
from tests.examples import examples
from tests.readme import TOP
from tests.unit.accounting import rational_model as exact
from tests.unit.accounting.granting import grant_units

ORDERS = [2.0, 3.5, 32.0]

# What each filter promises, as exact numbers in its own unit.
FILTERS: list[tuple[BudgetFilter, list[Fraction]]] = [
    (ZcdpFilter(0.3), [Fraction(0.3)]),
    (ZcdpFilter(1.0), [Fraction(1)]),
    (ZcdpFilter(1 / 3), [Fraction(1 / 3)]),
    (ZcdpFilter(2.0**-44 * 1.75), [Fraction(7, 2**46)]),
    (ZcdpFilter(0.0), [Fraction(0)]),
    (GdpFilter(0.7), [Fraction(0.7) ** 2]),
    (ZcdpFilter(zcdp_budget(1.0, 1e-5)), [Fraction(zcdp_budget(1.0, 1e-5))]),
    (RenyiFilter(ORDERS, [0.3, 0.7, 9.0]), [Fraction(0.3), Fraction(0.7), Fraction(9.0)]),
    (RenyiFilter(ORDERS, [0.25, 1 / 3, 0.0]), [Fraction(1, 4), Fraction(1 / 3), Fraction(0)]),
]
every_filter = pytest.mark.parametrize(
    ("rule", "budgets"), FILTERS, ids=lambda value: type(value).__name__
)

one_number = pytest.mark.parametrize("make", [ZcdpFilter.from_units, GdpFilter.from_units])

# A move turns what is left, and the budget, into the next cost.
MOVES: list[Callable[[float, float], float]] = [
    lambda left, budget: left,
    lambda left, budget: math.nextafter(left, math.inf),
    lambda left, budget: math.nextafter(left, 0.0),
    lambda left, budget: left / 2,
    lambda left, budget: left / 3,
    lambda left, budget: left - 2.0**-44,
    lambda left, budget: left + 2.0**-45,
    lambda left, budget: 2.0 * left,
    lambda left, budget: budget,
    lambda left, budget: budget / 7,
    lambda left, budget: 5e-324,
    lambda left, budget: 1e-17,
    lambda left, budget: 0.1,
    lambda left, budget: 0.2,
    lambda left, budget: 0.0,
    lambda left, budget: math.inf,
]
moves = st.lists(st.integers(0, len(MOVES) - 1), max_size=25)


@every_filter
@examples(60)
@given(data=st.data(), choices=moves)
def test_whole_units_decide(
    rule: BudgetFilter, budgets: list[Fraction], data: st.DataObject, choices: list[int]
) -> None:
    state, units = rule.initial_state(1), [0] * len(budgets)
    for choice in choices:
        whole_left = [b // exact.UNIT - s for s, b in zip(units, budgets, strict=True)]
        left = rule.remaining(state).reshape(-1).tolist()
        assert left == [exact.largest_float_at_most(number * exact.UNIT) for number in whole_left]
        assert rule.exhausted(state)[0] == (0.0 in left)
        aim = data.draw(st.integers(0, len(budgets) - 1))
        costs = [max(MOVES[choice](left[aim], float(budgets[aim])), 0.0)] * len(budgets)
        if data.draw(st.booleans()):  # at this order alone
            costs = [cost if order == aim else 0.0 for order, cost in enumerate(costs)]
        state, admitted = rule.admit(state, np.array(costs).reshape(state.shape))
        exact_costs = [Fraction(min(cost, 2.0**20)) for cost in costs]
        assert bool(admitted[0]) == exact.fits(units, exact_costs, budgets)
        if admitted[0]:
            units = [s + exact.units(c) for s, c in zip(units, exact_costs, strict=True)]
        assert state.reshape(-1).tolist() == units


@every_filter
@examples(60)
@given(data=st.data(), choices=st.lists(st.integers(0, 4), max_size=12))
def test_no_mixture_of_float_unit_and_norm_costs_exceeds_a_budget(
    rule: BudgetFilter, budgets: list[Fraction], data: st.DataObject, choices: list[int]
) -> None:
    factors = [Fraction(a) for a in getattr(rule, "orders", [2.0 if rule.measure == "gdp" else 1])]
    state, spent = rule.initial_state(1), [Fraction(0)] * len(budgets)
    for choice in choices:
        left = rule.remaining(state).reshape(-1).tolist()
        move = MOVES[data.draw(st.integers(0, len(MOVES) - 1))]
        wanted = min(max(move(min(left), float(max(budgets))), 0.0), 1e9)
        if choice == 0:
            costs = [Fraction(wanted)] * len(budgets)
            state, admitted = rule.admit(state, np.full(state.shape, wanted))
        elif choice == 1:
            units = cost_units(np.full(state.shape, wanted))
            costs = [Fraction(number) * exact.UNIT for number in units.reshape(-1).tolist()]
            state, admitted = rule.admit_units(state, units)
        else:
            norm = math.sqrt(2.0 * wanted)
            admitted = np.array([True])
            if choice == 2:
                state, granted = rule.grant(state, Gaussian(1.0), [norm])
                norm = float(granted[0])
            else:
                state, admitted = rule.admit_norms(state, Gaussian(1.0), [norm])
            costs = [factor * exact.rho(norm, 1.0) for factor in factors]
        if admitted[0]:
            spent = [total + cost for total, cost in zip(spent, costs, strict=True)]
        assert all(total <= budget for total, budget in zip(spent, budgets, strict=True))
        # What is recorded is never less than what was spent.
        recorded = [Fraction(int(number)) * exact.UNIT for number in state.reshape(-1)]
        assert all(total <= number for total, number in zip(spent, recorded, strict=True))


@pytest.mark.parametrize(
    "rule",
    [
        ZcdpFilter(0.0),
        ZcdpFilter.from_units(0),
        GdpFilter(0.0),
        RenyiFilter([2.0, 3.0], [0.0, 0.0]),
        RenyiFilter([2.0, 3.0], [0.0, 1.0]),
        RenyiFilter.from_units([2.0], [0]),
    ],
)
def test_a_budget_of_nothing_lets_free_steps_pass_and_nothing_else(rule: BudgetFilter) -> None:
    state = rule.initial_state(2)
    for cost in (5e-324, 1.0, math.inf):
        assert not rule.admit(state, np.full(state.shape, cost))[1].any()
    assert rule.admit(state, np.zeros(state.shape))[1].all()
    assert rule.admit_norms(state, Gaussian(1.0), [0.0, 1e-300])[1].tolist() == [True, False]
    assert rule.exhausted(state).all()
    new_state, granted, charged = grant_units(rule, state, Gaussian(1.0), [0.0, 1.0])
    np.testing.assert_array_equal(new_state, state)
    assert granted.tolist() == [0.0, 0.0]
    assert not charged.any()


@one_number
@pytest.mark.parametrize("users", [0, 1, 32_767, 32_768, 32_769, 70_001])
def test_a_batch_of_many_blocks_is_decided_user_by_user(
    make: Callable[[int], BudgetFilter], users: int
) -> None:
    rule, rng = make(1000), np.random.default_rng(users)
    state, charge = rng.integers(0, 1001, users), rng.integers(0, 1001, users)
    state[users // 2 :] //= 1000  # a stretch in which nobody is denied
    charge[users // 2 :] //= 2
    new_state, admitted = rule.admit_units(state, charge)
    pairs = list(zip(state.tolist(), charge.tolist(), strict=True))
    assert admitted.tolist() == [spent + cost <= 1000 for spent, cost in pairs]
    assert new_state.tolist() == [
        spent + cost if spent + cost <= 1000 else spent for spent, cost in pairs
    ]


@every_filter
@examples(40)
@given(
    runs=st.lists(st.lists(exact.usual_norm, max_size=6), min_size=2, max_size=3), data=st.data()
)
def test_runs_that_interleave_spend_one_budget_in_any_order(
    rule: BudgetFilter, budgets: list[Fraction], runs: list[list[float]], data: st.DataObject
) -> None:
    """Each run sees what all of them released, and asks for a step that depends on it."""
    factors = [Fraction(a) for a in getattr(rule, "orders", [2.0 if rule.measure == "gdp" else 1])]
    turns = data.draw(st.permutations([i for i, run in enumerate(runs) for _ in run]))
    waiting = [list(run) for run in runs]
    state, spent = rule.initial_state(1), [Fraction(0)] * len(budgets)
    for turn in turns:
        norm = waiting[turn].pop() * (0.5 if rule.exhausted(state)[0] else 1.0)
        state, admitted = rule.admit_norms(state, Gaussian(4.0), [norm])
        if admitted[0]:
            cost = exact.rho(norm, 4.0)
            spent = [total + factor * cost for total, factor in zip(spent, factors, strict=True)]
        assert all(total <= budget for total, budget in zip(spent, budgets, strict=True))


def test_interactive_releases_are_charged_in_full_before_their_first_answer() -> None:
    """A counter and a sparse vector, asked in turns with the steps of a run."""
    example, rule = run_path(str(TOP / "examples" / "private_statistics.py")), ZcdpFilter(1.0)
    counter = example["ContinualCounter"](8, 0.25, ExactNoise())
    sparse = example["SparseVector"](3, 0.5, ExactNoise())
    state, spent = rule.initial_state(1), 0
    for mechanism, norm in ((Gaussian(counter.noise_stddev), counter.norm), (PureDP(), 0.5)):
        spent += int(MEASURES["zcdp"].charge_units(mechanism, [norm])[0])
        state, admitted = rule.admit_norms(state, mechanism, [norm])
        assert admitted[0]
    assert spent <= 2**42 + 2**41
    for step in range(8):
        counter.add(1)
        sparse.above(step - 100)
        state, admitted = rule.admit_norms(state, Gaussian(4.0), [1.0])
        assert admitted[0]
        # The answers cost nothing beyond what was charged before the first.
        assert state[0] == spent + (step + 1) * 2**39
