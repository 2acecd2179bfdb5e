"""Filters against an adversary who sees everything, and budget-aware clipping, audited exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MAX_BUDGET_UNITS,
    MAX_COST_UNITS,
    MEASURES,
    BudgetFilter,
    Gaussian,
    GdpFilter,
    Laplace,
    Mechanism,
    PoissonGaussian,
    PureDP,
    PureDPFilter,
    RenyiFilter,
    ZcdpFilter,
    cost_units,
    gdp_cost,
    renyi_cost,
    zcdp_budget,
    zcdp_cost,
    zcdp_to_epsilon,
)
from tests.examples import examples
from tests.unit.accounting import rational_model as exact
from tests.unit.accounting.refusals import refused

ORDERS = [2.0, 3.5, 32.0]
FILTERS: list[tuple[BudgetFilter, list[Fraction]]] = [
    (ZcdpFilter(1 / 3), [Fraction(1 / 3)]),
    (ZcdpFilter(2.0**-44 * 1.75), [Fraction(7, 2**46)]),
    (ZcdpFilter(0.0), [Fraction(0)]),
    (GdpFilter(0.7), [Fraction(0.7) ** 2]),
    (PureDPFilter(1.3), [Fraction(1.3)]),
    (ZcdpFilter(zcdp_budget(1.0, 1e-5)), [Fraction(zcdp_budget(1.0, 1e-5))]),
    (RenyiFilter(ORDERS, [0.3, 0.7, 9.0]), [Fraction(0.3), Fraction(0.7), Fraction(9.0)]),
    (RenyiFilter(ORDERS, [0.25, 1 / 3, 0.0]), [Fraction(1, 4), Fraction(1 / 3), Fraction(0)]),
]
"""Filters, and what each promises, as exact numbers in its own unit."""
every_filter = pytest.mark.parametrize(
    ("rule", "budgets"), FILTERS, ids=lambda value: type(value).__name__
)


def orders_of(rule: BudgetFilter) -> list[float]:
    """Return what a rho is multiplied by to give a cost."""
    return list(getattr(rule, "orders", [2.0 if rule.measure == "gdp" else 1.0]))


def count_admitted(rule: BudgetFilter, cost: np.ndarray) -> int:
    state, count = rule.initial_state(1), 0
    for _ in range(40):
        state, admitted = rule.admit(state, cost)
        count += int(admitted[0])
    return count


# ------------------------------------------------------------------------------------ admission


def test_exactly_32_steps_of_one_thirty_second_are_admitted() -> None:
    step = Gaussian(4.0)
    assert count_admitted(ZcdpFilter(1.0), zcdp_cost(step, [1.0])) == 32
    assert count_admitted(GdpFilter(1.0), gdp_cost(step, [1.0])) == 16
    assert count_admitted(RenyiFilter(ORDERS, ORDERS), renyi_cost(step, [1.0], ORDERS)) == 32


# A move turns what is left, and the budget, into the next cost.
MOVES: list[Callable[[float, float], float]] = [
    lambda left, budget: left,
    lambda left, budget: math.nextafter(left, math.inf),
    lambda left, budget: math.nextafter(left, 0.0),
    lambda left, budget: left / 3,
    lambda left, budget: left - 2.0**-44,
    lambda left, budget: left + 2.0**-45,
    lambda left, budget: 2.0 * left,
    lambda left, budget: budget,
    lambda left, budget: budget / 7,
    *(lambda left, budget, cost=cost: cost for cost in (5e-324, 1e-17, 0.1, 0.2, 0.0, math.inf)),
]


@every_filter
@examples(60)
@given(data=st.data(), moves=st.lists(st.sampled_from(MOVES), max_size=25))
def test_whole_units_decide(
    rule: BudgetFilter, budgets: list[Fraction], data: st.DataObject, moves: list[Callable]
) -> None:
    state, units = rule.initial_state(1), [0] * len(budgets)
    for move in moves:
        whole_left = [b // exact.UNIT - s for s, b in zip(units, budgets, strict=True)]
        left = rule.remaining(state).reshape(-1).tolist()
        assert left == [exact.largest_float_at_most(number * exact.UNIT) for number in whole_left]
        assert rule.exhausted(state)[0] == (0.0 in left)
        aim = data.draw(st.integers(0, len(budgets) - 1))
        costs = [max(move(left[aim], float(budgets[aim])), 0.0)] * len(budgets)
        if data.draw(st.booleans()):  # at this order alone
            costs = [cost if order == aim else 0.0 for order, cost in enumerate(costs)]
        before, copy = state, state.copy()
        state, admitted = rule.admit(state, np.array(costs).reshape(state.shape))
        np.testing.assert_array_equal(before, copy)
        exact_costs = [Fraction(min(cost, 2.0**20)) for cost in costs]
        assert bool(admitted[0]) == exact.fits(units, exact_costs, budgets)
        if admitted[0]:
            units = [s + exact.units(c) for s, c in zip(units, exact_costs, strict=True)]
        assert state.reshape(-1).tolist() == units


@every_filter
@examples(60)
@given(data=st.data(), kinds=st.lists(st.sampled_from(["float", "units", "norm", "grant"])))
def test_no_mixture_of_costs_of_any_run_exceeds_a_budget(
    rule: BudgetFilter, budgets: list[Fraction], data: st.DataObject, kinds: list[str]
) -> None:
    """Requests of several runs that see all outputs are one sequence of costs."""
    step = Laplace(1.0) if rule.measure == "pure-dp" else Gaussian(1.0)
    state, spent = rule.initial_state(1), [Fraction(0)] * len(budgets)
    for kind in kinds:
        left = rule.remaining(state).reshape(-1).tolist()
        wanted = data.draw(st.sampled_from(MOVES))(min(left), float(max(budgets)))
        wanted = min(max(wanted, 0.0), 1e9)
        norm, admitted = math.sqrt(2.0 * wanted), np.array([True])
        if kind == "float":
            costs = [Fraction(wanted)] * len(budgets)
            state, admitted = rule.admit(state, np.full(state.shape, wanted))
        elif kind == "units":
            units = cost_units(np.full(state.shape, wanted))
            costs = [Fraction(number) * exact.UNIT for number in units.reshape(-1).tolist()]
            state, admitted = rule.admit_units(state, units)
        else:
            if kind == "grant":
                state, granted = rule.grant(state, step, [norm])
                norm = float(granted[0])
            else:
                state, admitted = rule.admit_norms(state, step, [norm])
            costs = [Fraction(a) * exact.rho(norm, 1.0) for a in orders_of(rule)]
            costs = [Fraction(norm)] if rule.measure == "pure-dp" else costs
        if admitted[0]:
            spent = [total + cost for total, cost in zip(spent, costs, strict=True)]
        # What is recorded is never less than what was spent.
        recorded = [Fraction(int(number)) * exact.UNIT for number in state.reshape(-1)]
        for total, number, budget in zip(spent, recorded, budgets, strict=True):
            assert total <= number <= budget


@pytest.mark.parametrize("users", [0, 1, 32_768, 70_001])
def test_batch_of_many_blocks_is_decided_user_by_user(users: int) -> None:
    rng = np.random.default_rng(users)
    state, charge = rng.integers(0, 1001, users), rng.integers(0, 1001, users)
    state[users // 2 :] //= 1000  # a stretch in which no user is denied
    charge[users // 2 :] //= 2
    new_state, admitted = ZcdpFilter.from_units(1000).admit_units(state, charge)
    np.testing.assert_array_equal(admitted, state + charge <= 1000)
    np.testing.assert_array_equal(new_state, np.where(admitted, state + charge, state))


def test_no_budget_admits_a_saturated_cost() -> None:
    rule = ZcdpFilter.from_units(MAX_BUDGET_UNITS)
    state, cost = np.array([0, MAX_BUDGET_UNITS]), np.full(2, MAX_COST_UNITS)
    assert not rule.admit_units(state, cost)[1].any()


def test_filters_of_the_same_units_are_equal_and_immutable() -> None:
    assert ZcdpFilter.from_units(2**44) == ZcdpFilter(1.0) != GdpFilter(1.0)
    assert RenyiFilter.from_units([2.0], [2**44]) == RenyiFilter([2.0], [1.0])
    assert RenyiFilter.from_units([3.0], [2**44]) != RenyiFilter([2.0], [1.0])
    assert len({ZcdpFilter(1.0), ZcdpFilter(1.0), ZcdpFilter(2.0)}) == 2
    with pytest.raises(AttributeError):
        ZcdpFilter(1.0).budget_units = (5,)


@given(st.floats(0.1, 20.0), st.floats(-12, -2), st.floats(0.001, 2.0))
def test_admitted_pure_dp_steps_imply_epsilon_and_delta(
    epsilon: float, log10_delta: float, step: float
) -> None:
    delta = 10.0**log10_delta
    rule = ZcdpFilter(zcdp_budget(epsilon, delta))
    state, charge = rule.initial_state(1), MEASURES["zcdp"].charge_units(PureDP(), [step])
    steps = rule.budget_units[0] // int(charge[0])
    state, admitted = rule.admit_units(state, steps * charge)
    assert admitted[0]
    assert not rule.admit(state, zcdp_cost(PureDP(), [step]))[1][0]
    assert zcdp_to_epsilon(steps * step**2 / 2 * (1 - 1e-15), delta) <= epsilon


# ---------------------------------------------------------------------- budget-aware clipping

RULES = [*(rule for rule, _ in FILTERS), RenyiFilter([1.1], [0.3])]


@given(
    norms=st.lists(exact.usual_norm | st.floats(0.0, 1e4), min_size=1, max_size=5),
    scale=exact.usual_scale,
    kind=st.sampled_from([Gaussian, Laplace, lambda noise: PoissonGaussian(noise, 0.3)]),
    orders=st.lists(exact.order, min_size=1, max_size=4, unique=True),
    data=st.data(),
)
def test_least_grant_of_several_filters_fits_all_and_spends_one(
    norms: list[float], scale: float, kind: Callable, orders: list[float], data: st.DataObject
) -> None:
    step: Mechanism = kind(scale)
    budgets = data.draw(st.lists(st.integers(1, 2**50), min_size=len(orders), max_size=len(orders)))
    rules = [rule for rule in RULES if MEASURES[rule.measure].covers(step)]
    rules.append(RenyiFilter.from_units(orders, budgets))
    chosen = data.draw(st.lists(st.sampled_from(rules), min_size=1, max_size=3))
    states, grants = [], []
    for rule in chosen:
        spent = [
            data.draw(st.integers(0, end) | st.just(max(0, end - 3))) for end in rule.budget_units
        ]
        shape = rule.initial_state(len(norms)).shape
        states.append(np.array(spent * len(norms)).reshape(shape))
        grants.append(rule.largest_norms(states[-1], step, norms))
        assert grants[-1][0] == rule.largest_norms(states[-1][:1], step, norms[:1])[0]
    granted = np.min(grants, axis=0)
    clipped = (granted > 0) & (granted < norms)
    closeness = 2.0**-19 if isinstance(step, PoissonGaussian) else 2.0**-40
    larger = np.where(granted > 0, granted * (1 + closeness), 1e-300)
    ended, larger_fits = np.zeros(len(norms), dtype=np.bool_), np.ones(len(norms), dtype=np.bool_)
    for rule, state in zip(chosen, states, strict=True):
        charge = rule.charge_granted(state, step, norms, granted)
        left, cost = rule.budget_units - state, rule.charge_units(step, granted)
        assert (charge <= left).all()
        different = (charge != cost).reshape(len(norms), -1)
        assert (different.sum(axis=1) <= clipped).all()  # one order at most, if clipped
        assert (charge == left).reshape(different.shape)[different].all()
        ended |= rule.exhausted(state + charge)
        affordable = rule.charge_units(step, larger) <= left
        larger_fits &= affordable.reshape(len(norms), -1).all(axis=1)
    assert ended[clipped].all()
    assert not larger_fits[granted < np.minimum(norms, larger)].any()
    if len(chosen) == 1:
        np.testing.assert_array_equal(rule.grant(state, step, norms)[0], state + charge)


@every_filter
def test_charge_of_a_norm_above_the_grant_is_refused(
    rule: BudgetFilter, budgets: list[Fraction]
) -> None:
    state, step = rule.initial_state(2), Laplace(4.0)
    if rule.measure == "gdp":
        step = Gaussian(4.0)
    for granted in ([1.5, 0.0], [1e9, 1.0], [1.0], [[1.0, 1.0]], [math.nan, 1.0], [-1.0, 1.0]):
        with refused("granted"):
            rule.charge_granted(state, step, [1.0, 1.0], granted)
    with refused("granted"):
        rule.charge_granted(state, step, [1e9, 1.0], [1e9, 1.0])


@pytest.mark.parametrize(
    ("rule", "step"),
    [
        *((rule, Gaussian(4.0)) for rule in (ZcdpFilter(1.0), GdpFilter(1.3))),
        *((RenyiFilter(ORDERS, [1.0, 2.0, 60.0]), step) for step in (Gaussian(4.0), Laplace(4.0))),
        (RenyiFilter(ORDERS, [0.5, 0.9, 40.0]), PoissonGaussian(1.0, 0.1)),
    ],
    ids=repr,
)
def test_every_user_can_spend_to_the_end_and_no_further(
    rule: BudgetFilter, step: Mechanism
) -> None:
    norms = np.array([0.0, 0.5, 0.7, 1.0, 5.0])
    state, squares = rule.initial_state(5), [Fraction(0)] * 5
    for _ in range(200):
        state, granted = rule.grant(state, step, norms, clip_norm=1.0)
        assert (granted <= np.minimum(norms, 1.0)).all()
        squares = [s + Fraction(g) ** 2 for s, g in zip(squares, granted.tolist(), strict=True)]
    assert rule.exhausted(state).tolist() == [False, True, True, True, True]
    assert not granted.any()
    if step == Gaussian(4.0):
        for square in squares:
            for order, budget in zip(orders_of(rule), rule.budget_units, strict=True):
                assert Fraction(order) * square / 32 <= budget * exact.UNIT
        # The last unit is worth little: a user who spends to the end spends nearly all.
        assert float(squares[1]) == pytest.approx(float(squares[4]), rel=1e-6)


@pytest.mark.parametrize("scale", [5e-324, 1e-308, 2.0**-1000, 1e-200, 1e200, 1e308])
@pytest.mark.parametrize("left", [1, 2, 2**44, MAX_BUDGET_UNITS])
def test_granted_norm_fits_at_the_ends_of_the_float_range(scale: float, left: int) -> None:
    rule, state = ZcdpFilter.from_units(left), np.zeros(5, dtype=np.int64)
    new_state, granted = rule.grant(state, Gaussian(scale), [1e-320, 1e-290, 1.0, 1e300, 1.7e308])
    for grant, charge in zip(granted.tolist(), new_state.tolist(), strict=True):
        assert exact.zcdp_units(grant, scale) <= charge <= left


def test_steps_without_a_norm_to_clip_cannot_be_granted() -> None:
    for rule, step in ((ZcdpFilter(0.3), PureDP()), (GdpFilter(1.0), Laplace(2.0))):
        with refused("mechanism"):
            rule.grant(rule.initial_state(1), step, [1.0])


def test_granted_bits_are_the_same_everywhere() -> None:
    rule = ZcdpFilter(0.1)
    state = np.array([0, 12345, rule.budget_units[0] - 1])
    new_state, granted = rule.grant(state, Gaussian(3.3), [9.0, 9.0, 9.0])
    left = [rule.budget_units[0] - spent for spent in state.tolist()]
    roots = [math.sqrt(units * 2.0**-43) * (1.0 - 2.0**-50) * 3.3 for units in left]
    assert granted.tolist() == roots
    assert granted[0].hex() == "0x1.79ce58ff1862cp+0"
    assert (new_state == rule.budget_units[0]).all()
