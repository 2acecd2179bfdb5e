"""Odometers: ticks of a fixed size, and Lécuyer's odometer."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MAX_BUDGET_UNITS,
    MAX_COST_UNITS,
    Gaussian,
    gdp_cost,
    renyi_cost,
)
from accounting.odometers import MAX_TICKS, advance_units
from accounting.research import GdpOdometer, RenyiTracker
from accounting.research.lecuyer import LecuyerOdometer
from tests.unit.accounting import rational_model as exact

cost_lists = st.lists(st.integers(0, 40), max_size=30)


def algorithm_5(costs: list[int], step: int) -> list[int]:
    """Feldman and Zrnic, Alg. 5, word for word: restart with the current cost counted."""
    tracker, since_restart, trace = step, 0, []
    for cost in costs:
        if since_restart + cost > step:
            tracker += step
            since_restart = cost
        else:
            since_restart += cost
        trace.append(tracker)
    return trace


def run(costs: list[list[int]], steps: list[int]) -> list[int]:
    """Return the ticks after each step of one user; the state bounds what was spent so far."""
    used, ticks = np.zeros((1, len(steps)), dtype=np.int64), np.ones(1, dtype=np.int64)
    trace, spent = [], np.zeros(len(steps), dtype=np.int64)
    for cost in costs:
        used, ticks = advance_units(used, ticks, np.array([cost]), steps)
        spent += cost
        assert (spent <= (ticks[0] - 1) * np.array(steps) + used[0]).all()
        assert (used[0] <= steps).all()
        trace.append(int(ticks[0]))
    return trace


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(20, 45))
def test_costs_up_to_the_step_give_algorithm_5(costs: list[int], step: int) -> None:
    assert [step * tick for tick in run([[c] for c in costs], [step])] == algorithm_5(costs, step)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=25),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_one_schedule_bounds_every_order(costs: list[tuple[int, int]], a: int, b: int) -> None:
    """Stopping before the bound exceeds m steps is a filter with that budget, at every order."""
    totals = [0, 0]
    ticks = run([list(c) for c in costs], [a, b])
    for t, cost in enumerate(costs):
        totals = [totals[0] + cost[0], totals[1] + cost[1]]
        assert ticks[t] >= max(math.ceil(totals[0] / a), math.ceil(totals[1] / b), 1)
    # An order with no costs never forces a restart.
    assert run([[c[0], 0] for c in costs], [a, b]) == run([[c[0]] for c in costs], [a])


@pytest.mark.parametrize(
    ("costs", "ticks", "used"),
    [
        ([0], [1], 0),
        ([10], [1], 10),
        ([11], [2], 1),  # the empty first tick is used
        ([30], [3], 10),
        ([1, 11], [1, 3], 1),  # a used tick is left as it is
        ([1, 30], [1, 4], 10),
        ([10, 0, 1], [1, 1, 2], 1),
        ([5, 5, 5], [1, 1, 2], 5),
    ],
)
def test_costs_above_the_step_climb_several_ticks(
    costs: list[int], ticks: list[int], used: int
) -> None:
    assert run([[cost] for cost in costs], [10]) == ticks
    assert run([[cost] for cost in [*costs, 10 - used]], [10])[-1] == ticks[-1]
    assert run([[cost] for cost in [*costs, 11 - used]], [10])[-1] > ticks[-1]


@given(cost_lists, st.integers(1, 30), st.integers(0, 30))
def test_users_together_are_as_users_alone(costs: list[int], step: int, start: int) -> None:
    used = np.full(len(costs), min(start, step))
    ticks = np.arange(1, len(costs) + 1)
    together = advance_units(used, ticks, np.array(costs, dtype=np.int64), step)
    for i, cost in enumerate(costs):
        alone = advance_units(used[i : i + 1], ticks[i : i + 1], np.array([cost]), step)
        assert (alone[0][0], alone[1][0]) == (together[0][i], together[1][i])
    column = advance_units(used[:, None], ticks, np.array(costs, dtype=np.int64)[:, None], [step])
    np.testing.assert_array_equal(np.column_stack(column), np.column_stack(together))


@pytest.mark.parametrize("step", [1, MAX_BUDGET_UNITS])
def test_huge_costs_saturate_and_never_overflow(step: int) -> None:
    used, ticks = np.array([0, step]), np.array([1, MAX_TICKS])
    cost = np.array([MAX_COST_UNITS - 1, MAX_COST_UNITS - 1])
    for _ in range(3):
        used, ticks = advance_units(used, ticks, cost, step)
        assert ((used >= 0) & (used <= step)).all()
        assert ((ticks >= 1) & (ticks <= MAX_TICKS)).all()
    assert ticks[1] == MAX_TICKS
    _, saturated = advance_units(np.array([0]), np.array([1]), np.array([MAX_COST_UNITS]), step)
    assert saturated.tolist() == [MAX_TICKS]
    mixed = advance_units(
        np.array([[0, 0]]), np.array([1]), np.array([[2**61, 5]]), [1, MAX_BUDGET_UNITS]
    )
    assert mixed[1].tolist() == [MAX_TICKS]
    assert mixed[0].tolist() == [[1, 0]]


def test_after_an_unbounded_cost_the_bound_is_infinite() -> None:
    for odometer in (RenyiTracker(8.0, 0.5), GdpOdometer(0.5)):
        state, bound = odometer.advance(odometer.initial_state(2), [math.inf, 0.1])
        assert bound.tolist() == [math.inf, odometer.tick_units / 2**44]
        assert odometer.advance(state, [0.0, 0.0])[1][0] == math.inf


SIXTEENTHS = gdp_cost(Gaussian(4.0), [1.0, 1.0, 0.5, 1.5, 0.0, 2.0])


@pytest.mark.parametrize(
    ("odometer", "costs", "bounds"),
    [
        (RenyiTracker(2.0, 1.0), [0.4] * 5, [1.0, 1.0, 2.0, 2.0, 3.0]),
        (GdpOdometer(0.5), SIXTEENTHS, [0.25, 0.25, 0.25, 0.5, 0.5, 0.75]),  # in mu squared
    ],
    ids=["Rényi", "GDP"],
)
def test_odometers_bound_the_sum_of_costs(odometer, costs, bounds) -> None:
    state, found = odometer.initial_state(1), []
    for cost in costs:
        state, bound = odometer.advance(state, [cost])
        found.append(float(bound[0]))
    assert found == bounds
    assert (np.cumsum(costs) <= found).all()


def test_a_step_is_rounded_up_to_units() -> None:
    assert RenyiTracker(2.0, 0.3).tick_units == math.ceil(Fraction(0.3) * 2**44)
    assert GdpOdometer(0.3).tick_units == math.ceil(Fraction(0.3) ** 2 * 2**44)


DIGITS = 60
orders_lists = st.lists(exact.order, min_size=1, max_size=4, unique=True)
deltas = st.floats(-300.0, -0.1).map(lambda exponent: 10.0**exponent)


def definition(spent: list[int], orders: list[float], delta: float) -> mpmath.mpf:
    """The bound as Lécuyer defines it, from the spend in units, at 60 digits."""
    k, least = len(orders), mpmath.inf
    for units, order in zip(spent, orders, strict=True):
        if units == 0:
            return mpmath.mpf(0)
        a_minus_1 = mpmath.mpf(order) - 1
        budget = mpmath.log(2 * k / mpmath.mpf(delta)) / a_minus_1 * 2**44
        rung = 1
        while mpmath.floor(budget) < units:
            budget, rung = 2 * budget, rung + 1
        if mpmath.floor(budget) <= MAX_BUDGET_UNITS:
            tail = mpmath.log(2 * k * rung**2 / mpmath.mpf(delta)) / a_minus_1
            least = min(least, mpmath.floor(budget) / 2**44 + tail)
    return least


def bound_of(odometer: LecuyerOdometer, spent: list[int]) -> float:
    state = np.array([spent], dtype=np.int64)
    return float(odometer.advance(state, np.zeros(state.shape))[1][0])


@given(orders_lists, deltas, st.data())
def test_bound_is_the_definition_rounded_up(
    orders: list[float], delta: float, data: st.DataObject
) -> None:
    sizes = st.one_of(st.integers(0, 2**61 + 1), st.integers(1, 2**48), st.integers(0, 3))
    spent = data.draw(st.lists(sizes, min_size=len(orders), max_size=len(orders)))
    bound = bound_of(LecuyerOdometer(orders, delta), spent)
    with mpmath.workdps(DIGITS):
        truth = definition(spent, orders, delta)
        assert bound >= truth
        if truth == mpmath.inf:
            assert bound == math.inf
        else:
            assert bound <= truth * (1 + mpmath.mpf(2) ** -51)


@given(orders_lists, deltas)
def test_shares_of_all_ticks_and_orders_are_within_delta(orders: list[float], delta: float) -> None:
    """A filter of budget B lets the loss exceed e with probability exp((a - 1) (B - e)) at most."""
    odometer, k = LecuyerOdometer(orders, delta), len(orders)
    with mpmath.workdps(DIGITS):
        total = mpmath.mpf(0)
        for column, order in enumerate(orders):
            a_minus_1 = mpmath.mpf(order) - 1
            budget, budgets = mpmath.log(2 * k / mpmath.mpf(delta)) / a_minus_1 * 2**44, []
            while budget < MAX_BUDGET_UNITS:
                budgets.append(int(mpmath.floor(budget)))
                budget *= 2
            state = np.full((2 * len(budgets), k), MAX_BUDGET_UNITS + 1)
            state[:, column] = [spent for budget in budgets for spent in (budget, budget + 1)]
            bounds = odometer.advance(state, np.zeros(state.shape))[1].tolist()
            for spent, bound, above in zip(budgets, bounds[::2], bounds[1::2], strict=True):
                assert above > bound
                total += mpmath.exp(a_minus_1 * (mpmath.mpf(spent) / 2**44 - mpmath.mpf(bound)))
        assert total <= delta


def test_adaptive_loss_exceeds_the_bound_with_probability_delta() -> None:
    """Gaussian steps whose norms grow with the loss so far; the loss of each walk is exact."""
    delta, walks, noise = 0.2, 4000, 1.0
    odometer = LecuyerOdometer([1.5, 2.0, 3.0, 5.0], delta)
    rng = np.random.default_rng(11)
    loss, exceeded = np.zeros(walks), np.zeros(walks, dtype=bool)
    state, bounds = odometer.initial_state(walks), np.zeros(walks)
    for _ in range(60):
        norms = np.where(loss > 0.7 * bounds, 1.0, 0.25)
        state, bounds = odometer.advance(state, renyi_cost(Gaussian(noise), norms, odometer.orders))
        mean = norms**2 / (2 * noise**2)
        loss += rng.normal(mean, np.sqrt(2 * mean))
        exceeded |= loss > bounds
    assert exceeded.mean() <= delta
    assert (loss > 0.5 * bounds).any()


def test_unbounded_cost_makes_its_order_useless() -> None:
    odometer = LecuyerOdometer([2.0, 8.0], 1e-5)
    state, bound = odometer.advance(
        odometer.initial_state(3), [[math.inf, 0.1], [0.1, math.inf], [math.inf, 1e6]]
    )
    assert np.isfinite(bound).tolist() == [True, True, False]
    for _ in range(3):  # saturated, and never overflowing
        state, later = odometer.advance(state, np.full((3, 2), 1e300))
        assert np.isinf(later).all()
    assert (state == MAX_BUDGET_UNITS + 1).all()
