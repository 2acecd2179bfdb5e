from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mpmath import mpf
from scipy.optimize import brentq

from accounting import (
    gdp_budget,
    gdp_to_delta,
    gdp_to_epsilon,
    renyi_to_delta,
    renyi_to_epsilon,
    zcdp_budget,
    zcdp_to_delta,
    zcdp_to_epsilon,
)
from tests.unit.accounting.refusals import refused

DELTA = 1e-5
ORDERS = np.concatenate([np.linspace(1.01, 64.0, 6300), np.arange(65.0, 300.0)])
epsilons = st.floats(min_value=1e-3, max_value=30.0)
deltas = st.floats(min_value=-30.0, max_value=-0.5).map(lambda x: 10.0**x)


def gdp_delta(mu: float, epsilon: float, digits: int = 80) -> mpf:
    with mpmath.workdps(digits):
        m, e, root = mpf(mu), mpf(epsilon), mpmath.sqrt(2)
        upper = mpmath.erfc((e / m - m / 2) / root) / 2
        return upper - mpmath.exp(e) * mpmath.erfc((e / m + m / 2) / root) / 2


def zcdp_log_delta(rho: float, epsilon: float) -> mpf:
    """The least over orders, a convex problem in t = order - 1.

    Where it is comes from the derivative in float64, which is enough, since the value hardly
    changes there; that it is there is seen from the values around it.
    """

    def slope(u: float) -> float:
        return (2.0 * math.exp(u) + 1.0) * rho - epsilon - math.log1p(math.exp(-u))

    lowest, highest = -60.0, 60.0
    if slope(lowest) >= 0.0:
        best = lowest
    else:
        best = brentq(slope, lowest, highest, xtol=1e-300, rtol=1e-15)
    with mpmath.workdps(40):
        r, e = mpf(rho), mpf(epsilon)

        def value(u: mpf) -> mpf:
            t = mpmath.exp(u)
            return t * ((t + 1) * r - e) + t * u - (t + 1) * mpmath.log1p(t)

        least = value(mpf(best))
        assert all(least <= value(mpf(best) + step) for step in (-1e-6, 1e-6) if best > lowest)
        return least


# ----------------------------------------------------------------------------- published numbers


def steps_within(epsilon_after: object, epsilon: float) -> int:
    """The largest number of steps whose epsilon does not exceed the given one."""
    steps = np.arange(1, 1000)
    return int(steps[epsilon_after(steps / 100.0**2) <= epsilon].max())


def gdp_epsilon(mu_squared: np.ndarray) -> np.ndarray:
    return gdp_to_epsilon(np.sqrt(mu_squared), DELTA)


def renyi_epsilon(mu_squared: np.ndarray) -> np.ndarray:
    return renyi_to_epsilon(ORDERS, np.outer(mu_squared / 2, ORDERS), DELTA)


def test_gdp_takes_495_steps_where_renyi_takes_420() -> None:
    epsilon = float(renyi_epsilon(np.array([420 / 100.0**2]))[0])
    assert epsilon == pytest.approx(0.8156, abs=5e-5)
    assert steps_within(gdp_epsilon, epsilon) == 495


@pytest.mark.parametrize(
    ("epsilon_after", "steps"),
    [
        (gdp_epsilon, 478),
        (renyi_epsilon, 405),
        (lambda mu2: zcdp_to_epsilon(mu2 / 2, DELTA), 405),
        (lambda mu2: zcdp_to_epsilon(mu2 / 2, DELTA, simple=True), 268),
    ],
)
def test_steps_at_epsilon_of_point_eight(epsilon_after: object, steps: int) -> None:
    assert steps_within(epsilon_after, 0.8) == steps


def test_fifty_steps_at_noise_10_61_are_epsilon_2_75() -> None:
    assert gdp_to_epsilon(math.sqrt(50) / 10.61, 1e-5) == pytest.approx(2.75, abs=5e-3)


# ------------------------------------------------------------------------------------------ GDP


@pytest.mark.parametrize("mu", [1e-9, 1e-4, 0.01, 0.1, 0.2499, 0.25, 0.5, 1.0, 3.0, 10.0, 40.0])
@pytest.mark.parametrize("tail", [0.0, 0.3, 1.0, 3.0, 10.0, 20.0, 36.0])
def test_gdp_delta_is_an_upper_bound_and_accurate_in_the_far_tail(mu: float, tail: float) -> None:
    epsilon = mu * tail + mu * mu / 2
    true, delta = gdp_delta(mu, epsilon), gdp_to_delta(mu, epsilon)
    assert true <= delta <= true * (1 + mpf(2e-12))


@given(st.floats(min_value=1e-3, max_value=8.0), deltas)
def test_gdp_epsilon_is_the_inverse_from_above(mu: float, delta: float) -> None:
    epsilon = gdp_to_epsilon(mu, delta)
    if epsilon == 0.0:
        assert gdp_delta(mu, 0.0) <= delta
    else:
        assert gdp_delta(mu, epsilon) <= delta
        assert gdp_delta(mu, epsilon * (1 - 1e-9)) > delta * (1 - 1e-9)


@given(epsilons, deltas)
def test_gdp_budget_is_below_the_largest_and_near_it(epsilon: float, delta: float) -> None:
    mu = gdp_budget(epsilon, delta)
    assert gdp_delta(mu, epsilon) <= delta < gdp_delta(mu * (1 + 1e-10), epsilon)
    assert gdp_to_epsilon(mu, delta) <= epsilon
    assert gdp_to_delta(mu, epsilon) <= delta


# ----------------------------------------------------------------------------------------- zCDP


@pytest.mark.parametrize("rho", [1e-9, 1e-4, 0.01, 0.1, 1.0, 10.0, 300.0])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0, 3.0, 20.0])
def test_zcdp_delta_is_an_upper_bound_at_the_best_real_order(rho: float, ratio: float) -> None:
    epsilon = rho + ratio * math.sqrt(rho)
    true = mpmath.exp(zcdp_log_delta(rho, epsilon))
    assert true <= zcdp_to_delta(rho, epsilon) <= true * (1 + mpf(1e-11))


@pytest.mark.parametrize("rho", [1e-9, 1e-4, 0.01, 0.1, 1.0, 10.0, 300.0])
@pytest.mark.parametrize("delta", [1e-30, 1e-8, 1e-5, 0.01, 0.5])
def test_zcdp_epsilon_is_an_upper_bound_at_the_best_real_order(rho: float, delta: float) -> None:
    epsilon, target = zcdp_to_epsilon(rho, delta), mpmath.log(mpf(delta))
    if epsilon == 0.0:
        assert zcdp_log_delta(rho, 0.0) <= target
    else:
        assert zcdp_log_delta(rho, epsilon) <= target < zcdp_log_delta(rho, epsilon * (1 - 1e-9))


@given(epsilons, deltas)
def test_zcdp_budget_implies_epsilon_and_delta_on_conversion_back(
    epsilon: float, delta: float
) -> None:
    for simple in (False, True):
        rho = zcdp_budget(epsilon, delta, simple)
        assert zcdp_to_epsilon(rho, delta, simple=simple) <= epsilon
        assert zcdp_to_epsilon(rho * (1 + 1e-9), delta, simple=simple) > epsilon
        assert zcdp_to_delta(rho, epsilon, simple=simple) <= delta


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-8), (1.0, 1e-5), (8.0, 1e-5), (3.0, 0.2)])
def test_zcdp_budget_is_below_the_largest_and_near_it(epsilon: float, delta: float) -> None:
    rho = zcdp_budget(epsilon, delta)
    target = mpmath.log(mpf(delta))
    assert zcdp_log_delta(rho, epsilon) <= target < zcdp_log_delta(rho * (1 + 1e-10), epsilon)


@given(epsilons, deltas)
def test_simple_zcdp_budget_is_the_printed_formula_rounded_down(
    epsilon: float, delta: float
) -> None:
    with mpmath.workdps(40):
        log = -mpmath.log(mpf(delta))
        true = (mpmath.sqrt(log + epsilon) - mpmath.sqrt(log)) ** 2
        assert true * (1 - mpf(1e-12)) <= zcdp_budget(epsilon, delta, simple=True) <= true


@given(epsilons, deltas)
def test_the_optimal_bound_is_never_worse_than_the_simple_one(epsilon: float, delta: float) -> None:
    assert zcdp_budget(epsilon, delta) >= zcdp_budget(epsilon, delta, simple=True)
    assert gdp_budget(epsilon, delta) ** 2 / 2 >= zcdp_budget(epsilon, delta) * (1 - 1e-9)


# ---------------------------------------------------------------------------------------- Renyi


@given(st.floats(min_value=1e-4, max_value=10.0), deltas)
def test_renyi_over_many_orders_approaches_zcdp_from_above(rho: float, delta: float) -> None:
    best = 1.0 + math.sqrt(-math.log(delta) / rho)
    orders = np.unique(np.concatenate([ORDERS, best * np.linspace(0.2, 1.2, 2000) + 1.0]))
    epsilon = float(renyi_to_epsilon(orders, orders * rho, delta))
    zcdp = zcdp_to_epsilon(rho, delta)
    assert zcdp * (1 - 1e-12) <= epsilon <= zcdp * 1.001 + 1e-5


@given(st.floats(min_value=1e-3, max_value=10.0), epsilons)
def test_renyi_epsilon_and_delta_are_inverse(rdp: float, epsilon: float) -> None:
    orders = [2.0, 5.0, 17.5]
    curve = rdp * np.array(orders)
    delta = float(renyi_to_delta(orders, curve, epsilon))
    assume(1e-300 < delta < 1.0)
    assert float(renyi_to_epsilon(orders, curve, delta)) == pytest.approx(epsilon, rel=1e-9)


@given(st.floats(min_value=0.0, max_value=50.0), st.floats(1.01, 500.0), deltas)
def test_renyi_epsilon_is_never_above_mironov(rdp: float, order: float, delta: float) -> None:
    mironov = rdp + math.log(1 / delta) / (order - 1.0)
    assert 0.0 <= float(renyi_to_epsilon([order], [rdp], delta)) <= mironov


def test_renyi_rows_are_converted_one_by_one() -> None:
    orders = [1.5, 4.0, 32.0]
    curves = np.random.default_rng(3).random((7, 3)) * orders
    for convert, level in ((renyi_to_epsilon, 1e-6), (renyi_to_delta, 0.7)):
        rows = [float(convert(orders, curve, level)) for curve in curves]
        np.testing.assert_array_equal(convert(orders, curves, level), rows)


def test_an_infinite_divergence_is_unusable_and_never_silently_good() -> None:
    assert renyi_to_epsilon([2.0, 4.0], [math.inf, math.inf], 1e-5) == math.inf
    assert renyi_to_delta([2.0, 4.0], [math.inf, math.inf], 1.0) == 1.0
    alone = renyi_to_epsilon([2.0], [0.1], 1e-5)
    assert renyi_to_epsilon([2.0, 4.0], [0.1, math.inf], 1e-5) == alone
    with refused("orders"):
        renyi_to_epsilon([2.0, math.inf], [0.1, 0.1], 1e-5)


# --------------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("convert", [zcdp_to_epsilon, gdp_to_epsilon])
def test_nothing_spent_is_epsilon_zero_and_infinity_is_infinite(convert) -> None:
    assert convert(np.array([0.0, math.inf]), 1e-5).tolist() == [0.0, math.inf]
    levels = np.array([0.0, 1e-300, 1e-9, 0.1, 1.0, 50.0, 1e4, 1e99, 1e300])
    epsilon = convert(levels, 1e-5)
    assert (np.diff(epsilon) >= 0.0).all()
    assert (epsilon >= 0.0).all()
    assert [convert(level, 1e-5) for level in levels.tolist()] == epsilon.tolist()


@pytest.mark.parametrize("convert", [zcdp_to_delta, gdp_to_delta])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 100.0, 1e30, 1e300])
def test_delta_is_monotone_between_zero_and_one(convert, epsilon: float) -> None:
    levels = np.array([0.0, 1e-300, 1e-9, 0.1, 1.0, 50.0, 1e4, 1e99, 1e300, math.inf])
    delta = convert(levels, epsilon)
    assert delta[0] == 0.0
    assert delta[-1] == 1.0
    assert (delta[1:] > 0.0).all()
    assert (np.diff(delta) >= 0.0).all()
    assert convert(levels[3], epsilon) == delta[3]


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan, math.inf])
def test_delta_outside_zero_and_one_is_refused(delta: float) -> None:
    calls = [
        lambda: zcdp_to_epsilon(1.0, delta),
        lambda: gdp_to_epsilon(1.0, delta),
        lambda: renyi_to_epsilon([2.0], [1.0], delta),
        lambda: zcdp_budget(1.0, delta),
        lambda: gdp_budget(1.0, delta),
    ]
    for call in calls:
        with refused("delta"):
            call()


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_invalid_levels_are_refused(bad: float) -> None:
    with refused("rho"):
        zcdp_to_epsilon(bad, DELTA)
    with refused("mu"):
        gdp_to_delta(bad, 1.0)
    with refused("rdp"):
        renyi_to_epsilon([2.0], [bad], DELTA)
    with refused("epsilon"):
        zcdp_budget(bad, DELTA)
    with refused("rdp"):
        renyi_to_epsilon([2.0, 3.0], [1.0], DELTA)
