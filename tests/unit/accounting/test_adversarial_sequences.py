"""Filters and odometers against an adversary who sees everything, audited in exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    BudgetFilter,
    ContinualCounter,
    Gaussian,
    GdpFilter,
    RenyiFilter,
    SparseVector,
    ZcdpFilter,
    charge_units,
    cost_units,
    zcdp_budget,
)
from accounting.research import GdpOdometer, RenyiTracker
from accounting.research.lecuyer import LecuyerOdometer
from accounting.research.rogers import RogersFilter
from tests.examples import examples
from tests.unit.accounting import rational_model as exact

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
@given(data=st.data(), choices=moves)
def test_no_adaptive_sequence_exceeds_a_budget(
    rule: BudgetFilter, budgets: list[Fraction], data: st.DataObject, choices: list[int]
) -> None:
    state, spent = rule.initial_state(1), [Fraction(0)] * len(budgets)
    for choice in choices:
        left = rule.remaining(state).reshape(-1).tolist()
        aim = data.draw(st.integers(0, len(budgets) - 1))  # at one order, and as much at others
        cost = max(MOVES[choice](left[aim], float(budgets[aim])), 0.0)
        before, (state, admitted) = state, rule.admit(state, np.full(state.shape, cost))
        if admitted[0]:
            spent = [total + Fraction(cost) for total in spent]
        else:
            np.testing.assert_array_equal(state, before)
            # Denied for a reason: at some order it fits less than the roundings to units.
            slack = (len(choices) + 1) * exact.UNIT
            assert cost == math.inf or any(
                total + Fraction(cost) > budget - slack
                for total, budget in zip(spent, budgets, strict=True)
            )
        assert all(total <= budget for total, budget in zip(spent, budgets, strict=True))


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


@pytest.mark.parametrize("budget", [2.0**-44, 0.75, 1.0, 131072.0])
def test_cost_of_exactly_a_budget_in_whole_units_is_admitted(budget: float) -> None:
    for rule in (ZcdpFilter(budget), RenyiFilter([2.0], [budget])):
        start = rule.initial_state(1)
        above = np.full(start.shape, math.nextafter(budget, math.inf))
        assert rule.remaining(start).reshape(-1).tolist() == [budget]
        assert not rule.admit(start, above)[1][0]
        state, admitted = rule.admit(start, np.full(start.shape, budget))
        assert admitted[0]
        assert rule.exhausted(state)[0]
        assert rule.remaining(state).reshape(-1).tolist() == [0.0]
        assert not rule.admit(state, np.full(start.shape, 5e-324))[1][0]
        assert rule.admit(state, np.zeros(start.shape))[1][0]


@pytest.mark.parametrize("budget", [0.3, 0.1, 2.0**-44 * 1.75, 1 / 3, 131071.9999999])
def test_budget_is_rounded_down_by_less_than_a_unit(budget: float) -> None:
    rule = ZcdpFilter(budget)
    start = rule.initial_state(1)
    (left,) = rule.remaining(start).tolist()
    assert 0 <= Fraction(budget) - Fraction(left) < exact.UNIT
    assert not rule.admit(start, [math.nextafter(left, math.inf)])[1][0]
    state, admitted = rule.admit(start, [left])
    assert admitted[0]
    assert rule.exhausted(state)[0]


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
    new_state, granted, charged = rule.grant_units(state, Gaussian(1.0), [0.0, 1.0])
    np.testing.assert_array_equal(new_state, state)
    assert granted.tolist() == [0.0, 0.0]
    assert not charged.any()


@every_filter
@given(
    steps=st.lists(st.tuples(st.booleans(), exact.usual_norm), min_size=1, max_size=12),
    scale=st.sampled_from([0.3, 1.0, 3.0, 4.0, 10.61]),
)
def test_no_mixture_of_grants_and_admissions_exceeds_a_budget(
    rule: BudgetFilter, budgets: list[Fraction], steps: list[tuple[bool, float]], scale: float
) -> None:
    factors = [Fraction(a) for a in getattr(rule, "orders", [2.0 if rule.measure == "gdp" else 1])]
    state, squares = rule.initial_state(1), Fraction(0)
    for granting, norm in steps:
        if granting:
            state, granted = rule.grant(state, Gaussian(scale), [norm])
            norm, taken = float(granted[0]), True
        else:
            rho = exact.rho(norm, scale)
            costs = [_float_above(factor * rho) for factor in factors]
            state, admitted = rule.admit(state, np.array(costs).reshape(state.shape))
            taken = bool(admitted[0])
        if taken:
            squares += Fraction(norm) ** 2
        for factor, budget in zip(factors, budgets, strict=True):
            assert factor * squares / (2 * Fraction(scale) ** 2) <= budget


def _float_above(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


@one_number
@given(units=st.lists(st.integers(1, 2**50), min_size=1, max_size=12), data=st.data())
def test_costs_that_sum_to_exactly_the_budget_are_all_admitted_in_any_order(
    make: Callable[[int], BudgetFilter], units: list[int], data: st.DataObject
) -> None:
    rule = make(sum(units))
    state = rule.initial_state(1)
    for unit in data.draw(st.permutations(units)):
        state, admitted = rule.admit(state, [unit * 2.0**-44])
        assert admitted[0]
    assert rule.exhausted(state)[0]
    assert not rule.admit(state, [5e-324])[1][0]
    assert rule.admit(state, [0.0])[1][0]


@one_number
@pytest.mark.parametrize("costs", [(0.1, 0.2), (0.2, 0.1), (0.1, 0.1, 0.1)])
def test_three_tenths_are_less_than_their_parts_whatever_float_addition_says(
    make: Callable[[int], BudgetFilter], costs: tuple[float, ...]
) -> None:
    assert sum(map(Fraction, costs)) > Fraction(0.3)
    rule = make(math.floor(Fraction(0.3) * 2**44))
    state, decisions = rule.initial_state(1), []
    for cost in costs:
        state, admitted = rule.admit(state, [cost])
        decisions.append(bool(admitted[0]))
    assert decisions == [True] * (len(costs) - 1) + [False]


@one_number
def test_a_cost_that_float_addition_would_absorb_is_denied(
    make: Callable[[int], BudgetFilter],
) -> None:
    rule = make(2**44)
    assert 1.0 + 1e-17 == 1.0
    state, admitted = rule.admit(rule.initial_state(1), [1.0])
    assert admitted[0]
    for _ in range(3):
        state, admitted = rule.admit(state, [1e-17])
        assert not admitted[0]


@pytest.mark.slow
def test_a_hundred_thousand_tiny_costs_of_one_user_are_counted_one_by_one() -> None:
    steps = 100_000
    rule = ZcdpFilter.from_units(2**44 + steps)
    state, cost = rule.initial_state(1), np.array([1e-18])
    state, _ = rule.admit(state, [1.0])
    for _ in range(steps):
        state, admitted = rule.admit(state, cost)
        assert admitted[0]
    assert rule.exhausted(state)[0]
    assert not rule.admit(state, cost)[1][0]


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


# --------------------------------------------------------------------------------- concurrency


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
    rule = ZcdpFilter(1.0)
    counter = ContinualCounter(8, rho=0.25)
    sparse = SparseVector(3, 0.5)
    stated, state, charged = (counter.cost(), sparse.cost()), rule.initial_state(1), []
    for cost in stated:
        charged.append(charge_units("zcdp", cost.mechanism, [cost.norm]))
        state, admitted = rule.admit_units(state, charged[-1])
        assert admitted[0]
    for step in range(8):
        counter.add(1)
        sparse.above(step - 100)
        state, admitted = rule.admit_norms(state, Gaussian(4.0), [1.0])
        assert admitted[0]
        charged.append(charge_units("zcdp", Gaussian(4.0), [1.0]))
        # What the answers cost is what was stated before the first.
        assert (counter.cost(), sparse.cost()) == stated
        assert state[0] == sum(int(units[0]) for units in charged)
    assert stated[0].rho <= 0.25
    assert stated[1].rho == 0.125


# -------------------------------------------------------------------------------------- Rogers


@pytest.mark.slow
def test_rogers_takes_each_of_many_small_steps_and_not_one_more() -> None:
    rule = RogersFilter(1.0, 1e-5)
    state, steps = rule.initial_state(1), 0
    while True:
        state, admitted = rule.admit(state, [0.002])
        if not admitted[0]:
            break
        steps += 1
    with mpmath.workdps(50):
        eps, log = mpmath.mpf(0.002), -mpmath.log(mpmath.mpf(1e-5))
        c = 1 / (mpmath.mpf("28.04") * log)

        def left_side(k: int) -> mpmath.mpf:
            spread = k * eps**2
            inner = (spread + c) * (1 + mpmath.log(1 + spread / c) / 2) * log
            return k * eps * mpmath.expm1(eps) / 2 + mpmath.sqrt(2 * inner)

        assert left_side(steps) <= 1 < left_side(steps + 1)


@given(choices=moves)
def test_no_adaptive_sequence_exceeds_the_condition_of_rogers(choices: list[int]) -> None:
    rule = RogersFilter(1.0, 1e-5)
    state = rule.initial_state(1)
    with mpmath.workdps(50):
        log = -mpmath.log(mpmath.mpf(1e-5))
        c = 1 / (mpmath.mpf("28.04") * log)
        spread = drift = mpmath.mpf(0)
        for choice in choices:
            cost = max(MOVES[choice](float(rule.remaining(state)[0]), 1.0), 0.0)
            state, admitted = rule.admit(state, [cost])
            if admitted[0]:
                spread += mpmath.mpf(cost) ** 2
                drift += mpmath.mpf(cost) * mpmath.expm1(mpmath.mpf(cost)) / 2
            inner = (spread + c) * (1 + mpmath.log(1 + spread / c) / 2) * log
            assert drift + mpmath.sqrt(2 * inner) <= 1


# ------------------------------------------------------------------------------------ odometers


@pytest.mark.parametrize("odometer", [RenyiTracker(4.0, 0.3), GdpOdometer(0.5)])
@given(choices=moves)
def test_tracker_bound_is_never_below_the_sum_that_an_adversary_aims_at_its_ticks(
    odometer: RenyiTracker | GdpOdometer, choices: list[int]
) -> None:
    state, total, bound = odometer.initial_state(1), Fraction(0), [0.0]
    for choice in choices:
        on_this_tick = (odometer.tick_units - int(state[0, 0])) * 2.0**-44
        cost = max(MOVES[choice](on_this_tick, 0.3), 0.0)
        previous, (state, bound) = bound[0], odometer.advance(state, [cost])
        if cost == math.inf:
            assert bound[0] == math.inf
            return
        total += Fraction(cost)
        assert total <= Fraction(float(bound[0]))
        assert bound[0] >= previous


@given(choices=moves)
def test_lecuyer_bound_is_never_below_the_sum_that_an_adversary_aims_at_its_rungs(
    choices: list[int],
) -> None:
    order, delta = 3.0, 1e-4
    odometer = LecuyerOdometer([order], delta)
    first = math.floor(math.log(2 / delta) / (order - 1) * 2**44)
    state, total, previous = odometer.initial_state(1), Fraction(0), 0.0
    for choice in choices:
        rung = first
        while rung <= int(state[0, 0]):
            rung *= 2
        cost = max(MOVES[choice]((rung - int(state[0, 0])) * 2.0**-44, 1.0), 0.0)
        state, bound = odometer.advance(state, [[cost]])
        if cost == math.inf:
            assert bound[0] == math.inf
            return
        total += Fraction(cost)
        # The loss at any one time is already this much at this delta.
        tail = math.log(1 / delta) / (order - 1) if total else 0.0
        assert float(bound[0]) >= float(total) + tail
        assert bound[0] >= previous
        previous = float(bound[0])


# --------------------------------------------------------------- batches, for what came later

LATER: list[RogersFilter | RenyiTracker | GdpOdometer | LecuyerOdometer] = [
    RogersFilter(1.0, 1e-5),
    RenyiTracker(8.0, 0.3),
    GdpOdometer(0.4),
    LecuyerOdometer([2.0, 16.0], 1e-5),
]


@pytest.mark.parametrize("rule", LATER, ids=lambda rule: type(rule).__name__)
@given(values=st.lists(st.floats(0.0, 0.5), max_size=20), cut=st.integers(0, 20), data=st.data())
def test_splitting_or_permuting_a_batch_changes_nothing(
    rule: RogersFilter | RenyiTracker | GdpOdometer | LecuyerOdometer,
    values: list[float],
    cut: int,
    data: st.DataObject,
) -> None:
    step = rule.admit if isinstance(rule, RogersFilter) else rule.advance
    cost = np.array(values)
    if isinstance(rule, LecuyerOdometer):
        cost = cost[:, np.newaxis] * np.array(rule.orders)
    order = data.draw(st.permutations(range(len(values))))
    start, _ = step(rule.initial_state(len(values)), cost)
    whole, answers = step(start, cost)
    parts = [step(start[:cut], cost[:cut]), step(start[cut:], cost[cut:])]
    np.testing.assert_array_equal(whole, np.concatenate([part[0] for part in parts]))
    np.testing.assert_array_equal(answers, np.concatenate([part[1] for part in parts]))
    permuted = step(start[order], cost[order])
    np.testing.assert_array_equal(permuted[0], whole[order])
    np.testing.assert_array_equal(permuted[1], answers[order])
