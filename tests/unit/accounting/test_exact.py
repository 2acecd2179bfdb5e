"""Numbers, units, products and roots, each against rational arithmetic."""

from __future__ import annotations

import math
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import (
    MAX_COST_UNITS,
    InvalidInput,
    budget_units,
    cost_units,
    from_units,
    from_units_down,
)
from accounting.costs.power_cost import units_at_orders, units_within_orders
from accounting.exact.argument_checks import (
    as_float_array,
    exact_number,
    nonnegative_finite,
    positive_finite,
    probability,
    real_number,
    sampling_probability,
)
from accounting.exact.products import product_up, ratio_ceil, square_ratio_up
from accounting.exact.rounding import float_toward, root_toward
from tests.unit.accounting import rational_model as exact
from tests.unit.accounting.refusals import refused

NO_NUMBERS = [
    *(True, np.True_, "1", b"1", None, 1j, np.complex128(1), object()),
    *(Decimal("0.1"), Decimal("sNaN"), Fraction(1, 3), np.longdouble(1)),
    *(np.timedelta64(5, "s"), np.datetime64("2020-01-01"), np.array([1.0]), [1.0]),
    *(2**53 + 1, 2**70, np.int64(2**60 - 1), np.uint64(2**64 - 1), 10**400, -(10**400)),
    pytest.param(10**5000, id="of more digits than Python writes"),
]
NO_ARRAYS = [
    *([[1.0], [1.0, 2.0]], ["1.0"], [None], [object()], {"a": 1.0}, {1.0, 2.0}, None),
    *([Decimal(1)], [Fraction(1, 3)], [np.longdouble(1)], np.array([1.0], dtype=object)),
    *(np.array([1], dtype="m8[s]"), np.array([1 + 0j]), np.array([True]), [2**53 + 1], [10**400]),
    *(np.ma.array([1.0, 0.0], mask=[False, True]), np.ma.array([1])),
    pytest.param([10**5000], id="of more digits than Python writes"),
    (number for number in [1.0]),
]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((0.1, 0.1), (np.float64(0.1), 0.1), (np.float32(0.1), 0.10000000149011612)),
        *((3, 3.0), (np.int8(-3), -3.0), (np.uint64(2**53), 2.0**53)),
        (math.inf, math.inf),
    ],
)
def test_numbers_are_taken_exactly(value: float, number: float) -> None:
    found = real_number("x", value)
    assert (type(found), found) == (float, number)
    if number < math.inf:
        assert exact_number("x", value) == Fraction(number)


NAN = [math.nan, np.float32("nan")]
CHECKS = (exact_number, positive_finite, nonnegative_finite, probability, sampling_probability)


@pytest.mark.parametrize("value", [*NO_NUMBERS, *NAN])
def test_all_other_numbers_are_refused(value: Any) -> None:
    takes_nan = isinstance(value, float | np.float32)
    for check in CHECKS if takes_nan else (real_number, *CHECKS):
        with refused("x"):
            check("x", value)


@pytest.mark.parametrize(
    "values",
    [
        *([1, 2.0], (1, 2), np.array([1, 2], dtype=np.uint8), np.array([1, 2], dtype=np.float32)),
        *(np.array([1, 2], dtype=">f8"), np.array([1.0, 0.0, 2.0])[::2], range(1, 3)),
    ],
)
def test_arrays_are_taken_exactly(values: Any) -> None:
    found = as_float_array("x", values)
    assert found.flags.c_contiguous
    assert (found.dtype, found.tolist()) == (np.float64, [1.0, 2.0])


@pytest.mark.parametrize("values", NO_ARRAYS)
def test_all_other_arrays_are_refused(values: Any) -> None:
    with refused("x"):
        as_float_array("x", values)


@given(st.lists(st.floats(min_value=0.0, allow_nan=False), max_size=20))
@example([0.0, -0.0, 5e-324, 2.0**-44, math.nextafter(2.0**-44, 1.0), 1.0])
@example([2.0**18, math.nextafter(2.0**18, 0.0), 1e308, math.inf])
def test_cost_units_are_the_exact_ceiling(costs: list[float]) -> None:
    expected = [MAX_COST_UNITS if c == math.inf else exact.units(Fraction(c)) for c in costs]
    assert cost_units(np.array(costs)).tolist() == expected


@given(st.floats(min_value=2.0**-44, max_value=2.0**17))
def test_budget_units_are_the_exact_floor(budget: float) -> None:
    assert budget_units(budget) == math.floor(Fraction(budget) * 2**44)


@given(st.lists(st.integers(0, MAX_COST_UNITS), min_size=1, max_size=20))
def test_from_units_brackets_the_exact_value(units: list[int]) -> None:
    up, down = from_units(np.array(units)), from_units_down(np.array(units))
    for number, high, low in zip(units, up.tolist(), down.tolist(), strict=True):
        value = number * exact.UNIT
        assert exact.is_smallest_float_at_least(high, value)
        assert Fraction(low) <= value < Fraction(math.nextafter(low, math.inf))


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(InvalidInput("rho", -1.0, "greater than 0")))
    assert (error.argument, error.value, error.allowed) == ("rho", -1.0, "greater than 0")


TINY, HUGE = 5e-324, 1.7976931348623157e308
ADVERSARIAL = [
    *(0.0, 1.0, 2.0, 3.0, 7.0, 0.1, 0.2, 0.3, 0.25, 1 / 3, 10.61, 1e-3, 1e16, 2.0**26 + 1),
    *(math.nextafter(1.0, 2.0), math.nextafter(1.0, 0.0), math.sqrt(2.0), math.sqrt(0.5)),
    *(TINY, 2.0**-1022, 1e-310, 1e-160, 2.0**-300, 2.0**-511, 2.0**300, 1e150, 1e154, HUGE),
]
usual = st.floats(2.0**-800, 2.0**800) | st.just(0.0)


def check_square_ratios(c: list[float], s: float) -> None:
    for value, result in zip(c, square_ratio_up(np.array(c), s).tolist(), strict=True):
        ratio = Fraction(value) / Fraction(s)
        if ratio and not 2.0**-399 < ratio < 2.0**399:  # an upper bound
            assert result >= min(ratio**2, 2.0**800), (value, s)
        else:
            assert exact.is_smallest_float_at_least(result, ratio**2), (value, s)


@given(st.lists(exact.any_norm, max_size=10), exact.any_scale)
def test_square_ratio_is_the_smallest_float_above(c: list[float], s: float) -> None:
    near = [min(s * (1.0 + value % 1.0), HUGE) for value in c]
    check_square_ratios([*c, *near], s)
    scale = ADVERSARIAL[1 + len(c)]
    check_square_ratios([*ADVERSARIAL, *(scale * k for k in (0.5, 2.0, 3.0, 0.25))], scale)


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


def test_square_ratio_of_pell_numbers_is_exact() -> None:
    for n in (2, 3, 5, 7, 13, 14, 56, 61, 110, 218, 224, 1726):
        for c, s in convergents_of_root(n):
            check_square_ratios([float(c)], float(s))


@given(st.lists(usual, max_size=10), st.floats(2.0**-100, 2.0**100))
def test_product_is_the_smallest_float_above(m: list[float], a: float) -> None:
    for value, result in zip(m, product_up(a, np.array(m)).tolist(), strict=True):
        assert exact.is_smallest_float_at_least(result, Fraction(a) * Fraction(value)), (a, value)
    assert product_up(a, [math.inf, 2.0**801, TINY]).tolist() == [math.inf, math.inf, a * 2.0**-800]


def check_ceilings(c: list[float], s: float, bits: int, power: int) -> None:
    unit = Fraction(s) ** power / 2**bits
    expected = [min(math.ceil(Fraction(value) ** power / unit), 2**62) for value in c]
    assert ratio_ceil(np.array(c), s, bits, 2**62, power).tolist() == expected


@pytest.mark.parametrize("s", [s for s in ADVERSARIAL if s > 0.0])
def test_ceiling_of_a_ratio_is_exact_for_adversarial_values(s: float) -> None:
    factors = (0.5, 1.0, 3.0, 2.0**-44, 1.5 * 2.0**-44, 2.0**-45, 2.0**18, 2.0**17.5, 2.0**-22)
    multiples = [s * k for k in factors if s * k < math.inf]
    beside = [math.nextafter(m, end) for m in multiples for end in (0.0, math.inf)]
    values = [v for v in ADVERSARIAL + multiples + beside if v < math.inf]
    check_ceilings(values, s, 44, 1)
    check_ceilings(values, s, 43, 2)


@given(st.lists(exact.any_norm, max_size=5), exact.any_scale)
def test_ceiling_of_a_ratio_is_exact_for_any_float(c: list[float], s: float) -> None:
    check_ceilings(c, s, 44, 1)
    # Norms of up to 724 times the scale reach every magnitude below saturation.
    c += [min(s * f, HUGE) for f in (0.1, 1.0, 31.9, 32.1, 99.7, 500.3, 723.9, 724.2)]
    check_ceilings(c, s, 43, 2)


unit_numbers = st.one_of(
    st.integers(0, 100), st.integers(0, 2**45), st.integers(2**52, 2**54), st.integers(0, 2**62)
)


@given(
    st.lists(unit_numbers, min_size=1, max_size=8),
    st.lists(exact.order, min_size=1, max_size=4),
)
@example([2**53 + 1, 2**58 - 1, 2**61 + 1], [1.1, 2.7, 511.3])  # float64 does not hold these units
@example([2**62, 2**62 - 1, 2**22, 2**22 + 1], [2.0**40, 1.0 + 2.0**-52])
@example([2**61 - 1, 2**61 + 1], [2.0])
@example([7, 2**50 + 1], [2.5, 1.0625])
@example([2000, 2500, 3000, 3500, 4000, 4500, 5000, 5500], [math.nextafter(2.0, 0.0)])
def test_units_at_orders_are_the_exact_ceiling(units: list[int], orders: list[float]) -> None:
    # Units whose products are near the limit, where estimates are off by most.
    units = [*units, *(min(int((2**62 + d) / Fraction(orders[0])), 2**62) for d in units)]
    # Orders that are the float next to a whole multiple bring products close to integers.
    near = 1.0 + max(round(orders[0] % 1000 * 16), 1) / 16.0
    for some in (orders, [near], [near, math.nextafter(near, 9e9), 1.0 + 2.0**-52]):
        for few in (units, units[:1]):
            expected = [[min(math.ceil(Fraction(a) * u), 2**62) for a in some] for u in few]
            assert units_at_orders(np.array(few), np.array(some)).tolist() == expected


@given(st.lists(unit_numbers, min_size=1, max_size=8), exact.order)
def test_units_within_an_order_are_the_exact_floor(limits: list[int], a: float) -> None:
    boundary = [min(math.ceil(Fraction(a) * u), 2**62) for u in limits]
    rows = [*limits, *boundary, *(max(b - 1, 0) for b in boundary)]
    result = units_within_orders(np.array(rows)[:, np.newaxis], np.array([a]))
    assert result[:, 0].tolist() == [math.floor(limit / Fraction(a)) for limit in rows]


@given(
    st.one_of(
        st.integers(-(2**1030), 2**1030),
        st.fractions(),
        st.floats(allow_nan=False, allow_infinity=False).map(Fraction),
    )
)
@example(Fraction(1, 10**400))
@example(10**400)
def test_a_number_lies_between_neighbouring_floats(number: int | Fraction) -> None:
    low, high = float_toward(number, "down"), float_toward(number, "up")
    exact = Fraction(number)
    assert low == -math.inf or Fraction(low) <= exact
    assert high == math.inf or exact <= Fraction(high)
    assert low == high or math.nextafter(low, math.inf) == high
    assert (low == high) == (math.isfinite(low) and Fraction(low) == exact)


@given(st.fractions(min_value=Fraction(1, 10**9), max_value=10**12), st.integers(-400, 400))
@example(Fraction(9, 4), 0)
def test_a_root_lies_between_neighbouring_floats(number: Fraction, power: int) -> None:
    square = number * Fraction(2) ** power
    low, high = root_toward(square, "down"), root_toward(square, "up")
    assert Fraction(low) ** 2 <= square <= Fraction(high) ** 2
    assert (low == high) if Fraction(low) ** 2 == square else math.nextafter(low, 1e300) == high
