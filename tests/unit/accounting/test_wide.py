"""Integers of 128 bits against Python's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from accounting.exact import wide

words = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 63).map(lambda bit: 2**bit),
    st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]),
)
numbers = st.one_of(st.integers(0, 2**128 - 1), st.tuples(words, words).map(lambda w: w[0] * w[1]))
MODULUS = 2**128


def uint64(*values: int) -> wide.UintArray:
    return np.array(values, dtype=np.uint64)


def make(*values: int) -> wide.Wide:
    return wide.Wide(
        uint64(*(value % MODULUS >> 64 for value in values)),
        uint64(*(value % 2**64 for value in values)),
    )


def value(number: wide.Wide) -> int:
    return int(number.high[0]) * 2**64 + int(number.low[0])


@given(words, words)
def test_product_is_exact(a: int, b: int) -> None:
    assert value(wide.product(uint64(a), uint64(b))) == a * b


@given(numbers, numbers, words)
def test_times_and_minus_are_those_of_integers_modulo_2_128(a: int, b: int, factor: int) -> None:
    assert value(wide.times(make(a), uint64(factor))) == a * factor % MODULUS
    assert value(wide.minus(make(a), make(b))) == (a - b) % MODULUS
    assert bool(wide.is_negative(make(a))[0]) == (a >= 2**127)


@given(numbers, st.integers(0, 127))
def test_shift_to_the_left_is_a_power_of_two(a: int, bits: int) -> None:
    assert value(wide.shifted_left(make(a), uint64(bits))) == (a << bits) % MODULUS


@given(words, st.integers(0, 64), words)
def test_shift_to_the_right_rounds_up(whole: int, bits: int, digits: int) -> None:
    below = min(digits, 2**bits - 1) if whole < 2**64 - 1 else 0
    number = (whole << bits) + below
    assert wide.shifted_right_up(make(number), uint64(bits)).tolist() == [whole + (below > 0)]


@given(
    st.integers(1, 2**62),
    st.integers(1, 2**110),
    st.one_of(st.integers(0, 2**110), st.sampled_from([0, 1])),
    st.integers(-(2**15), 2**15),
)
def test_quotient_is_the_ceiling_whatever_the_estimate_and_the_lost_digits(
    quotient: int, bottom: int, beyond: int, error: int
) -> None:
    top = (quotient - 1) * bottom + 1 + beyond % bottom  # has the quotient for its ceiling
    assert -(-top // bottom) == quotient
    estimate = np.array([max(quotient + error, 0)])
    assert wide.quotient_up(make(top), make(bottom), estimate).tolist() == [quotient]
