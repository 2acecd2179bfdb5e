"""Key selection: which keys are published tells no more than the Gaussian step that is charged."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr
from scipy.stats import chisquare, norm, poisson

from accounting.release import ExactNoise, KeySelection
from accounting.release.key_selection import MARKS
from tests.unit.accounting.refusals import refused

EPSILONS = np.concatenate([np.linspace(-1.0, 12.0, 79), [20.0, 40.0, 80.0]])
"""Also negative ones: a pair is dominated if its curve is below at every factor."""


def hockey_stick(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The hockey-stick divergences of two laws at all epsilons."""
    return np.maximum(p[:, np.newaxis] - np.exp(EPSILONS) * q[:, np.newaxis], 0.0).sum(axis=0)


def gdp_deltas(mu: float) -> np.ndarray:
    """The hockey-stick divergences of N(mu, 1) and N(0, 1) at all epsilons."""
    if mu == 0.0:
        return np.maximum(0.0, -np.expm1(EPSILONS))
    factor = np.exp(EPSILONS + log_ndtr(-EPSILONS / mu - mu / 2))
    return ndtr(-EPSILONS / mu + mu / 2) - factor


def chance(selection: KeySelection, users: int, marks: bool = True) -> float:
    """The probability that a key is published, from the model, without the code's formula."""
    if users == 0:
        return -math.expm1(-float(MARKS) / selection.universe) if marks else 0.0
    distance = selection.threshold - users * selection.contribution
    return float(norm.sf(distance / selection.noise_stddev))


def law(selection: KeySelection, users: tuple[int, ...], marks: bool = True) -> np.ndarray:
    """The probability of each set of published keys."""
    chances = [chance(selection, count, marks) for count in users]
    return np.array(
        [
            math.prod(p if is_out else 1.0 - p for p, is_out in zip(chances, sets, strict=True))
            for sets in itertools.product((False, True), repeat=len(users))
        ]
    )


def excess(selection: KeySelection, count: int) -> float:
    """The largest excess over the charged Gaussian's divergence, of all neighbours."""
    found = []
    for others in itertools.product((0, 1, 3, 9), repeat=count):
        for own in itertools.product((0, 1), repeat=count):
            both = tuple(a + b for a, b in zip(others, own, strict=True))
            bound = gdp_deltas(math.sqrt(sum(own)) / selection.noise_stddev)
            p, q = law(selection, both), law(selection, others)
            found += [hockey_stick(p, q) - bound, hockey_stick(q, p) - bound]
    return float(np.max(found))


CASES = [(2, 0.4), (2, 3.0), (3, 1.0), (10**6, 0.7)]


@pytest.mark.parametrize(("universe", "stddev"), CASES)
def test_no_selection_tells_more_than_the_charged_gaussian(universe: int, stddev: float) -> None:
    """All neighbours with up to three keys, in both directions."""
    selection = KeySelection(universe, 1.0, stddev)
    assert excess(selection, min(universe, 3)) <= 1e-12
    selection.threshold *= 0.99
    assert excess(selection, 2) > 1e-7


def test_without_marks_an_own_key_would_need_a_delta() -> None:
    selection = KeySelection(2, 1.0, 0.4)
    p, q = law(selection, (1, 0), marks=False), law(selection, (0, 0), marks=False)
    assert hockey_stick(p, q)[-1] > 0.1
    assert gdp_deltas(1.0 / 0.4)[-1] < 1e-12


@pytest.mark.parametrize("value", [-3.0, 0.0, 0.5, 2.0])
@pytest.mark.parametrize("stddev", [0.3, 1.0, 4.0])
def test_selection_and_value_tell_no_more_than_the_gaussian(value: float, stddev: float) -> None:
    """Exactly: the ratio of the densities of the value rises or falls with it."""
    selection = KeySelection(2, 1.0, stddev)
    p, q = chance(selection, 1), chance(selection, 0)
    shift = abs(value) / stddev
    bound = gdp_deltas(math.hypot(1.0, value) / stddev)
    for first, second in ((p, q), (q, p)):
        factor = np.exp(EPSILONS)
        unpublished = np.maximum(0.0, 1.0 - first - factor * (1.0 - second))
        level = EPSILONS - math.log(first / second)
        published = np.maximum(0.0, first - factor * second)
        if shift:
            published = first * ndtr(-level / shift + shift / 2)
            published -= factor * second * ndtr(-level / shift - shift / 2)
        assert (unpublished + published <= bound + 1e-12).all()


@pytest.mark.parametrize("universe", [2, 1000, 10**9, 256**8, (256**65 - 256) // 255])
def test_threshold_is_above_the_quantile_by_less_than_the_margin(universe: int) -> None:
    """Against forty digits: a mark is as likely as noise above the threshold, or likelier."""
    selection = KeySelection(universe, 1.0, 1.0)
    with mpmath.workdps(40):
        marked = -mpmath.expm1(-mpmath.mpf(MARKS.numerator) / MARKS.denominator / universe)
        tail = mpmath.erfc(mpmath.mpf(selection.threshold) / mpmath.sqrt(2)) / 2
        assert tail <= marked
        lower = mpmath.mpf(selection.threshold) - 2.0**-25 * (1.0 - 1e-6)
        assert mpmath.erfc(lower / mpmath.sqrt(2)) / 2 > marked
    assert selection.chance(0) == pytest.approx(float(marked))


@pytest.mark.slow
def test_published_keys_have_the_probabilities_of_the_model() -> None:
    selection, noise = KeySelection(4, 1.0, 1.0), ExactNoise(np.random.default_rng(3))
    exponent, users, repetitions = -40, {0: 2, 1: 3, 3: 5}, 6000
    sums = {key: count << 40 for key, count in users.items()}
    found = [selection.selected(sums, exponent, noise) for _ in range(repetitions)]
    assert all(keys == sorted(keys) for keys in found)
    for key, count in users.items():
        expected = repetitions * selection.chance(count)
        seen = sum(key in keys for keys in found)
        assert abs(seen - expected) < 5.0 * math.sqrt(expected) + 1.0
    assert sum(2 in keys for keys in found) < 12  # marked only: 1.5 on average


class Marks(ExactNoise):
    """Marks these keys, and draws no other noise."""

    def __init__(self, keys: list[int]) -> None:
        super().__init__(np.random.default_rng(0))
        self._keys = list(keys)

    def rounded_normal(self, stddev: Fraction) -> int:
        return 0

    def poisson(self, mean: Fraction) -> int:
        return len(self._keys)

    def below(self, bound: int) -> int:
        return self._keys.pop()


def test_a_mark_publishes_a_key_without_users_and_no_other() -> None:
    """The proof needs it: for a key with users, only the noisy sum decides."""
    selection = KeySelection(1000, 1.0, 1.0)
    limit = math.ceil(Fraction(selection.threshold) * 2**40)
    sums = {5: limit, 6: limit + 1, 7: 1}
    assert selection.selected(sums, -40, Marks([])) == [6]
    assert selection.selected(sums, -40, Marks([900, 7, 5, 3, 900])) == [3, 6, 900]


def test_marks_are_uniform_poisson_numbers_of_keys() -> None:
    noise = ExactNoise(np.random.default_rng(4))
    mean = Fraction(3, 5)
    counts = np.bincount([noise.poisson(mean) for _ in range(20_000)], minlength=12)
    expected = 20_000 * poisson.pmf(np.arange(5), 0.6)
    tail = counts[5:].sum()
    observed = np.append(counts[:5], tail)
    wanted = np.append(expected, 20_000 - expected.sum())
    assert chisquare(observed, wanted).pvalue > 1e-4
    uniform = np.bincount([noise.below(7) for _ in range(14_000)], minlength=7)
    assert chisquare(uniform).pvalue > 1e-4


def test_unit_too_coarse_for_the_margin_is_rejected() -> None:
    selection, noise = KeySelection(2, 1.0, 1.0), Marks([])
    assert selection.selected({0: 1 << 36}, -36, noise) == []
    with refused("exponent"):
        selection.selected({0: 1 << 35}, -35, noise)
