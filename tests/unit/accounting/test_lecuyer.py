from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import MAX_BUDGET_UNITS, Gaussian, renyi_cost
from accounting.research.lecuyer import LecuyerOdometer
from tests.unit.accounting import rational_model as exact
from tests.unit.accounting.refusals import refused

DIGITS = 60
ORDERS = [1.25, 2.0, 8.0, 64.0]
orders_lists = st.lists(exact.order, min_size=1, max_size=4, unique=True)
deltas = st.floats(-300.0, -0.1).map(lambda exponent: 10.0**exponent)
growths = st.one_of(st.just(2.0), st.floats(1.1, 10.0))


def definition(
    spent: list[int], orders: list[float], delta: float, growth: float = 2.0
) -> mpmath.mpf:
    """The bound as Lécuyer defines it, from the spend in units, at 60 digits."""
    k, least = len(orders), mpmath.inf
    for units, order in zip(spent, orders, strict=True):
        if units == 0:
            return mpmath.mpf(0)
        a_minus_1 = mpmath.mpf(order) - 1
        budget = mpmath.log(2 * k / mpmath.mpf(delta)) / a_minus_1 * 2**44
        rung = 1
        while mpmath.floor(budget) < units:
            budget, rung = budget * growth, rung + 1
        if mpmath.floor(budget) <= MAX_BUDGET_UNITS:
            tail = mpmath.log(2 * k * rung**2 / mpmath.mpf(delta)) / a_minus_1
            least = min(least, mpmath.floor(budget) / 2**44 + tail)
    return least


def bound_of(odometer: LecuyerOdometer, spent: list[int]) -> float:
    state = np.array([spent], dtype=np.int64)
    return float(odometer.advance(state, np.zeros(state.shape))[1][0])


def test_one_order_by_hand() -> None:
    odometer = LecuyerOdometer([2.0], 0.5)
    trace, state = [], odometer.initial_state(1)
    for cost in (0.0, 1.0, 0.3, 0.1, 1.3, 0.1):
        state, bound = odometer.advance(state, [[cost]])
        trace.append(float(bound[0]))
    log4, log16, log36 = math.log(4.0), math.log(16.0), math.log(36.0)
    expected = [0.0, 2 * log4, 2 * log4, 2 * log4 + log16, 2 * log4 + log16, 4 * log4 + log36]
    assert trace == pytest.approx(expected, rel=1e-12)


@given(orders_lists, deltas, growths, st.data())
def test_bound_is_the_definition_rounded_up(
    orders: list[float], delta: float, growth: float, data: st.DataObject
) -> None:
    sizes = st.one_of(st.integers(0, 2**61 + 1), st.integers(1, 2**48), st.integers(0, 3))
    spent = data.draw(st.lists(sizes, min_size=len(orders), max_size=len(orders)))
    bound = bound_of(LecuyerOdometer(orders, delta, growth=growth), spent)
    with mpmath.workdps(DIGITS):
        truth = definition(spent, orders, delta, growth)
        assert bound >= truth
        if truth == mpmath.inf:
            assert bound == math.inf
        else:
            assert bound <= truth * (1 + mpmath.mpf(2) ** -51)


@given(orders_lists, deltas, st.sampled_from([1.3, 1.5, 2.0, 3.0]))
def test_the_shares_of_all_rungs_and_orders_add_up_to_less_than_delta(
    orders: list[float], delta: float, growth: float
) -> None:
    """A filter of budget B lets the loss exceed e with probability exp((a - 1) (B - e)) at most."""
    odometer, k = LecuyerOdometer(orders, delta, growth=growth), len(orders)
    with mpmath.workdps(DIGITS):
        total = mpmath.mpf(0)
        for column, order in enumerate(orders):
            a_minus_1 = mpmath.mpf(order) - 1
            budget, budgets = mpmath.log(2 * k / mpmath.mpf(delta)) / a_minus_1 * 2**44, []
            while budget < MAX_BUDGET_UNITS:
                budgets.append(int(mpmath.floor(budget)))
                budget *= growth
            state = np.full((2 * len(budgets), k), MAX_BUDGET_UNITS + 1)
            state[:, column] = [spent for budget in budgets for spent in (budget, budget + 1)]
            bounds = odometer.advance(state, np.zeros(state.shape))[1].tolist()
            for spent, bound, above in zip(budgets, bounds[::2], bounds[1::2], strict=True):
                assert above > bound
                total += mpmath.exp(a_minus_1 * (mpmath.mpf(spent) / 2**44 - mpmath.mpf(bound)))
        assert total <= delta


@given(
    st.lists(st.lists(st.floats(0.0, 5.0), min_size=4, max_size=4), max_size=20),
    deltas,
    growths,
)
def test_bound_never_falls_and_dominates_the_exact_sums(
    steps: list[list[float]], delta: float, growth: float
) -> None:
    odometer = LecuyerOdometer(ORDERS, delta, growth=growth)
    state, sums, previous = odometer.initial_state(1), [Fraction(0)] * 4, 0.0
    for cost in steps:
        state, bound = odometer.advance(state, [cost])
        sums = [s + Fraction(c) for s, c in zip(sums, cost, strict=True)]
        assert float(bound[0]) >= previous
        previous = float(bound[0])
        with mpmath.workdps(DIGITS):
            log = -mpmath.log(mpmath.mpf(delta))
            terms = []
            for total, order in zip(sums, ORDERS, strict=True):
                nats = mpmath.mpf(total.numerator) / total.denominator
                # Nothing spent at an order: nothing lost. Else at least the sum, converted.
                terms.append(nats + log / (mpmath.mpf(order) - 1) if total else mpmath.mpf(0))
            assert previous >= min(terms)


@given(st.integers(1, 400), st.floats(0.5, 50.0))
def test_bound_is_at_most_what_doubling_costs(steps: int, noise: float) -> None:
    orders, delta = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0], 1e-5
    odometer = LecuyerOdometer(orders, delta)
    spent = steps * renyi_cost(Gaussian(noise), [1.0], orders)
    bound = float(odometer.advance(odometer.initial_state(1), spent)[1][0])
    first = math.log(2 * 6 / delta)
    least = math.inf
    for cost, order in zip(spent[0].tolist(), orders, strict=True):
        rungs = 1 + max(0, math.ceil(math.log2(cost * (order - 1) / first) + 1e-9))
        tail = math.log(2 * 6 * rungs**2 / delta) / (order - 1)
        least = min(least, max(2 * cost, first / (order - 1)) + tail)
    assert bound <= least * (1 + 1e-9)


def test_the_loss_of_an_adaptive_walk_exceeds_the_bound_at_any_time_with_probability_delta() -> (
    None
):
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


@given(st.lists(st.lists(st.floats(0.0, 9.0), min_size=2, max_size=2), min_size=1, max_size=8))
def test_users_together_are_as_users_alone_in_any_order(costs: list[list[float]]) -> None:
    odometer = LecuyerOdometer([2.0, 32.0], 1e-6)
    batch = np.array(costs)
    start = odometer.initial_state(len(costs))
    once, _ = odometer.advance(start, batch)
    state, bound = odometer.advance(once, batch)
    backwards = odometer.advance(once[::-1], batch[::-1])
    np.testing.assert_array_equal(state, backwards[0][::-1])
    np.testing.assert_array_equal(bound, backwards[1][::-1])
    for i in range(len(costs)):
        alone = odometer.advance(once[i : i + 1], batch[i : i + 1])
        np.testing.assert_array_equal(alone[0], state[i : i + 1])
        assert alone[1][0] == bound[i]
    assert not start.any()
    np.testing.assert_array_equal(batch, np.array(costs))


def test_an_unbounded_cost_makes_an_order_useless_and_all_orders_the_bound_infinite() -> None:
    odometer = LecuyerOdometer([2.0, 8.0], 1e-5)
    state, bound = odometer.advance(
        odometer.initial_state(3), [[math.inf, 0.1], [0.1, math.inf], [math.inf, 1e6]]
    )
    assert np.isfinite(bound).tolist() == [True, True, False]
    for _ in range(3):  # saturated, and never overflowing
        state, later = odometer.advance(state, np.full((3, 2), 1e300))
        assert np.isinf(later).all()
    assert (state == MAX_BUDGET_UNITS + 1).all()


def test_who_spends_nothing_at_an_order_has_lost_nothing() -> None:
    odometer = LecuyerOdometer([2.0, 8.0], 1e-5)
    state, bound = odometer.advance(odometer.initial_state(2), [[0.0, 0.0], [5e-324, 5e-324]])
    assert bound[0] == 0.0
    assert bound[1] > 0.0
    assert odometer.advance(state, np.zeros((2, 2)))[1].tolist() == bound.tolist()


def test_rules_of_the_same_numbers_are_equal_and_immutable() -> None:
    assert LecuyerOdometer([2.0], 1e-5) == LecuyerOdometer([2], 1e-5)
    assert LecuyerOdometer([2.0], 1e-5) != LecuyerOdometer([2.0], 1e-5, growth=1.5)
    assert len({LecuyerOdometer([2.0], 1e-5), LecuyerOdometer([2.0], 1e-5)}) == 1
    with pytest.raises(AttributeError):
        LecuyerOdometer([2.0], 1e-5).delta = 0.5


def test_wrong_arguments_are_refused() -> None:
    for orders in ([1.0], [], [math.inf], [2.0, 2.0], [math.nan], [0.5]):
        with refused("orders"):
            LecuyerOdometer(orders, 1e-5)
    for delta in (0.0, 1.0, -0.1, math.nan):
        with refused("delta"):
            LecuyerOdometer([2.0], delta)
    for growth in (1.0, 0.0, math.inf, math.nan, True):
        with refused("growth"):
            LecuyerOdometer([2.0], 1e-5, growth=growth)
    odometer = LecuyerOdometer([2.0, 8.0], 1e-5)
    good = odometer.initial_state(1)
    for state in (good[0], good[:, :1], good.astype(float), good - 1, good + 2**61 + 2):
        with refused("state"):
            odometer.advance(state, [[0.1, 0.1]])
    for cost in ([0.1, 0.1], [[0.1]], [[-0.1, 0.1]], [[math.nan, 0.1]]):
        with refused("cost"):
            odometer.advance(good, cost)
