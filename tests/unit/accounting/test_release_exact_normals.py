"""Arrays of rounded normal deviates. Fixed seeds; each statistical test fails for one seed in a
million or fewer if the sampler is right."""

from __future__ import annotations

import itertools
import subprocess
import sys
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from accounting.release import exact_normals
from accounting.release.exact_normals import LARGEST_STDDEV, ExactNormals
from tests.unit.accounting.test_release_exact_noise import FALSE_POSITIVES, normal_pvalue


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


every_path = pytest.mark.parametrize(
    ("trials", "roundings", "count"),
    [(0.0, 0.0, 400_000), (1.0, 0.0, 5_000), (2.0**-12, 1.0, 5_000), (2.0**-10, 2.0**-20, 20_000)],
    ids=["arrays", "every trial open", "every rounding open", "some of each"],
)


@pytest.mark.slow
@every_path
@pytest.mark.parametrize("stddev", [Fraction(3, 10), Fraction(22, 7), Fraction(50)])
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
    if stddev == 50:
        draws, stddev = draws // 25, Fraction(2)  # coarser cells, of a shifted normal
        edges = np.arange(-5, 5)
        cumulative = stats.norm.cdf((25 * edges + 24.5) / 50.0)
        cells = np.bincount(np.searchsorted(edges, draws), minlength=edges.size + 1)
        expected = np.diff([0.0, *cumulative, 1.0]) * draws.size
        assert stats.chisquare(cells, expected).pvalue > FALSE_POSITIVES
    else:
        assert normal_pvalue(draws, float(stddev)) > FALSE_POSITIVES


@pytest.mark.slow
@pytest.mark.parametrize("stddev", [Fraction(2) ** 24, Fraction(LARGEST_STDDEV)])
def test_deviates_of_many_digits_are_normal_into_the_tails(stddev: Fraction) -> None:
    count = 300_000
    scaled = ExactNormals(np.random.default_rng(4)).draw(stddev, count) / float(stddev)
    assert stats.kstest(scaled, "norm").pvalue > FALSE_POSITIVES
    beyond = int(np.count_nonzero(np.abs(scaled) > 3.5))
    assert stats.binomtest(beyond, count, 2.0 * stats.norm.sf(3.5)).pvalue > FALSE_POSITIVES


def test_probabilities_of_bins_are_those_of_the_density_to_every_digit_used() -> None:
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
def test_a_number_on_the_border_of_two_bins_is_decided_by_its_next_digits(i: int) -> None:
    border = exact_normals.cumulative(256)[i]
    for beyond, expected in ((-(2**100), i - 1), (2**100, i)):
        number = border + beyond
        word, rest = number >> 192, number & (2**192 - 1)
        assert word == int(exact_normals.thresholds()[i])
        normals = ExactNormals(Scripted([rest >> 128, rest & (2**128 - 1)]))
        assert normals.bin_beyond(word) == expected


def test_numbers_beyond_the_last_threshold_reach_bins_that_have_none() -> None:
    normals = ExactNormals(np.random.default_rng(6))
    bins = [normals.bin_beyond(2**64 - 1) for _ in range(50)]
    assert min(bins) >= len(exact_normals.thresholds()) - 2
    assert max(bins) < 16 * 256
    assert len(set(bins)) > 5


def test_first_digits_select_a_bin_if_all_numbers_with_them_are_in_it() -> None:
    cells, thresholds = exact_normals.cells(), exact_normals.thresholds()
    first = np.arange(2**16, dtype=np.uint64) << np.uint64(48)
    last = first | np.uint64(2**48 - 1)
    low, high = (np.searchsorted(thresholds, ends, side="right") - 1 for ends in (first, last))
    one = (low == high) & (thresholds[low] != first)
    assert np.array_equal(cells, np.where(one, low, exact_normals.SEVERAL))
    assert np.count_nonzero(cells == exact_normals.SEVERAL) < 0.02 * cells.size


def test_acceptance_by_the_digits_of_a_word_holds_for_all_later_digits() -> None:
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


def test_bits_are_the_operating_systems_unless_a_generator_is_given() -> None:
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
