"""Exact samplers against closed forms, with fixed seeds.

A statistical test fails for one seed in a million or fewer if the sampler is right.
"""

from __future__ import annotations

import copy
import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from types import FrameType

import mpmath
import numpy as np
import pytest
from scipy import stats

from accounting.exact.argument_checks import IntArray
from accounting.release import exact_noise, exact_normals
from accounting.release.exact_coins import heads
from accounting.release.exact_noise import ExactNoise
from accounting.release.exact_normals import LARGEST_STDDEV, ExactNormals

FALSE_POSITIVES = 1e-6


def chi_square_pvalue(draws: IntArray, edges: IntArray, probabilities: np.ndarray) -> float:
    """Return the p-value of draws in the cells up to each of the edges, and above the last."""
    cells = np.bincount(np.searchsorted(edges, draws), minlength=edges.size + 1)
    expected = probabilities * draws.size
    assert expected.min() > 5
    return float(stats.chisquare(cells, expected).pvalue)


def normal_pvalue(draws: IntArray, stddev: float) -> float:
    reach = int(2.5 * stddev + 0.5)
    edges = np.arange(-reach, reach)
    cumulative = stats.norm.cdf((edges + 0.5) / stddev)
    return chi_square_pvalue(draws, edges, np.diff([0.0, *cumulative, 1.0]))


@pytest.mark.slow
@pytest.mark.parametrize("stddev", [Fraction(3, 10), Fraction(1), Fraction(22, 7)])
def test_rounded_normal_is_a_normal_deviate_rounded_to_integers(stddev: Fraction) -> None:
    noise = ExactNoise(np.random.default_rng(11))
    draws = np.array([noise.rounded_normal(stddev) for _ in range(20_000)])
    assert normal_pvalue(draws, float(stddev)) > FALSE_POSITIVES


@pytest.mark.slow
@pytest.mark.parametrize("stddev", [Fraction(2) ** 40 / 3, Fraction(10) ** 100])
def test_rounded_normal_of_many_digits_is_normal(stddev: Fraction) -> None:
    noise = ExactNoise(np.random.default_rng(12))
    draws = [noise.rounded_normal(stddev) for _ in range(10_000)]
    pvalue = stats.kstest([float(draw / stddev) for draw in draws], "norm").pvalue
    assert pvalue > FALSE_POSITIVES
    # The last digits of the integers are drawn too.
    parity = sum(draw % 2 for draw in draws)
    assert stats.binomtest(parity, len(draws)).pvalue > FALSE_POSITIVES


def test_comparisons_left_open_are_decided_by_more_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact_noise, "DIGIT_BITS", 1)
    noise = ExactNoise(np.random.default_rng(13))
    draws = np.array([noise.rounded_normal(Fraction(5, 2)) for _ in range(10_000)])
    assert normal_pvalue(draws, 2.5) > FALSE_POSITIVES


@pytest.mark.slow
@pytest.mark.parametrize(
    "scale", [Fraction(1, 3), Fraction(0.7), Fraction(1), Fraction(10, 3), Fraction(40)]
)
def test_discrete_laplace_has_its_probabilities(scale: Fraction) -> None:
    noise = ExactNoise(np.random.default_rng(14))
    draws = np.array([noise.laplace(scale) for _ in range(20_000)])
    reach = max(int(3 * scale), 1)
    edges = np.arange(-reach, reach)
    decay = math.exp(-1 / scale)
    # P(x <= m) below 0; P(x > m) mirrors it.
    tails = [decay ** abs(m + (m >= 0)) / (1 + decay) for m in edges.tolist()]
    below = np.where(edges < 0, tails, 1.0 - np.array(tails))
    assert chi_square_pvalue(draws, edges, np.diff([0.0, *below, 1.0])) > FALSE_POSITIVES


# ------------------------------------------------------------------- the operating system's source


@pytest.mark.slow
def test_by_default_every_bit_comes_from_the_operating_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator, sizes = np.random.default_rng(16), []
    monkeypatch.setattr(
        exact_noise.os, "urandom", lambda size: sizes.append(size) or generator.bytes(size)
    )
    noise = ExactNoise()
    draws = np.array([noise.rounded_normal(Fraction(22, 7)) for _ in range(20_000)])
    assert normal_pvalue(draws, 22 / 7) > FALSE_POSITIVES
    assert len(sizes) >= 20_000  # a block a draw, and more when one is not enough
    monkeypatch.setattr(exact_noise.os, "urandom", lambda size: pytest.fail("no other source"))
    with pytest.raises(pytest.fail.Exception):
        noise.laplace(Fraction(1))


class _Interruption:
    """A KeyboardInterrupt at the nth line that the samplers run, once."""

    def __init__(self, line: int) -> None:
        self._left = line

    def __call__(self, frame: FrameType, event: str, _: object) -> _Interruption | None:
        if frame.f_code.co_filename != exact_noise.__file__:
            return None
        self._left -= event == "line"
        if self._left == 0:
            raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("draw", [ExactNoise.rounded_normal, ExactNoise.laplace])
def test_copy_after_an_interrupted_draw_draws_noise_of_its_own(
    draw: Callable[[ExactNoise, Fraction], int],
) -> None:
    tracer, interrupted = sys.gettrace(), 0
    for line in range(1, 120):
        noise = ExactNoise()
        sys.settrace(_Interruption(line))
        try:
            draw(noise, Fraction(2**64))
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(tracer)
        assert draw(copy.deepcopy(noise), Fraction(2**64)) != draw(noise, Fraction(2**64)), line
    assert interrupted > 30


class Scripted(np.random.Generator):
    """A generator of given words, each repeated as needed, and then of random bytes."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(np.random.PCG64(8))
        self.words = iter(words)

    def bytes(self, length: int) -> bytes:
        word = next(self.words, None)
        if word is None:
            return super().bytes(length)
        return (word.to_bytes(16 if length == 16 else 8, "little") * length)[:length]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trials", "roundings", "count"),
    [(0.0, 0.0, 400_000), (1.0, 0.0, 5_000), (2.0**-12, 1.0, 5_000), (2.0**-10, 2.0**-20, 20_000)],
    ids=["arrays", "every trial open", "every rounding open", "some of each"],
)
@pytest.mark.parametrize("stddev", [Fraction(3, 10), Fraction(22, 7)])
def test_arrays_are_normal_deviates_rounded_to_integers(
    monkeypatch: pytest.MonkeyPatch, trials: float, roundings: float, count: int, stddev: Fraction
) -> None:
    # What the first digits leave open is decided by more: here more often than it ever is.
    monkeypatch.setattr(exact_normals, "OPEN_TRIAL", max(trials, exact_normals.OPEN_TRIAL))
    monkeypatch.setattr(exact_normals, "OPEN_ROUNDING", max(roundings, exact_normals.OPEN_ROUNDING))
    if trials:  # no deviate is accepted by the digits of a word alone
        monkeypatch.setattr(exact_normals, "SURE", 0)
    draws = ExactNormals(np.random.default_rng(3)).draw(stddev, count)
    assert draws.dtype == np.int64
    assert normal_pvalue(draws, float(stddev)) > FALSE_POSITIVES


@pytest.mark.slow
@pytest.mark.parametrize("stddev", [Fraction(2) ** 24, Fraction(LARGEST_STDDEV)])
def test_deviates_of_many_digits_are_normal_into_the_tails(stddev: Fraction) -> None:
    count = 300_000
    scaled = ExactNormals(np.random.default_rng(4)).draw(stddev, count) / float(stddev)
    assert stats.kstest(scaled, "norm").pvalue > FALSE_POSITIVES
    beyond = int(np.count_nonzero(np.abs(scaled) > 3.5))
    assert stats.binomtest(beyond, count, 2.0 * stats.norm.sf(3.5)).pvalue > FALSE_POSITIVES


def test_probabilities_of_bins_are_those_of_the_density() -> None:
    with mpmath.workdps(60):
        weights = [mpmath.exp(-(mpmath.mpf(i) ** 2) / 2**17) for i in range(5_000)]
        whole = mpmath.fsum(weights)
        for i, partial in enumerate(itertools.accumulate(weights[:2_500], initial=mpmath.mpf(0))):
            for bits in (128, 160):
                assert abs(exact_normals.cumulative(bits)[i] - partial / whole * 2**bits) <= 1
    # So the first 64 of 128 digits are right, unless the others are all zeros or all ones.
    thresholds = exact_normals.thresholds()
    low = [value & (2**64 - 1) for value in exact_normals.cumulative(128)[1 : len(thresholds)]]
    assert all(2 <= value < 2**64 - 2 for value in low)


@pytest.mark.parametrize("i", [1, 7, 300, 2_000])
def test_number_on_the_border_of_bins_is_decided_by_more_digits(i: int) -> None:
    border = exact_normals.cumulative(256)[i]
    for beyond, expected in ((-(2**100), i - 1), (2**100, i)):
        number = border + beyond
        word, rest = number >> 192, number & (2**192 - 1)
        assert word == int(exact_normals.thresholds()[i])
        normals = ExactNormals(Scripted([rest >> 128, rest & (2**128 - 1)]))
        assert normals.bin_beyond(word) == expected


def test_numbers_beyond_the_last_threshold_reach_later_bins() -> None:
    normals = ExactNormals(np.random.default_rng(6))
    bins = [normals.bin_beyond(2**64 - 1) for _ in range(50)]
    assert min(bins) >= len(exact_normals.thresholds()) - 2
    assert max(bins) < 16 * 256
    assert len(set(bins)) > 5


def test_first_digits_select_a_bin_that_has_all_their_numbers() -> None:
    cells, thresholds = exact_normals.cells(), exact_normals.thresholds()
    first = np.arange(2**16, dtype=np.uint64) << np.uint64(48)
    last = first | np.uint64(2**48 - 1)
    low, high = (np.searchsorted(thresholds, ends, side="right") - 1 for ends in (first, last))
    one = (low == high) & (thresholds[low] != first)
    assert np.array_equal(cells, np.where(one, low, exact_normals.SEVERAL))
    assert np.count_nonzero(cells == exact_normals.SEVERAL) < 0.02 * cells.size


def test_acceptance_by_the_first_digits_holds_for_all_later_ones() -> None:
    for bin_ in (0, 1, 500, 511, 512, 1_023, 1_024, 4_000):
        least = next(u for u in range(128) if bin_ < u * exact_normals.SURE)
        assert exact_normals.exponent(bin_, Fraction(1, 256)) <= Fraction(least, 128)
        # Nor could it be told by one less: then some are below it.
        assert exact_normals.exponent(bin_, Fraction(1, 256)) > Fraction(least - 1, 128)


@pytest.mark.parametrize("at", [0, 1, 700])
def test_a_word_on_the_border_of_two_bins_is_finished_one_by_one(at: int) -> None:
    border = int(exact_normals.thresholds()[at])
    normals = ExactNormals(Scripted([border, border << 16 & 2**64 - 1]))
    asked: list[int] = []
    beyond = normals.bin_beyond
    normals.bin_beyond = lambda word: asked.append(word) or beyond(word)
    assert len(normals.draw(Fraction(2) ** 24, 3)) == 3
    assert len(asked) >= 3
    assert set(asked) == {border}


def test_bits_are_the_operating_systems_by_default() -> None:
    first, second = (ExactNormals().draw(Fraction(2) ** 30, 100) for _ in range(2))
    assert not np.array_equal(first, second)
    seeded = [ExactNormals(np.random.default_rng(1)).draw(Fraction(5), 1000) for _ in range(2)]
    assert np.array_equal(*seeded)


FORKS = """
import os
from fractions import Fraction
from accounting.release.exact_normals import ExactNormals

normals = ExactNormals()
normals.draw(Fraction(2) ** 30, 1000)
child = os.fork()
draws = normals.draw(Fraction(2) ** 30, 1000).tolist()
if child:
    os.waitpid(child, 0)  # long lines of two processes could mix
print(draws, flush=True)
"""


@pytest.mark.process
def test_a_fork_of_the_process_draws_other_deviates() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    mine, other = (set(map(int, line[1:-1].split(","))) for line in ran.stdout.splitlines())
    assert len(mine & other) < 10


class ScriptedCoins(np.random.Generator):
    """A generator of given 16-bit numbers."""

    def __init__(self, *draws: list[int]) -> None:
        super().__init__(np.random.PCG64(8))
        self.draws = [np.array(drawn, dtype="<u2").tobytes() for drawn in draws]

    def bytes(self, length: int) -> bytes:
        drawn = self.draws.pop(0)
        assert len(drawn) == length
        return drawn


EVERY = list(range(2**16))  # all that the first 16 digits of a coin can be, once each


@pytest.mark.parametrize("rate", [2.0**-17, 0.01, 0.3, 1 / 3, 0.999])
def test_first_16_digits_leave_one_of_them_open(rate: float) -> None:
    for exact in (2.0**-16, 0.375, 0.5, 1 - 2.0**-16, 1.0):
        assert heads(2**16, exact, ScriptedCoins(EVERY)).size == exact * 2**16
    whole = int(rate * 2**16)  # exact: a product with a power of two
    assert heads(2**16, rate, ScriptedCoins(EVERY, [0])).tolist() == [*range(whole + 1)]
    assert heads(2**16, rate, ScriptedCoins(EVERY, [2**16 - 1])).tolist() == [*range(whole)]


def test_a_rate_is_compared_to_its_last_digit() -> None:
    """A rate of 48 digits: of numbers that begin as it does, only smaller ones are heads."""
    rate = 5 * 2.0**-16 + 7 * 2.0**-32 + 9 * 2.0**-48
    for first, second, third in itertools.product((4, 5, 6), (6, 7, 8), (8, 9, 10)):
        draws = [[first], *([[second]] * (first == 5)), *([[third]] * ((first, second) == (5, 7)))]
        generator = ScriptedCoins(*draws)
        is_head = (first, second, third) < (5, 7, 9)
        assert heads(1, rate, generator).tolist() == [0] * is_head
        assert not generator.draws


def test_the_least_rate_is_compared_to_its_last_digit() -> None:
    least, zeros = math.ulp(0.0), [[0]] * 67  # 2**-1074: 67 groups of 16 digits, and two digits
    assert heads(1, least, ScriptedCoins(*zeros, [2**14 - 1])).tolist() == [0]
    assert heads(1, least, ScriptedCoins(*zeros, [2**14])).tolist() == []


def test_no_bits_are_drawn_for_no_coins_or_a_rate_of_zero() -> None:
    assert heads(0, 0.5, ScriptedCoins()).tolist() == heads(9, 0.0, ScriptedCoins()).tolist() == []


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
