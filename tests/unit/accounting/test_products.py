from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accounting.costs.order_units import units_at_orders, units_within_orders
from accounting.exact.products import product_up, ratio_ceil, square_ratio_up
from tests.unit.accounting import rational_model as exact

TINY, HUGE = 5e-324, 1.7976931348623157e308
ADVERSARIAL = [
    *(0.0, 1.0, 2.0, 3.0, 7.0, 0.1, 0.2, 0.3, 0.25, 1 / 3, 10.61, 1e-3, 1e16, 2.0**26 + 1),
    *(math.nextafter(1.0, 2.0), math.nextafter(1.0, 0.0), math.sqrt(2.0), math.sqrt(0.5)),
    *(TINY, 2.0**-1022, 1e-310, 1e-160, 2.0**-300, 2.0**-511, 2.0**300, 1e150, 1e154, HUGE),
]


def check_square_ratios(c: list[float], s: float) -> None:
    for value, result in zip(c, square_ratio_up(np.array(c), s).tolist(), strict=True):
        ratio = (Fraction(value) / Fraction(s)) ** 2
        assert exact.is_smallest_float_at_least(result, ratio), (value, s)


@pytest.mark.parametrize("s", [s for s in ADVERSARIAL if s > 0.0])
def test_square_ratio_is_the_smallest_float_above_for_adversarial_values(s: float) -> None:
    multiples = [s * k for k in (0.5, 1.0, 2.0, 3.0, 0.25) if s * k < math.inf]
    check_square_ratios(ADVERSARIAL + multiples, s)


@given(st.lists(exact.any_norm, max_size=10), exact.any_scale)
def test_square_ratio_is_the_smallest_float_above_for_any_float(c: list[float], s: float) -> None:
    check_square_ratios(c, s)


def check_ratio_ceilings(c: list[float], s: float) -> None:
    unit = Fraction(2**44) / Fraction(s)
    expected = [min(math.ceil(Fraction(value) * unit), 2**62) for value in c]
    assert ratio_ceil(np.array(c), s, 44, 2**62).tolist() == expected


@pytest.mark.parametrize("s", [s for s in ADVERSARIAL if s > 0.0])
def test_ceiling_of_a_ratio_is_exact_for_adversarial_values(s: float) -> None:
    factors = (0.5, 1.0, 3.0, 2.0**-44, 1.5 * 2.0**-44, 2.0**-45, 2.0**18, 2.0**17.5)
    multiples = [s * k for k in factors if s * k < math.inf]
    beside = [math.nextafter(m, end) for m in multiples for end in (0.0, math.inf)]
    check_ratio_ceilings([v for v in ADVERSARIAL + multiples + beside if v < math.inf], s)


@given(st.lists(exact.any_norm, max_size=5), exact.any_scale)
def test_ceiling_of_a_ratio_is_exact_for_any_float(c: list[float], s: float) -> None:
    check_ratio_ceilings(c, s)


def convergents_of_root(n: int) -> list[tuple[int, int]]:
    """Integers (c, s) up to 2**53 with c / s next to sqrt(n): c^2 - n s^2 is small, not zero."""
    root = math.isqrt(n)
    m, d, a = 0, 1, root
    pairs = [(1, 0), (root, 1)]
    while pairs[-1][0] < 2**53:
        m = d * a - m
        d = (n - m * m) // d
        a = (root + m) // d
        pairs.append((a * pairs[-1][0] + pairs[-2][0], a * pairs[-1][1] + pairs[-2][1]))
    return pairs[1:-1]


def test_square_ratio_of_pell_numbers_is_decided_though_a_2_to_minus_105_from_a_float() -> None:
    for n in (2, 3, 5, 7, 13, 14, 56, 61, 110, 218, 224, 1726):
        for c, s in convergents_of_root(n):
            check_square_ratios([float(c)], float(s))


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 10_000])
def test_blocks_do_not_change_the_result(size: int) -> None:
    c = np.random.default_rng(size).random(size)
    whole = square_ratio_up(c, 1.1)
    reversed_whole = square_ratio_up(c[::-1], 1.1)[::-1]
    np.testing.assert_array_equal(whole, reversed_whole)
    grid = square_ratio_up(c.reshape(1, size), 1.1)
    np.testing.assert_array_equal(grid, whole.reshape(1, size))
    assert square_ratio_up(0.3, 1.1).shape == ()


@given(st.lists(exact.any_norm, max_size=10), exact.any_scale)
def test_product_is_the_smallest_float_above(m: list[float], a: float) -> None:
    for value, result in zip(m, product_up(a, np.array(m)).tolist(), strict=True):
        assert exact.is_smallest_float_at_least(result, Fraction(a) * Fraction(value)), (a, value)


def test_product_with_infinity_is_infinite() -> None:
    assert product_up(1e-300, [math.inf, 0.0]).tolist() == [math.inf, 0.0]


@given(st.lists(exact.any_norm, max_size=6), exact.any_scale)
def test_square_ratio_ceiling_is_exact_up_to_saturation(c: list[float], s: float) -> None:
    # Norms of up to 724 times the scale reach every magnitude below saturation.
    c = [*c, *(min(s * f, HUGE) for f in (0.1, 1.0, 31.9, 32.1, 99.7, 500.3, 723.9, 724.2))]
    result = ratio_ceil(np.array(c), s, 43, 2**62, 2)
    assert result.tolist() == [exact.zcdp_units(value, s) for value in c]


@pytest.mark.parametrize("s", [2.0**400, 2.0**160, 2.0**128, 3e-60, 2.0**-140, 1e-300])
def test_square_ratio_ceiling_of_a_positive_norm_is_never_zero(s: float) -> None:
    c = [math.ldexp(s, exponent) for exponent in (-700, -500, -300, -290, -45, -22)]
    c = [5e-324, 1e-200, *(value for value in c if value > 0.0)]
    result = ratio_ceil(np.array([0.0, *c]), s, 43, 2**62, 2)
    assert result.tolist() == [0, *(exact.zcdp_units(value, s) for value in c)]


@given(st.lists(st.integers(1, 2**50), min_size=1, max_size=20), st.integers(1, 2**10))
def test_square_ratio_ceiling_is_exact_beside_whole_numbers(roots: list[int], s: int) -> None:
    # (c / s)^2 2**44 is whole at c = s k 2**-22; its neighbours lie just above and below.
    whole = np.array(roots, dtype=np.float64) % 2**26 * s * 2.0**-22
    c = np.concatenate([whole, np.nextafter(whole, 0.0), np.nextafter(whole, np.inf)])
    result = ratio_ceil(c, float(s), 44, 2**62, 2)
    expected = [math.ceil(Fraction(value) ** 2 / s**2 * 2**44) for value in c.tolist()]
    assert result.tolist() == [min(units, 2**62) for units in expected]


unit_numbers = st.one_of(
    st.integers(0, 100), st.integers(0, 2**45), st.integers(2**52, 2**54), st.integers(0, 2**62)
)


@given(
    st.lists(unit_numbers, min_size=1, max_size=8),
    st.lists(exact.order, min_size=1, max_size=4),
)
@example([2**53 + 1, 2**58 - 1, 2**61 + 1], [1.1, 2.7, 511.3])  # float64 does not hold these units
def test_units_at_orders_are_the_exact_ceiling(units: list[int], orders: list[float]) -> None:
    result = units_at_orders(np.array(units), np.array(orders))
    expected = [[min(math.ceil(Fraction(a) * u), 2**62) for a in orders] for u in units]
    assert result.tolist() == expected


@given(st.integers(0, 2**50), exact.order)
def test_units_at_an_order_are_exact_where_the_product_is_nearly_whole(u: int, a: float) -> None:
    # Orders that are the float next to a whole multiple bring products close to integers.
    near = [a, 1.0 + max(round(a * 16), 1) / 16.0]
    near += [math.nextafter(near[1], 9e9), 1.0 + 2.0**-52]
    result = units_at_orders(np.array([u, u + 1]), np.array(near))
    expected = [[min(math.ceil(Fraction(b) * v), 2**62) for b in near] for v in (u, u + 1)]
    assert result.tolist() == expected


@given(st.lists(unit_numbers, min_size=1, max_size=8), exact.order)
def test_units_within_an_order_are_the_exact_floor(limits: list[int], a: float) -> None:
    boundary = [min(math.ceil(Fraction(a) * u), 2**62) for u in limits]
    rows = [*limits, *boundary, *(max(b - 1, 0) for b in boundary)]
    result = units_within_orders(np.array(rows)[:, np.newaxis], np.array([a]))
    assert result[:, 0].tolist() == [math.floor(limit / Fraction(a)) for limit in rows]
