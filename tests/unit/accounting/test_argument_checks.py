"""Arguments are ints and floats of Python and NumPy, and arrays of them; all else is refused."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from accounting import (
    InvalidInput,
)
from accounting.exact.argument_checks import (
    as_float_array,
    exact_number,
    finite_numbers,
    nonnegative_finite,
    positive_finite,
    probability,
    real_number,
    sampling_probability,
)
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


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_all_other_numbers_are_refused(value: Any) -> None:
    for check in (real_number, exact_number, positive_finite, probability, sampling_probability):
        with refused("x"):
            check("x", value)


def test_nan_is_refused_where_numbers_are_used() -> None:
    for value in (math.nan, np.float32("nan")):
        assert math.isnan(real_number("x", value))
        for check in (positive_finite, nonnegative_finite, probability, sampling_probability):
            with refused("x"):
                check("x", value)
        with refused("x"):
            exact_number("x", value)
    for numbers in ([1.0, math.nan], [math.inf]):
        with refused("x"):
            finite_numbers("x", numbers)


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


def test_message_stays_short_whatever_the_value() -> None:
    for value in (10**5000, ["a"] * 10**5, "a" * 10**5):
        with pytest.raises(InvalidInput) as caught:
            as_float_array("x", value)
        assert len(str(caught.value)) < 400
        assert caught.value.value is value
