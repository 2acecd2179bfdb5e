"""The exact samplers against closed forms. Fixed seeds; each test fails for one seed in a million
or fewer if the sampler is right."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from collections.abc import Callable
from fractions import Fraction
from types import FrameType

import numpy as np
import pytest
from scipy import stats

from accounting.exact.argument_checks import IntArray
from accounting.release import exact_noise
from accounting.release.exact_noise import ExactNoise

FALSE_POSITIVES = 1e-6


def chi_square_pvalue(draws: IntArray, edges: IntArray, probabilities: np.ndarray) -> float:
    """Of draws in the cells up to edges[0], up to edges[1], ..., and the rest."""
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


def test_comparisons_that_one_bit_leaves_open_are_decided_by_more_bits(
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


def fed(monkeypatch: pytest.MonkeyPatch, seed: int) -> list[int]:
    """Let a seeded generator play the operating system; the sizes of the blocks it gave."""
    generator, sizes = np.random.default_rng(seed), []

    def urandom(size: int) -> bytes:
        sizes.append(size)
        return generator.bytes(size)

    monkeypatch.setattr(exact_noise.os, "urandom", urandom)
    return sizes


@pytest.mark.slow
def test_by_default_every_bit_comes_from_the_operating_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = fed(monkeypatch, 16)
    noise = ExactNoise()
    draws = np.array([noise.rounded_normal(Fraction(22, 7)) for _ in range(20_000)])
    assert normal_pvalue(draws, 22 / 7) > FALSE_POSITIVES
    assert len(sizes) >= 20_000  # a block a draw, and more when one is not enough
    monkeypatch.setattr(exact_noise.os, "urandom", lambda size: pytest.fail("no other source"))
    with pytest.raises(pytest.fail.Exception):
        noise.laplace(Fraction(1))


def test_what_is_left_of_a_block_is_used_for_no_other_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    fed(monkeypatch, 17)
    noise = ExactNoise()
    noise.rounded_normal(Fraction(1))
    copies = [copy.deepcopy(noise), pickle.loads(pickle.dumps(noise)), noise]
    draws = [one.rounded_normal(Fraction(2) ** 60) for one in copies for _ in range(2)]
    assert len(set(draws)) == len(draws)


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
def test_after_a_draw_that_was_interrupted_anywhere_a_copy_draws_noise_of_its_own(
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
