"""Sparse vector: its answers have the distribution of a model, and the model is private."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from accounting import MEASURES, PureDP, zcdp_cost
from accounting.release import SparseVector
from tests.unit.accounting.refusals import refused

Pattern = tuple[bool, ...]


def at_least(value: np.ndarray, scale: float) -> np.ndarray:
    """The probability that discrete Laplace noise is at least a whole number."""
    tail = np.exp(-np.abs(np.where(value > 0, value, 1 - value)) / scale)
    tail /= 1.0 + math.exp(-1.0 / scale)
    return np.where(value > 0, tail, 1.0 - tail)


def probabilities(
    queries: list[int],
    threshold: int,
    epsilon: float,
    positives: int = 1,
    sensitivity: int = 1,
    monotone: bool = False,
    query_noise: float = 1.0,
) -> dict[Pattern, float]:
    """The probability of each sequence of answers, summed over the threshold's noise."""
    shift = positives * (1 if monotone else 2)
    first = epsilon / (1.0 + shift ** (2.0 / 3.0))
    threshold_scale = sensitivity / first
    scale = query_noise * shift * sensitivity / (epsilon - first)
    reach = math.ceil(60 * threshold_scale)
    noise = np.arange(-reach, reach + 1)
    weight = np.exp(-np.abs(noise) / threshold_scale)
    weight /= weight.sum()
    above = [at_least(threshold + noise - query, scale) for query in queries]
    found = {}
    for pattern in patterns(len(queries), positives):
        joint = weight.copy()
        for answer, chance in zip(pattern, above, strict=False):
            joint *= chance if answer else 1.0 - chance
        found[pattern] = float(joint.sum())
    return found


def patterns(queries: int, positives: int) -> list[Pattern]:
    """All sequences of answers; one ends with the last positive."""
    if queries == 0 or positives == 0:
        return [()]
    return [
        (answer, *rest)
        for answer in (False, True)
        for rest in patterns(queries - 1, positives - answer)
    ]


def worst_log_ratio(here: dict[Pattern, float], there: dict[Pattern, float]) -> float:
    return max(abs(math.log(here[p] / there[p])) for p in here)


def answers(sparse: SparseVector, queries: list[int]) -> Pattern:
    given = []
    for query in queries:
        given.append(sparse.above(query))
        if sparse.remaining == 0:
            break
    return tuple(given)


CASES = pytest.mark.parametrize(
    ("positives", "sensitivity", "monotone"),
    [(1, 1, False), (1, 1, True), (2, 1, False), (2, 1, True), (1, 2, False), (3, 2, True)],
)


def neighbours(length: int, sensitivity: int, monotone: bool) -> list[tuple[int, ...]]:
    changes = itertools.product((-sensitivity, 0, sensitivity), repeat=length)
    return [c for c in changes if not monotone or min(c) * max(c) >= 0]


@CASES
def test_no_answers_are_more_than_e_epsilon_times_as_likely_on_a_neighbour(
    positives: int, sensitivity: int, monotone: bool
) -> None:
    epsilon, queries, worst = 0.8, [-3, 0, 1, 4], 0.0
    arguments = (positives, sensitivity, monotone)
    here = probabilities(queries, 0, epsilon, *arguments)
    assert sum(here.values()) == pytest.approx(1.0)
    for change in neighbours(4, sensitivity, monotone):
        moved = [q + c for q, c in zip(queries, change, strict=True)]
        worst = max(worst, worst_log_ratio(here, probabilities(moved, 0, epsilon, *arguments)))
    assert 0.2 * epsilon < worst <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize(
    ("moved", "monotone"), [([11] * 20 + [-61], False), ([11] * 20 + [-60], True)]
)
def test_the_stated_epsilon_is_attained_and_half_the_noise_would_exceed_it(
    moved: list[int], monotone: bool
) -> None:
    """Many unlikely negatives turn on the threshold's noise, an unlikely positive on its own."""
    epsilon, queries = 1.0, [10] * 20 + [-60]
    exact = worst_log_ratio(
        probabilities(queries, 0, epsilon, monotone=monotone),
        probabilities(moved, 0, epsilon, monotone=monotone),
    )
    assert exact == pytest.approx(epsilon, rel=1e-12)
    halved = worst_log_ratio(
        probabilities(queries, 0, epsilon, monotone=monotone, query_noise=0.5),
        probabilities(moved, 0, epsilon, monotone=monotone, query_noise=0.5),
    )
    assert halved > 1.4 * epsilon


def test_the_noise_of_monotone_queries_does_not_cover_others() -> None:
    here, there = [10] * 20 + [-60], [11] * 20 + [-61]
    ratio = worst_log_ratio(
        probabilities(here, 0, 1.0, monotone=True), probabilities(there, 0, 1.0, monotone=True)
    )
    assert ratio == pytest.approx(1.5)


@pytest.mark.slow
@CASES
def test_answers_have_the_probabilities_of_the_model(
    positives: int, sensitivity: int, monotone: bool
) -> None:
    epsilon, queries, runs = 2.0, [5, 8, 11], 6000
    generator = np.random.default_rng(21)
    model = probabilities(queries, 9, epsilon, positives, sensitivity, monotone)
    seen = dict.fromkeys(model, 0)
    for _ in range(runs):
        sparse = SparseVector(
            9,
            epsilon,
            generator=generator,
            positives=positives,
            sensitivity=sensitivity,
            monotone=monotone,
        )
        seen[answers(sparse, queries)] += 1
    expected = np.array([model[p] for p in seen]) * runs
    assert expected.min() > 5
    expected *= runs / expected.sum()
    # Fails for one seed in a million.
    assert stats.chisquare(list(seen.values()), expected).pvalue > 1e-6


@pytest.mark.parametrize("contribution", [0, 1, 2, 3])
def test_a_user_who_changes_less_pays_in_proportion(contribution: int) -> None:
    epsilon, queries = 1.5, [-2, 1, 3]
    sparse = SparseVector(0, epsilon, generator=np.random.default_rng(0), sensitivity=3)
    (paid,) = sparse.norms([contribution])
    assert paid == pytest.approx(epsilon * contribution / 3)
    assert Fraction(paid) >= Fraction(epsilon) * contribution / 3
    here = probabilities(queries, 0, epsilon, sensitivity=3)
    for change in neighbours(3, contribution, monotone=False):
        moved = [q + c for q, c in zip(queries, change, strict=True)]
        there = probabilities(moved, 0, epsilon, sensitivity=3)
        assert worst_log_ratio(here, there) <= paid + 1e-12


def test_cost_is_pure_dp_and_known_before_the_first_query() -> None:
    sparse = SparseVector(100, 0.5, generator=np.random.default_rng(0), positives=4)
    cost = sparse.cost()
    assert cost.mechanism == PureDP()
    assert cost.norm == 0.5
    assert cost.rho == zcdp_cost(PureDP(), [0.5])[0] == 0.125
    assert MEASURES["zcdp"].charge_units(cost.mechanism, [cost.norm]).tolist() == [2**41]
    sparse.above(0)
    assert sparse.cost() == cost
    assert sparse.norms([1.0])[0] == 0.5


def test_after_the_last_positive_there_is_no_answer() -> None:
    generator = np.random.default_rng(23)
    sparse = SparseVector(0, 1.0, generator=generator, positives=2)
    assert [sparse.above(10**6), sparse.above(-(10**6)), sparse.above(10**6)] == [True, False, True]
    assert sparse.remaining == 0
    for _ in range(2):
        with refused("positives"):
            sparse.above(-(10**6))


def test_threshold_noise_is_fresh_in_every_object_and_kept_within_it() -> None:
    """One threshold for all queries: equal queries agree more often than independent ones."""
    generator, agreements, runs = np.random.default_rng(26), 0, 3000
    model = probabilities([0, 0], 0, 1.0, positives=2)
    for _ in range(runs):
        sparse = SparseVector(0, 1.0, generator=generator, positives=2)
        agreements += sparse.above(0) == sparse.above(0)
    expected = model[True, True] + model[False, False]
    assert stats.binomtest(agreements, runs, expected).pvalue > 1e-6
    single = model[True, True] + model[True, False]
    assert stats.binomtest(agreements, runs, single**2 + (1 - single) ** 2).pvalue < 1e-3


BAD_VALUES = [1.0, 0.5, math.nan, math.inf, True, "1", None, 2**53 + 1, np.float64(1)]


def test_values_that_are_no_integers_are_refused_and_leave_no_trace() -> None:
    clean, tried = (
        SparseVector(3, 1.0, generator=np.random.default_rng(27), positives=50) for _ in range(2)
    )
    for value in range(7):
        for bad in BAD_VALUES:
            with refused("value"):
                tried.above(bad)
        assert tried.above(value) == clean.above(value)
    assert tried.above(np.int64(3)) == clean.above(3)
