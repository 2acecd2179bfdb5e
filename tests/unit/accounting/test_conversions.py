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
epsilons = st.floats(min_value=1e-3, max_value=30.0)
deltas = st.floats(min_value=-30.0, max_value=-0.5).map(lambda x: 10.0**x)


def gdp_delta(mu: float, epsilon: float, digits: int = 80) -> mpf:
    with mpmath.workdps(digits):
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
        (lambda mu2: mu2 / 2 + 2 * np.sqrt(-mu2 / 2 * math.log(DELTA)), 268),
    ],
)
def test_steps_at_epsilon_of_point_eight(epsilon_after: object, steps: int) -> None:
    assert steps_within(epsilon_after, 0.8) == steps


def test_fifty_steps_at_noise_10_61_are_epsilon_2_75() -> None:
    assert gdp_to_epsilon(math.sqrt(50) / 10.61, 1e-5) == pytest.approx(2.75, abs=5e-3)


# ------------------------------------------------------------------------------------------ GDP


@given(
    st.floats(-6.0, 4.0).map(lambda x: 10.0**x), st.floats(-300.0, -0.001).map(lambda x: 10.0**x)
)
@example(0.0, 1e-5)
@example(0.0, 0.9)
def test_budgets_are_the_largest_that_imply_epsilon_and_delta(epsilon: float, delta: float) -> None:
    target = mpmath.log(mpf(delta))
    mu, rho = gdp_budget(epsilon, delta), zcdp_budget(epsilon, delta)
    assert gdp_delta(mu, epsilon) <= delta < gdp_delta(mu * (1 + 1e-10), epsilon)
    assert zcdp_log_delta(rho, epsilon) <= target < zcdp_log_delta(rho * (1 + 1e-9), epsilon)
    assert gdp_to_epsilon(mu, delta) <= epsilon
    assert gdp_to_delta(mu, epsilon) <= delta


def test_an_epsilon_of_nothing_has_no_budget_at_a_tiny_delta() -> None:
    assert gdp_budget(0.0, 1e-100) == zcdp_budget(0.0, 1e-100) == 0.0


# ----------------------------------------------------------------------------------------- zCDP


@given(epsilons, deltas)
def test_zcdp_budget_is_at_least_the_printed_formula(epsilon: float, delta: float) -> None:
    """Feldman and Zrnic, Thm 4.9. The formula cancels, so it is written as a quotient."""
    log = -math.log(delta)
    printed = (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2
    assert zcdp_budget(epsilon, delta) >= printed
    assert gdp_budget(epsilon, delta) ** 2 / 2 >= zcdp_budget(epsilon, delta) * (1 - 1e-9)


# ---------------------------------------------------------------------------------------- Renyi


def test_an_infinite_divergence_is_unusable_and_never_silently_good() -> None:
    assert renyi_to_epsilon([2.0, 4.0], [math.inf, math.inf], 1e-5) == math.inf
    assert renyi_to_delta([2.0, 4.0], [math.inf, math.inf], 1.0) == 1.0
    alone = renyi_to_epsilon([2.0], [0.1], 1e-5)
    assert renyi_to_epsilon([2.0, 4.0], [0.1, math.inf], 1e-5) == alone


# --------------------------------------------------------------------------------- all of them


ENDS = np.array([0.0, 1e-300, 1e-9, 0.1, 1.0, 50.0, 1e4, 1e99, 1e300, math.inf])


@pytest.mark.parametrize("convert", [zcdp_to_epsilon, gdp_to_epsilon])
def test_nothing_spent_is_epsilon_zero_and_infinity_is_infinite(convert) -> None:
    epsilon = convert(ENDS, 1e-5)
    assert epsilon[0] == 0.0
    assert epsilon[-1] == math.inf
    assert (np.diff(epsilon[:-1]) >= 0.0).all()
    assert [convert(level, 1e-5) for level in ENDS.tolist()] == epsilon.tolist()


@pytest.mark.parametrize("convert", [zcdp_to_delta, gdp_to_delta])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 100.0, 1e30, 1e300])
def test_delta_is_monotone_between_zero_and_one(convert, epsilon: float) -> None:
    delta = convert(ENDS, epsilon)
    assert delta[0] == 0.0
    assert delta[-1] == 1.0
    assert (delta[1:] > 0.0).all()
    assert (np.diff(delta) >= 0.0).all()
    assert [convert(level, epsilon) for level in ENDS.tolist()] == delta.tolist()


# --------------------------------------------------------------- the ends of the ranges, exactly

DELTAS = [1e-300, 1e-200, 1e-100, 1e-30, 1e-12, 1e-5, 0.01, 0.3, 0.9, 0.999]
MUS = [1e-6, 3e-5, 1e-3, 0.02, 0.2, 0.3, 2.0, 15.0, 70.0, 300.0, 999.0, 1e3]
RHOS = [1e-12, 1e-8, 1e-5, 1e-3, 0.03, 0.5, 7.0, 100.0, 2e3, 1e4]


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


# --------------------------------------------------------------------------- Gaussian differential


@pytest.mark.parametrize("mu", MUS)
def test_gdp_delta_is_above_the_exact_one_by_at_most_2e_12(mu: float) -> None:
    for x in [-30.0, -5.0, -1.0, -0.01, 0.0, 1e-3, 0.7, 2.0, 6.0, 15.0, 25.0, 33.0, 36.5, 36.9]:
        epsilon = mu * (x + mu / 2)
        if epsilon >= 0.0:
            exact = gdp_delta(mu, epsilon)
            assert exact > 1e-306
            delta = gdp_to_delta(mu, epsilon)
            assert exact <= delta <= exact * (1 + mpf(2e-12)) + mpf(5e-324), (mu, x)


@pytest.mark.parametrize("tail", [0.0, 1e-3, 0.4, 2.0, 7.0, 20.0])
def test_gdp_delta_is_above_the_exact_one_however_small_mu_is(tail: float) -> None:
    for mu in np.geomspace(1e-100, 1e-6, 60).tolist():
        epsilon = tail * mu
        exact = gdp_delta(mu, epsilon, digits=250)  # the difference of two numbers
        assert exact <= gdp_to_delta(mu, epsilon) <= exact * (1 + mpf(2e-12)), mu


@pytest.mark.parametrize("mu", MUS)
def test_gdp_epsilon_is_the_least_with_this_delta(mu: float) -> None:
    for delta in DELTAS:
        epsilon = gdp_to_epsilon(mu, delta)
        if epsilon == 0.0:
            assert gdp_delta(mu, 0.0) <= delta
        else:
            assert gdp_delta(mu, epsilon) <= delta
            below = epsilon * (1 - 1e-13)
            assert gdp_delta(mu, below) > delta * (1 - 5e-12), (mu, delta)


# ------------------------------------------------------------------------------------------- zCDP


@pytest.mark.parametrize("rho", RHOS)
def test_zcdp_epsilon_is_the_least_over_all_orders(rho: float) -> None:
    for delta in DELTAS[::2]:
        epsilon, target = zcdp_to_epsilon(rho, delta), mpmath.log(mpf(delta))
        if epsilon == 0.0:
            assert zcdp_log_delta(rho, 0.0) <= target
        else:
            assert zcdp_log_delta(rho, epsilon) <= target
            assert zcdp_log_delta(rho, epsilon * (1 - 1e-12)) > target - mpf(1e-11), (rho, delta)


@pytest.mark.parametrize("rho", RHOS)
def test_zcdp_delta_is_above_the_least_over_all_orders_by_at_most_2e_11(rho: float) -> None:
    for tail in (0.0, 0.3, 2.0, 9.0, 20.0, 26.0):
        epsilon = rho + 2.0 * tail * math.sqrt(rho)
        exact = mpmath.exp(zcdp_log_delta(rho, epsilon))
        assert exact <= zcdp_to_delta(rho, epsilon) <= exact * (1 + mpf(2e-11)), (rho, tail)


# ------------------------------------------------------------------------------------------ Renyi


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

# Neighbours are 1e-9 apart; the conversions themselves are good to about 1e-13.
CLOSE = 1.0 + 1e-9 * np.arange(1, 500)
LEVELS = np.unique(np.concatenate([np.geomspace(1e-12, 1e4, 3001), 0.02 * CLOSE, 1.7 * CLOSE]))
RISING_DELTAS = np.unique(np.concatenate([DELTAS, 0.02 * CLOSE[:10], 3e-250 * CLOSE[:10]]))


def rising(values: np.ndarray) -> bool:
    return bool((np.diff(values) >= 0.0).all())


TO_EPSILON = [
    gdp_to_epsilon,
    zcdp_to_epsilon,
    lambda rho, delta: renyi_to_epsilon([1.1, 4.0, 900.0], np.outer(rho, [1.1, 4.0, 900.0]), delta),
]
TO_DELTA = [
    gdp_to_delta,
    zcdp_to_delta,
    lambda rho, epsilon: renyi_to_delta(
        [1.1, 4.0, 900.0], np.outer(rho, [1.1, 4.0, 900.0]), epsilon
    ),
]
Convert = Callable[[np.ndarray, float], np.ndarray]


@pytest.mark.parametrize("convert", TO_EPSILON)
def test_epsilon_rises_with_the_level_and_falls_with_delta(convert: Convert) -> None:
    previous = np.full(LEVELS.shape, math.inf)
    for delta in RISING_DELTAS.tolist():
        epsilon = convert(LEVELS, delta)
        assert rising(epsilon), delta
        assert (epsilon >= 0.0).all()
        assert (epsilon <= previous).all(), delta
        previous = epsilon


@pytest.mark.parametrize("convert", [*TO_EPSILON, *TO_DELTA])
def test_an_array_gives_what_each_of_its_numbers_gives_alone(convert: Convert) -> None:
    levels = np.concatenate([[0.0], np.geomspace(1e-12, 1e5, 43), [math.inf]])
    for at in (1e-300, 1e-5, 0.6):
        together = convert(levels, at)
        alone = [float(convert(np.array([level]), at)[0]) for level in levels.tolist()]
        np.testing.assert_array_equal(together, alone)
        np.testing.assert_array_equal(convert(levels[::-1], at), together[::-1])


# ---------------------------------------------------------------------------------------- budgets


@given(
    st.lists(st.floats(-12.0, 12.0).map(lambda x: 1.0 + 10.0**x), min_size=1, max_size=6),
    st.one_of(st.just(0.0), st.floats(-9.0, 4.0).map(lambda x: 10.0**x)),
    st.floats(-300.0, -0.001).map(lambda x: 10.0**x),
)
def test_renyi_budgets_are_the_largest_that_imply_epsilon_and_delta_by_themselves(
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


def test_a_renyi_filter_of_one_order_with_its_budget_is_the_filter_of_the_target() -> None:
    """The best of the orders admits nearly as many steps as the best real order, of zCDP."""
    epsilon, delta, rho = 1.0, 1e-5, 1e-4
    orders = np.arange(2.0, 64.0)
    budgets = renyi_budgets(epsilon, delta, orders)
    steps = np.floor(budgets / (orders * rho))
    assert (
        0.998 * zcdp_budget(epsilon, delta) / rho < steps.max() < zcdp_budget(epsilon, delta) / rho
    )
    assert budgets[0] == 0.0  # order 2 alone says nothing at this delta
