"""Numbers that float64 cannot hold are rounded against the spender, or refused."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    Gaussian,
    GdpFilter,
    InvalidInput,
    Laplace,
    PoissonGaussian,
    PureDP,
    RenyiFilter,
    SparseVector,
    ZcdpFilter,
    charge_units,
    gdp_budget,
    gdp_cost,
    gdp_to_delta,
    gdp_to_epsilon,
    noise_for_norm_budget,
    renyi_cost,
    renyi_to_delta,
    renyi_to_epsilon,
    zcdp_budget,
    zcdp_cost,
    zcdp_to_delta,
    zcdp_to_epsilon,
)
from accounting.exact.rounding import DOWN, UP, Toward
from accounting.exact.validation import (
    Number,
    as_float_array,
    exact_number,
    nonnegative_finite,
    positive_finite,
    probability,
    real_number,
    sampling_probability,
)
from accounting.research import LecuyerOdometer, RenyiTracker, RogersFilter
from tests.unit.accounting.refusals import refused

JUST_BELOW_ONE = Fraction(2**60 - 1, 2**60)
JUST_ABOVE_ONE = Fraction(2**60 + 1, 2**60)
ULP_BELOW, ULP_ABOVE = math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0)
toward = st.sampled_from([UP, DOWN])
fractions = st.fractions().filter(lambda number: abs(number) < 10**300)
decimals = st.decimals(-(10**30), 10**30, allow_nan=False)


# ----------------------------------------------------------------------------- the one rounding


@given(st.one_of(fractions, decimals), toward)
def test_a_number_becomes_the_nearest_float_on_the_side_asked_for(
    number: Fraction | Decimal, side: Toward
) -> None:
    result, exact = real_number("x", number, side), Fraction(number)
    if side == UP:
        assert math.nextafter(result, -math.inf) < exact <= Fraction(result)
    else:
        assert Fraction(result) <= exact < math.nextafter(result, math.inf)
    assert exact_number("x", number) == exact


@given(st.integers(0, 2**64 - 1), st.integers(-80, 80), toward)
def test_long_doubles_are_rounded_like_the_fractions_they_are(
    digits: int, exponent: int, side: Toward
) -> None:
    number = np.ldexp(np.longdouble(digits), exponent)
    exact = Fraction(*number.as_integer_ratio())
    expected = real_number("x", exact, side)
    assert real_number("x", number, side) == expected
    assert as_float_array("x", np.array([number]), side).tolist() == [expected]
    assert as_float_array("x", np.array([exact]), side).tolist() == [expected]
    assert exact_number("x", number) == exact


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (Fraction(1, 10**400), 5e-324, 0.0),
        (Decimal("1e-999999999"), 5e-324, 0.0),
        (10 * Fraction(10) ** 400, math.inf, math.nextafter(math.inf, 0.0)),
        (Decimal("1e999999999"), math.inf, math.nextafter(math.inf, 0.0)),
        (Decimal("Infinity"), math.inf, math.inf),
        (JUST_BELOW_ONE, 1.0, ULP_BELOW),
        (JUST_ABOVE_ONE, ULP_ABOVE, 1.0),
        (-JUST_BELOW_ONE, -ULP_BELOW, -1.0),
        (np.float16(0.1), 0.0999755859375, 0.0999755859375),
        (np.float32(0.1), 0.10000000149011612, 0.10000000149011612),
        (np.float64(0.1), 0.1, 0.1),
        (np.array(0.1), 0.1, 0.1),
        (np.array(Fraction(1, 2)), 0.5, 0.5),
        (np.uint64(2**63), 2.0**63, 2.0**63),
        (2**70, 2.0**70, 2.0**70),
        (Fraction(2**70), 2.0**70, 2.0**70),
    ],
)
def test_numbers_of_many_kinds(value: Number, up: float, down: float) -> None:
    assert real_number("x", value, UP) == up
    assert real_number("x", value, DOWN) == down
    if up == down:
        assert real_number("x", value) == up
    else:
        with refused("x"):
            real_number("x", value)


@pytest.mark.parametrize(
    "value",
    [
        True,
        np.True_,
        np.array(True),
        "1",
        b"1",
        None,
        1j,
        np.complex128(1),
        np.timedelta64(5, "s"),
        np.datetime64("2020-01-01"),
        np.array([1.0]),
        np.array([]),
        [1.0],
        Decimal("sNaN"),
        object(),
        2**53 + 1,
        np.int64(2**60 - 1),
        np.uint64(2**64 - 1),
        10**400,
        pytest.param(10**5000, id="of more digits than Python writes"),
    ],
)
def test_what_is_no_number_or_an_inexact_integer_is_refused_in_every_direction(
    value: Number,
) -> None:
    for side in (None, UP, DOWN):
        with refused("x"):
            real_number("x", value, side)


def test_not_a_number_is_refused_where_numbers_are_used() -> None:
    for value in (math.nan, np.float32("nan"), Decimal("NaN"), np.longdouble("nan")):
        assert math.isnan(real_number("x", value, UP))
        for check in (positive_finite, nonnegative_finite, probability, sampling_probability):
            with pytest.raises(InvalidInput):
                check("x", value)
        with pytest.raises(InvalidInput):
            exact_number("x", value)


@pytest.mark.parametrize(
    "values",
    [
        [[1.0], [1.0, 2.0]],
        ["1.0"],
        [None],
        [object()],
        {"a": 1.0},
        {1.0, 2.0},
        [Decimal("sNaN")],
        np.array([1], dtype="m8[s]"),
        np.ma.masked_array([1.0, 0.0], [False, True]),
        np.array([1 + 0j]),
        np.array([True]),
        [2**53 + 1],
        [10**400],
        pytest.param([10**5000], id="of more digits than Python writes"),
        (number for number in [1.0]),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(values: object) -> None:
    for side in (None, UP, DOWN):
        with refused("x"):
            as_float_array("x", values, side)


def test_a_message_stays_short_whatever_the_value() -> None:
    for value in (10**5000, ["a"] * 10**5, "a" * 10**5):
        with pytest.raises(InvalidInput) as caught:
            as_float_array("x", value)
        assert len(str(caught.value)) < 400
        assert caught.value.value is value


# -------------------------------------------------------------- what that means for each argument


def test_noise_a_rounding_below_one_costs_more_than_one() -> None:
    for noise in (
        JUST_BELOW_ONE,
        Decimal(1) - Decimal("1e-19"),
        np.nextafter(np.longdouble(1), 0),
    ):
        assert Gaussian(noise).noise_stddev == ULP_BELOW
        assert gdp_cost(Gaussian(noise), [1.0])[0] > 1.0
        assert zcdp_cost(Laplace(noise), [1.0])[0] > 0.5
        assert charge_units("gdp", Gaussian(noise), [1.0])[0] > 2**44
        assert PoissonGaussian(noise, 0.5).noise_stddev == ULP_BELOW
    with refused("noise_stddev"):
        Gaussian(np.int64(2**60 - 1))


def test_a_budget_a_rounding_below_one_does_not_admit_one() -> None:
    for budget in (
        JUST_BELOW_ONE,
        Decimal(1) - Decimal("1e-19"),
        np.nextafter(np.longdouble(1), 0),
    ):
        for rule in (ZcdpFilter(budget), GdpFilter(budget), RenyiFilter([2.0], [budget])):
            cost = np.ones(rule.initial_state(1).shape)
            assert not rule.admit(rule.initial_state(1), cost)[1][0]
            assert rule.remaining(rule.initial_state(1)).max() < 1.0
    assert ZcdpFilter(JUST_ABOVE_ONE).admit(np.zeros(1, dtype=np.int64), [1.0])[1][0]


@pytest.mark.parametrize(
    "norms",
    [
        [JUST_ABOVE_ONE],
        [Decimal(1) + Decimal("1e-19")],
        np.array([np.nextafter(np.longdouble(1), 2)]),
    ],
)
def test_norms_and_costs_are_rounded_up(norms: object) -> None:
    assert zcdp_cost(PureDP(), norms)[0] > 0.5
    assert renyi_cost(Gaussian(1.0), norms, [2.0])[0, 0] > 1.0
    assert charge_units("zcdp", Gaussian(1.0), norms)[0] > 2**43
    assert not ZcdpFilter(1.0).admit(np.zeros(1, dtype=np.int64), norms)[1][0]
    assert not RogersFilter(1.0, 1e-5).admit(np.zeros((1, 2), dtype=np.int64), norms)[1][0]
    _, bound = RenyiTracker(2.0, 1.0).advance(RenyiTracker(2.0, 1.0).initial_state(1), norms)
    assert bound[0] > 1.0
    assert renyi_to_epsilon([2.0], norms, 1e-5) == renyi_to_epsilon([2.0], [ULP_ABOVE], 1e-5)
    assert gdp_to_delta(norms, 1.0)[0] == gdp_to_delta(ULP_ABOVE, 1.0)


def test_float16_and_float32_norms_are_taken_as_they_are() -> None:
    for kind in (np.float16, np.float32):
        norms = np.array([0.1, 0.7, 1.0], dtype=kind)
        exact = norms.astype(np.float64)
        np.testing.assert_array_equal(
            charge_units("zcdp", Gaussian(kind(3.3)), norms),
            charge_units("zcdp", Gaussian(float(kind(3.3))), exact),
        )


def test_sampling_rates_are_rounded_up_and_stay_probabilities() -> None:
    assert PoissonGaussian(1.0, Fraction(1, 3)).sampling_rate == math.nextafter(1 / 3, 1.0)
    assert PoissonGaussian(1.0, JUST_BELOW_ONE).sampling_rate == 1.0
    assert PoissonGaussian(1.0, Decimal("1e-999")).sampling_rate == 1e-290
    with refused("sampling_rate"):
        PoissonGaussian(1.0, JUST_ABOVE_ONE)


def test_targets_are_rounded_down() -> None:
    epsilon, delta = Fraction(1, 3), Decimal("1e-5")
    low_epsilon, low_delta = real_number("e", epsilon, DOWN), real_number("d", delta, DOWN)
    assert low_epsilon < epsilon
    assert low_delta < delta
    assert zcdp_budget(epsilon, delta) == zcdp_budget(low_epsilon, low_delta)
    assert gdp_budget(epsilon, delta) == gdp_budget(low_epsilon, low_delta)
    assert zcdp_to_epsilon(0.1, delta) == zcdp_to_epsilon(0.1, low_delta)
    assert zcdp_to_delta(0.1, epsilon) == zcdp_to_delta(0.1, low_epsilon)
    assert gdp_to_epsilon(0.1, delta) == gdp_to_epsilon(0.1, low_delta)
    assert renyi_to_delta([2.0], [0.1], epsilon) == renyi_to_delta([2.0], [0.1], low_epsilon)
    assert RogersFilter(epsilon, delta) == RogersFilter(low_epsilon, low_delta)
    assert LecuyerOdometer([2.0], delta) == LecuyerOdometer([2.0], low_delta)
    assert SparseVector(1, epsilon, generator=np.random.default_rng(0)).epsilon == low_epsilon
    assert noise_for_norm_budget(epsilon, 0.1) == noise_for_norm_budget(
        math.nextafter(low_epsilon, 1.0), 0.1
    )
    assert noise_for_norm_budget(1.0, epsilon) == noise_for_norm_budget(1.0, low_epsilon)


def test_orders_must_be_exact() -> None:
    assert RenyiFilter([Fraction(3, 2)], [1.0]).orders == (1.5,)
    with refused("orders"):
        RenyiFilter([Fraction(4, 3)], [1.0])
    with refused("orders"):
        renyi_cost(Gaussian(1.0), [1.0], [np.nextafter(np.longdouble(1.5), 2)])


def test_a_clip_norm_is_rounded_down_in_a_grant() -> None:
    rule = ZcdpFilter(1.0)
    _, granted = rule.grant(rule.initial_state(1), Gaussian(4.0), [1.0], Fraction(1, 3))
    assert granted[0] == real_number("c", Fraction(1, 3), DOWN) < Fraction(1, 3)
