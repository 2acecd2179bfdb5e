from __future__ import annotations

import math

import mpmath
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from accounting import MAX_BUDGET_UNITS, Gaussian, renyi_cost
from accounting.research.lecuyer import LecuyerOdometer
from tests.unit.accounting import rational_model as exact

DIGITS = 60
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
def test_shares_of_all_ticks_and_orders_are_within_delta(
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
