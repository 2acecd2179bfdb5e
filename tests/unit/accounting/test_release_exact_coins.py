"""Coins show heads with exactly the probability that is charged."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from accounting.release.exact_coins import heads


class Scripted(np.random.Generator):
    """A generator of given 16-bit numbers."""

    def __init__(self, *draws: list[int]) -> None:
        super().__init__(np.random.PCG64(8))
        self.draws = [np.array(drawn, dtype="<u2").tobytes() for drawn in draws]

    def bytes(self, length: int) -> bytes:
        drawn = self.draws.pop(0)
        assert len(drawn) == length
        return drawn


EVERY = list(range(2**16))  # all that the first 16 digits of a coin can be, once each


@pytest.mark.parametrize("rate", [2.0**-16, 0.375, 0.5, 1 - 2.0**-16, 1.0])
def test_rates_of_16_digits_are_decided_by_16_digits(rate: float) -> None:
    assert heads(2**16, rate, Scripted(EVERY)).size == rate * 2**16


@pytest.mark.parametrize("rate", [2.0**-17, 0.01, 0.3, 1 / 3, 0.999])
def test_other_rates_leave_one_of_them_open(rate: float) -> None:
    whole = int(rate * 2**16)  # exact: a product with a power of two
    assert heads(2**16, rate, Scripted(EVERY, [0])).tolist() == [*range(whole + 1)]
    assert heads(2**16, rate, Scripted(EVERY, [2**16 - 1])).tolist() == [*range(whole)]


def test_a_rate_is_compared_to_its_last_digit() -> None:
    """A rate of 48 digits: of numbers that begin as it does, only smaller ones are heads."""
    rate = 5 * 2.0**-16 + 7 * 2.0**-32 + 9 * 2.0**-48
    for first, second, third in itertools.product((4, 5, 6), (6, 7, 8), (8, 9, 10)):
        draws = [[first], *([[second]] * (first == 5)), *([[third]] * ((first, second) == (5, 7)))]
        generator = Scripted(*draws)
        is_head = (first, second, third) < (5, 7, 9)
        assert heads(1, rate, generator).tolist() == [0] * is_head
        assert not generator.draws


def test_the_least_rate_is_compared_to_its_last_digit() -> None:
    least, zeros = math.ulp(0.0), [[0]] * 67  # 2**-1074: 67 groups of 16 digits, and two digits
    assert heads(1, least, Scripted(*zeros, [2**14 - 1])).tolist() == [0]
    assert heads(1, least, Scripted(*zeros, [2**14])).tolist() == []


def test_no_bits_are_drawn_for_no_coins_or_a_rate_of_zero() -> None:
    assert heads(0, 0.5, Scripted()).tolist() == heads(9, 0.0, Scripted()).tolist() == []


@pytest.mark.parametrize("rate", [2.0**-18, 0.01, 0.3, 0.999])
@pytest.mark.parametrize("generator", [None, np.random.default_rng(3)])
def test_the_number_of_heads_is_binomial(rate: float, generator: np.random.Generator) -> None:
    count = 3 * 2**19  # more than one block
    found = heads(count, rate, generator)
    assert (np.diff(found) > 0).all()
    assert found.dtype == np.int64
    assert stats.binomtest(found.size, count, rate).pvalue > 1e-9
    halves = np.count_nonzero(found < count // 2)
    assert found.size == 0 or stats.binomtest(int(halves), found.size).pvalue > 1e-9
