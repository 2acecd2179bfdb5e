"""The conversions against published numbers and against mpmath at 40 to 250 digits.

The best order of zCDP is found by a search over orders that shares nothing with the bisection under
test. Ranges: delta down to 1e-300, mu from 1e-6 to 1e3, rho from 1e-12 to 1e4.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mpf
from scipy.optimize import brentq

from accounting import (
    gdp_budget,
    gdp_to_delta,
    gdp_to_epsilon,
    renyi_budgets,
    renyi_to_delta,
    renyi_to_epsilon,
    zcdp_budget,
    zcdp_to_delta,
    zcdp_to_epsilon,
)
from tests.unit.accounting.exact_deltas import gaussian_delta

DELTA = 1e-5
ORDERS = np.concatenate([np.linspace(1.01, 64.0, 6300), np.arange(65.0, 300.0)])


def gdp_delta(mu: float, epsilon: float) -> mpf:
    with mpmath.workdps(80 if mu > 1e-6 else 250):  # the difference of two numbers
        return gaussian_delta(mu, epsilon)


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


def steps_within(convert: Callable[[np.ndarray, float], np.ndarray], epsilon: float) -> int:
    """Return how many steps of noise 100, given mu squared, are within this epsilon."""
    steps = np.arange(1, 1000)
    return int(steps[convert(steps / 100.0**2, DELTA) <= epsilon].max())


def test_steps_within_an_epsilon_are_the_published_ones() -> None:
    def renyi(mu_squared: np.ndarray, delta: float) -> np.ndarray:
        return renyi_to_epsilon(ORDERS, np.outer(mu_squared / 2, ORDERS), delta)

    def zcdp(mu_squared: np.ndarray, delta: float) -> np.ndarray:
        return zcdp_to_epsilon(mu_squared / 2, delta)

    def gdp(mu_squared: np.ndarray, delta: float) -> np.ndarray:
        return gdp_to_epsilon(np.sqrt(mu_squared), delta)

    assert [steps_within(convert, 0.8) for convert in (gdp, renyi, zcdp)] == [478, 405, 405]
    epsilon = float(renyi(np.array([420 / 100.0**2]), DELTA)[0])
    assert epsilon == pytest.approx(0.8156, abs=5e-5)
    assert steps_within(gdp, epsilon) == 495


@given(
    st.floats(-6.0, 4.0).map(lambda x: 10.0**x), st.floats(-300.0, -0.001).map(lambda x: 10.0**x)
)
@example(0.0, 1e-5)
@example(0.0, 0.9)
def test_budgets_are_the_largest_that_imply_epsilon_and_delta(epsilon: float, delta: float) -> None:
    target, log = mpmath.log(mpf(delta)), -math.log(delta)
    mu, rho = gdp_budget(epsilon, delta), zcdp_budget(epsilon, delta)
    assert gdp_delta(mu, epsilon) <= delta < gdp_delta(mu * (1 + 1e-10), epsilon)
    assert zcdp_log_delta(rho, epsilon) <= target < zcdp_log_delta(rho * (1 + 1e-9), epsilon)
    assert gdp_to_epsilon(mu, delta) <= epsilon
    assert gdp_to_delta(mu, epsilon) <= delta
    # Feldman and Zrnic, Thm 4.9. The formula cancels, so it is written as a quotient.
    assert rho >= (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2 * (1 - 1e-12)


def test_epsilon_zero_has_no_budget_at_a_tiny_delta() -> None:
    assert gdp_budget(0.0, 1e-100) == zcdp_budget(0.0, 1e-100) == 0.0


# ------------------------------------------------------------------ GDP and zCDP against mpmath

DELTAS = [1e-300, 1e-100, 1e-30, 1e-12, 1e-5, 0.01, 0.3, 0.9, 0.999]
MUS = [1e-100, 1e-60, 1e-20, 1e-6, 3e-5, 1e-3, 0.02, 0.2, 0.3, 2.0, 15.0, 70.0, 300.0, 1e3]
RHOS = [1e-12, 1e-8, 1e-5, 1e-3, 0.03, 0.5, 7.0, 100.0, 2e3, 1e4]
LEVELS = [(True, mu) for mu in MUS] + [(False, rho) for rho in RHOS]


def zcdp_delta(rho: float, epsilon: float) -> mpf:
    return mpmath.exp(zcdp_log_delta(rho, epsilon))


@pytest.mark.parametrize(("is_mu", "level"), LEVELS)
def test_delta_is_just_above_the_exact_one(is_mu: bool, level: float) -> None:
    for x in [-30.0, -5.0, -0.01, 0.0, 1e-3, 0.4, 0.7, 2.0, 6.0, 15.0, 20.0, 26.0, 36.9]:
        exact_delta, to_delta = (gdp_delta, gdp_to_delta) if is_mu else (zcdp_delta, zcdp_to_delta)
        epsilon = level * (x + level / 2) if is_mu else level + 2.0 * x * math.sqrt(level)
        if epsilon >= (0.0 if is_mu else level):
            exact = exact_delta(level, epsilon)
            most = exact * (1 + mpf(2e-12 if is_mu else 2e-11)) + mpf(5e-324)
            assert exact <= to_delta(level, epsilon) <= most, x


@pytest.mark.parametrize(("is_mu", "level"), LEVELS)
def test_epsilon_is_the_least_with_this_delta(is_mu: bool, level: float) -> None:
    for delta in DELTAS:
        if is_mu:
            epsilon, exact_delta, slack = gdp_to_epsilon(level, delta), gdp_delta, 1e-13
        else:
            epsilon, exact_delta, slack = zcdp_to_epsilon(level, delta), zcdp_delta, 1e-12
        assert exact_delta(level, epsilon) <= delta
        if epsilon > 0.0:
            assert exact_delta(level, epsilon * (1 - slack)) > delta * (1 - 1e-11), delta


# ------------------------------------------------------------------------------------------ Rényi


def test_infinite_divergences_leave_an_order_without_use() -> None:
    assert renyi_to_epsilon([2.0, 4.0], [math.inf, math.inf], 1e-5) == math.inf
    assert renyi_to_delta([2.0, 4.0], [math.inf, math.inf], 1.0) == 1.0
    alone = renyi_to_epsilon([2.0], [0.1], 1e-5)
    assert renyi_to_epsilon([2.0, 4.0], [0.1, math.inf], 1e-5) == alone


def renyi_epsilon_exactly(orders: list[float], rdp: list[float], delta: float) -> mpf:
    values = []
    for a, divergence in zip(map(mpf, orders), map(mpf, rdp), strict=True):
        tail = mpmath.log(mpf(delta)) + mpmath.log(a)
        values.append(divergence + mpmath.log1p(-1 / a) - tail / (a - 1))
    return max(min(values), mpf(0)) if min(rdp) > 0.0 else mpf(0)


def renyi_delta_exactly(orders: list[float], rdp: list[float], epsilon: float) -> mpf:
    values = []
    for a, divergence in zip(map(mpf, orders), map(mpf, rdp), strict=True):
        log_constant = (a - 1) * mpmath.log1p(-1 / a) - mpmath.log(a)  # (C.3) as printed
        values.append((a - 1) * (divergence - epsilon) + log_constant)
    return mpmath.exp(min(*values, mpf(0))) if min(rdp) > 0.0 else mpf(0)


@st.composite
def curves(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Orders from 1.000001 to 10^12, and a divergence at each from 1e-12 to 1e4, or 0."""
    orders = draw(
        st.lists(
            st.floats(-6.0, 12.0).map(lambda t: 1.0 + 10.0**t), min_size=1, max_size=4, unique=True
        )
    )
    divergence = st.one_of(st.just(0.0), st.floats(-12.0, 4.0).map(lambda r: 10.0**r))
    return orders, [draw(divergence) for _ in orders]


@given(curves(), st.floats(-300.0, -0.001))
def test_renyi_epsilon_is_the_least_over_the_orders_given(
    curve: tuple[list[float], list[float]], log_delta: float
) -> None:
    delta = 10.0**log_delta
    with mpmath.workdps(50):
        exact = renyi_epsilon_exactly(*curve, delta)
        epsilon = float(renyi_to_epsilon(*curve, delta))
        slack = sum(1.0 / (order - 1.0) for order in curve[0])  # the terms may cancel
        assert exact <= epsilon <= exact * (1 + mpf(1e-13)) + mpf(1e-11) * slack


@given(curves(), st.one_of(st.just(0.0), st.floats(-9.0, 4.0).map(lambda x: 10.0**x)))
def test_renyi_delta_is_the_least_over_the_orders_given(
    curve: tuple[list[float], list[float]], epsilon: float
) -> None:
    with mpmath.workdps(50):
        exact = renyi_delta_exactly(*curve, epsilon)
        delta = float(renyi_to_delta(*curve, epsilon))
        assert exact <= delta <= 1.0
        terms = max((a - 1.0) * (r + epsilon) + a for a, r in zip(*curve, strict=True))
        if exact > 1e-300 and terms < 1e10:
            assert delta <= exact * (1 + mpf(1e-14) * (terms + 100))


# ----------------------------------------------------------------------------- monotone, vectorised

Convert = Callable[[np.ndarray, float], np.ndarray]
CURVE = [1.1, 4.0, 900.0]
TO_EPSILON: list[Convert] = [
    gdp_to_epsilon,
    zcdp_to_epsilon,
    lambda rho, delta: renyi_to_epsilon(CURVE, np.multiply.outer(rho, CURVE), delta),
]
TO_DELTA: list[Convert] = [
    gdp_to_delta,
    zcdp_to_delta,
    lambda rho, epsilon: renyi_to_delta(CURVE, np.multiply.outer(rho, CURVE), epsilon),
]
# Neighbours are 1e-9 apart; the conversions themselves are good to about 1e-13.
CLOSE = 1.0 + 1e-9 * np.arange(1, 500)
RISING_LEVELS = np.unique([0.0, *np.geomspace(1e-12, 1e4, 3001), *0.02 * CLOSE, 1e99, math.inf])
RISING_DELTAS = np.unique([*DELTAS, *0.02 * CLOSE[:10], *3e-250 * CLOSE[:10]]).tolist()
CASES = [(convert, math.inf, RISING_DELTAS) for convert in TO_EPSILON]
CASES += [(convert, 1.0, [0.0, 0.5, 100.0, 1e30, 1e300]) for convert in TO_DELTA]


@pytest.mark.parametrize(("convert", "most", "others"), CASES)
def test_conversions_rise_with_the_level_and_fall_with_the_other(convert, most, others) -> None:
    previous = np.full(RISING_LEVELS.shape, most)
    for other in others:
        found = convert(RISING_LEVELS, other)
        assert (found[0], found[-1]) == (0.0, most)
        assert (found[:-1] <= found[1:]).all()
        assert (found <= previous).all()
        previous = found
    some, other = slice(None, None, 97), others[len(others) // 2]
    found = convert(RISING_LEVELS, other)
    alone = [float(np.ravel(convert(level, other))[0]) for level in RISING_LEVELS[some]]
    np.testing.assert_array_equal(found[some], alone)
    np.testing.assert_array_equal(convert(RISING_LEVELS[::-1], other), found[::-1])


@given(
    st.lists(st.floats(-12.0, 12.0).map(lambda x: 1.0 + 10.0**x), min_size=1, max_size=6),
    st.one_of(st.just(0.0), st.floats(-9.0, 4.0).map(lambda x: 10.0**x)),
    st.floats(-300.0, -0.001).map(lambda x: 10.0**x),
)
def test_renyi_budgets_are_the_largest_for_each_order_alone(
    orders: list[float], epsilon: float, delta: float
) -> None:
    orders = sorted(set(orders))
    budgets = renyi_budgets(epsilon, delta, orders)
    assert budgets.shape == (len(orders),)
    for order, budget in zip(orders, budgets.tolist(), strict=True):
        assert renyi_to_epsilon([order], [budget], delta) <= epsilon
        assert renyi_to_delta([order], [budget], epsilon) <= delta
        with mpmath.workdps(60):
            a = mpf(order)
            overhead = mpmath.log1p(-1 / a) - (mpmath.log(mpf(delta)) + mpmath.log(a)) / (a - 1)
            largest, scale = mpf(epsilon) - overhead, mpf(epsilon) + abs(overhead)
            assert budget <= max(largest, 0)
            size = (abs(mpmath.log(mpf(delta))) + mpmath.log(a)) / (a - 1) - mpmath.log1p(-1 / a)
            # What rounding takes, in epsilon and in delta.
            slack = 1e-12 * (scale + size) + 1e-14 / (a - 1)
            assert budget >= largest - slack
