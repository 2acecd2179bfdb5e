"""Exact samplers against closed forms, with fixed seeds.

A statistical test fails for one seed in a million or fewer if the sampler is right.
"""

from __future__ import annotations

import copy
import itertools
import math
import subprocess
import sys
import threading
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
from accounting.release.exact_normals import LARGEST_STDDEV, SLOT_BITS, ExactNormals, NormalBins

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
    """A generator of given numbers, and then of random bytes."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(np.random.PCG64(8))
        self.numbers = list(numbers)

    def bytes(self, length: int) -> bytes:
        if not self.numbers:
            return super().bytes(length)
        return self.numbers.pop(0).to_bytes(length, "little")


STDDEVS = [
    Fraction(1, 10**400),
    Fraction(3, 10),
    Fraction(22, 7),
    *(64 + shift for shift in (-Fraction(1, 10**30), Fraction(0), Fraction(1, 10**30))),
    Fraction(2) ** 24 - 1,
    Fraction(10**7, 3),
    Fraction(LARGEST_STDDEV),
]


def slots_per_bin(bins: NormalBins, place: Fraction | mpmath.mpf) -> mpmath.mpf:
    return 2**SLOT_BITS * to_mpf(bins.width) * mpmath.npdf(to_mpf(place))


def place_of(bins: NormalBins, widths: Fraction | int) -> Fraction:
    """Return a place in standard deviations, given in widths after the start of the first bin."""
    return (Fraction(bins.start) + widths) * bins.width


def to_mpf(number: Fraction | mpmath.mpf) -> mpmath.mpf:
    if isinstance(number, Fraction):
        return mpmath.mpf(number.numerator) / number.denominator
    return number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("margin", "count"),
    [(0.0, 4_000_000), (2.0**-2, 200_000), (2.0**10, 200_000)],
    ids=["arrays", "some one by one", "all one by one"],
)
@pytest.mark.parametrize("stddev", [Fraction(3, 10), Fraction(22, 7), Fraction(1000, 7)])
def test_arrays_are_normal_deviates_rounded_to_integers(
    monkeypatch: pytest.MonkeyPatch, stddev: Fraction, margin: float, count: int
) -> None:
    exact_normals.bins_of(stddev)  # kept, so the margin changes comparisons alone
    # Float64 leaves points open that are near the density: here more often than it ever does.
    monkeypatch.setattr(exact_normals, "MARGIN", max(margin, exact_normals.MARGIN))
    draws = ExactNormals(np.random.default_rng(3)).draw(stddev, count)
    assert draws.dtype == np.int64
    assert normal_pvalue(draws, float(stddev)) > FALSE_POSITIVES


@pytest.mark.slow
@pytest.mark.parametrize("stddev", [Fraction(2) ** 24 - 1, Fraction(LARGEST_STDDEV)])
def test_deviates_of_many_digits_are_normal_into_the_tails(stddev: Fraction) -> None:
    count = 4_000_000
    draws = ExactNormals(np.random.default_rng(4)).draw(stddev, count)
    scaled = draws / float(stddev)
    assert stats.kstest(scaled, "norm").pvalue > FALSE_POSITIVES
    # Four cells for each bin: the rectangles and what is above them add up to the density.
    assert normal_pvalue(np.floor(scaled * 256 + 0.5).astype(np.int64), 256.0) > FALSE_POSITIVES
    for reach in (3.5, 4.5):
        beyond = int(np.count_nonzero(np.abs(scaled) > reach))
        assert stats.binomtest(beyond, count, 2.0 * stats.norm.sf(reach)).pvalue > FALSE_POSITIVES
    for shift in (0, int(stddev).bit_length() - 16):
        digits = np.bincount((draws >> shift) & 255, minlength=256)
        assert stats.chisquare(digits).pvalue > FALSE_POSITIVES


@pytest.mark.parametrize("stddev", STDDEVS, ids=float)
def test_density_is_between_each_rectangle_and_its_box(stddev: Fraction) -> None:
    bins = NormalBins(stddev)
    ends = [place_of(bins, i) for i in range(bins.count + 1)]
    assert ends[0] < -5.99 < 5.99 < ends[-1]
    with mpmath.workdps(40):
        for area, low, high in zip(bins.rectangles.tolist(), ends[:-1], ends[1:], strict=False):
            assert area <= slots_per_bin(bins, max(-low, high))
            assert slots_per_bin(bins, max(low, -high, Fraction(0))) <= area + Fraction(bins.box)
        # Beyond the bins, boxes have 2**-16 of this area, and half of it after 16 widths.
        for halvings in range(20):
            nearest = min(-ends[0], ends[-1]) + 16 * halvings * bins.width
            assert slots_per_bin(bins, nearest) <= bins.box * 2.0 ** -(16 + halvings)
    assert bins.filled == bins.rectangles[:-1].sum() > 0.98 * 2**SLOT_BITS


@pytest.mark.parametrize("stddev", STDDEVS, ids=float)
def test_all_points_of_a_bin_are_rounded_to_its_values(stddev: Fraction) -> None:
    bins = NormalBins(stddev)
    assert np.array_equal(bins.first_of_slot[bins.filled :], np.zeros(2**SLOT_BITS - bins.filled))
    slots = np.split(bins.first_of_slot[: bins.filled], np.cumsum(bins.rectangles[:-2]).astype(int))
    for i in range(bins.count):
        # The ends of parts of equal width, one for each of the values that the digits select.
        values = np.arange(2**bins.digits) if bins.digits < 6 else np.array([0, 2**bins.digits - 1])
        assert (slots[i] == bins.rounded(i, 0)).all()
        for value in values.tolist():
            low, high = (
                stddev * place_of(bins, i + Fraction(end, 2**bins.digits))
                for end in (value, value + 1)
            )
            rounded = bins.rounded(i, value << bins.place_digits - bins.digits)
            assert rounded == bins.rounded(i, 0) + value
            assert rounded - Fraction(1, 2) <= low < high <= rounded + Fraction(1, 2)


@pytest.mark.parametrize("stddev", STDDEVS, ids=float)
def test_density_in_float64_errs_by_less_than_the_margin(stddev: Fraction) -> None:
    bins = NormalBins(stddev)
    words = np.random.default_rng(5).integers(bins.end, size=300, dtype=np.uint64)
    with mpmath.workdps(40):
        for word, density in zip(words.tolist(), bins.density(bins.places(words)), strict=True):
            exact = slots_per_bin(bins, place_of(bins, Fraction(word, 2**bins.place_digits)))
            assert abs(exact - density) < exact_normals.MARGIN / 4


@pytest.mark.parametrize("digits", [5, 40, 200])
@pytest.mark.parametrize("place", [Fraction(0), Fraction(1, 3), Fraction(-6), Fraction(1001, 7)])
def test_bounds_of_the_density_contain_it_and_are_near(place: Fraction, digits: int) -> None:
    low, high = exact_normals.normal_density(place, digits)
    with mpmath.workdps(digits + 30):
        exact = mpmath.npdf(to_mpf(place))
        assert to_mpf(low) < exact < to_mpf(high)
        assert to_mpf(high) - to_mpf(low) <= exact * mpmath.mpf(10) ** -digits * 2.001


@pytest.mark.parametrize("bin_", [30, 500, 768, 1000])
@pytest.mark.parametrize("stddev", [Fraction(22, 7), Fraction(10**7, 3)])
def test_point_near_the_density_is_decided_by_more_digits(stddev: Fraction, bin_: int) -> None:
    """The first digits of the point's height are those of the density."""
    bins, more = NormalBins(stddev), 2**31
    place = 2**bins.place_digits // 3
    with mpmath.workdps(60):
        within = Fraction(place << 32 | more, 2 ** (bins.place_digits + 32))
        exact = place_of(bins, bin_ + within)
        share = (slots_per_bin(bins, exact) - int(bins.rectangles[bin_])) / mpmath.mpf(bins.box)
        border = int(share * 2**96)
    for height, is_below in ((border - 2**18, True), (border + 2**18, False)):
        source = Scripted(more, height & 2**32 - 1)
        value = ExactNormals(source).decide(bins, bin_, place, height >> 32)
        assert value == (bins.rounded(bin_, place) if is_below else None)
        assert source.numbers == []


@pytest.mark.slow
def test_float64_decides_as_further_digits_do(monkeypatch: pytest.MonkeyPatch) -> None:
    stddev, draws = Fraction(10**7, 3), []
    for margin in (exact_normals.MARGIN, 2.0**10):
        monkeypatch.setattr(exact_normals, "MARGIN", margin)
        draws.append(ExactNormals(np.random.default_rng(10)).draw(stddev, 200_000))
    assert np.array_equal(*draws)


@pytest.mark.parametrize("is_left", [True, False])
def test_points_beyond_all_bins_begin_where_bins_end(is_left: bool) -> None:
    bins = NormalBins(Fraction(10**7, 3))
    for halvings, box in itertools.product(range(3), (0, 1, 15)):
        # One byte for each halving and for the end of them, the box, and the side.
        source = Scripted(*[255] * halvings, 0, box << 4, 255 * is_left, 0)
        expected = -1 - 16 * halvings - box if is_left else bins.count + 16 * halvings + box
        value = ExactNormals(source).decide(bins, bins.count, 0, 0)
        assert value == bins.rounded(0, 0) + expected * 2**bins.digits
        assert source.numbers == []


@pytest.mark.slow
def test_points_beyond_all_bins_are_normal() -> None:
    normals, bins = ExactNormals(np.random.default_rng(6)), NormalBins(Fraction(2) ** 30)
    heights = np.random.default_rng(7).integers(2**64, size=10_000, dtype=np.uint64).tolist()
    values = [normals.decide(bins, bins.count, 0, height) for height in heights]
    kept = np.array([value for value in values if value is not None]) / 2.0**30
    low, high = (float(place_of(bins, i)) for i in (0, bins.count))
    masses = stats.norm.cdf(low), stats.norm.sf(high)
    share = sum(masses) * 2**SLOT_BITS / (bins.box * 2.0**-10)
    assert stats.binomtest(len(kept), len(heights), share).pvalue > FALSE_POSITIVES
    right = kept[kept > 0]
    assert stats.binomtest(len(right), len(kept), masses[1] / sum(masses)).pvalue > FALSE_POSITIVES
    uniform = np.append(
        stats.norm.sf(right) / masses[1], stats.norm.cdf(kept[kept < 0]) / masses[0]
    )
    assert stats.kstest(uniform, "uniform").pvalue > FALSE_POSITIVES


def test_seeded_deviates_do_not_depend_on_the_number_of_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draws = []
    for cores in (1, 3):
        monkeypatch.setattr(exact_normals.os, "sched_getaffinity", lambda _, n=cores: range(n))
        draws.append(ExactNormals(np.random.default_rng(9)).draw(Fraction(2) ** 24, 2**20))
    assert np.array_equal(*draws)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "threads"), [(2**15, 0), (2**19 - 1, 0), (2**20 + 7, 3)])
def test_large_arrays_are_drawn_by_one_thread_per_core(
    monkeypatch: pytest.MonkeyPatch, count: int, threads: int
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda thread: started.append(thread) or start(thread)
    )
    monkeypatch.setattr(exact_normals.os, "sched_getaffinity", lambda _: range(3))
    stddev = Fraction(2) ** 40
    draws = ExactNormals().draw(stddev, count)
    assert min(threads, 2) <= len(started) <= threads
    assert not any(thread.is_alive() for thread in started)
    assert len(np.unique(draws)) > 0.999 * count  # no two threads have drawn the same
    assert stats.kstest(draws / float(stddev), "norm").pvalue > FALSE_POSITIVES


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
