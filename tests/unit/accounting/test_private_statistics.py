"""The releases of examples/private_statistics.py: they cost what is charged, and are right.

Random tests have fixed seeds and say how rarely they would fail.
"""

from __future__ import annotations

import itertools
import math
import runpy
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from accounting import MEASURES, Gaussian, PureDP, ZcdpFilter
from accounting.release import ExactNoise
from accounting.release.running_sums import ROOT_BITS, root_of_running_sums
from tests.readme import TOP
from tests.unit.accounting.refusals import refused

EXAMPLE = runpy.run_path(str(TOP / "examples" / "private_statistics.py"))
release_mean, release_quantiles = EXAMPLE["release_mean"], EXAMPLE["release_quantiles"]
ContinualCounter, SparseVector = EXAMPLE["ContinualCounter"], EXAMPLE["SparseVector"]

numbers = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=60)


class Played(ExactNoise):
    """Noise that is given, in units of the grid."""

    def __init__(self, units: Iterable[int]) -> None:
        super().__init__()
        self.units = iter(units)

    def rounded_normal(self, stddev: Fraction) -> int:
        return next(self.units)


def silent() -> Played:
    return Played(itertools.repeat(0))


def seeded(seed: int = 1) -> ExactNoise:
    return ExactNoise(np.random.default_rng(seed))


@pytest.mark.slow
def test_example_publishes_a_mean_near_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    EXAMPLE["main"]()
    mean = float(capsys.readouterr().out.split()[1])
    assert mean == pytest.approx(EXAMPLE["epsilons"](np.random.default_rng(0)).mean(), rel=0.2)


@given(values=numbers)
def test_mean_without_noise_is_the_mean_of_clipped_values(values: list[float]) -> None:
    release = release_mean([*values, math.inf], 7.5, 1.0, silent())
    clipped = np.minimum([*values, math.inf], 7.5)
    assert release.estimate == pytest.approx(clipped.mean(), abs=7.5 * 2**-29)
    assert release.count == len(clipped)


def test_mean_depends_on_a_user_through_two_noisy_sums_only() -> None:
    """Noise that makes up for one user more gives the same release, bit for bit."""
    values, more = np.linspace(0.3, 1.9, 50), 0.7
    first = round(Fraction(more) * 2**29)
    shifts = [first, 2**30 - first]
    release = release_mean(values, 2.0, 1.0, Played([10**10, 10**10]))
    moved = release_mean([*values, more], 2.0, 1.0, Played(10**10 - by for by in shifts))
    assert moved == release
    # Such noise is as likely as that of a Gaussian step of the norm `upper`.
    assert math.hypot(*shifts) / 2**29 <= 2.0


@pytest.mark.parametrize("rho", [1e-5, 0.3])
def test_noise_of_gaussian_releases_costs_at_most_rho(rho: float) -> None:
    counter = ContinualCounter(100, rho, seeded())
    drawn: list[Fraction] = []

    class Watched(ExactNoise):
        def rounded_normal(self, stddev: Fraction) -> int:
            drawn.append(stddev)
            return 0

    release_mean([0.5], 2.0, rho, Watched())
    for noise, norm in ((float(drawn[0]) * 2.0**-29, 2.0), (counter.noise_stddev, counter.norm)):
        charge = MEASURES["zcdp"].charge_units(Gaussian(noise), [norm])
        assert rho * (1 - 1e-3) < int(charge[0]) / 2**44
        rule = ZcdpFilter(rho)
        assert rule.admit_units(rule.initial_state(1), charge)[1].tolist() == [True]
    counter = ContinualCounter(4, rho, Watched())
    counter.add(3)
    assert drawn[2:] == [Fraction(counter.noise_stddev) * 2**ROOT_BITS]


def count_of_exhausted(noise: ExactNoise) -> float:
    counter = ContinualCounter(16, 0.3, noise)
    return [counter.add(count) for count in range(16)][-1] - 120


@pytest.mark.slow
def test_releases_err_by_the_stated_standard_error() -> None:
    values = np.minimum(np.random.default_rng(3).lognormal(-0.8, 0.8, 20_000), 3.0)
    noise = seeded(4)
    means = [release_mean(values, 3.0, 4.5e-4, noise) for _ in range(300)]
    # As little as if the number of users were public.
    assert max(mean.standard_error for mean in means) < 1.01 * 100.0 / 20_000
    stated = ContinualCounter(16, 0.3, noise).standard_error(16)
    for scaled in (
        [(mean.estimate - values.mean()) / mean.standard_error for mean in means],
        [count_of_exhausted(noise) / stated for _ in range(300)],
    ):
        # Fails for fewer than one seed in a million.
        assert stats.kstest(scaled, "norm").pvalue > 1e-7


@given(
    values=numbers,
    quantiles=st.lists(st.floats(0.001, 0.999), min_size=1, max_size=6),
    levels=st.integers(2, 80),
)
def test_quantiles_without_noise_are_right_within_one_level(
    values: list[float], quantiles: list[float], levels: int
) -> None:
    estimates = release_quantiles(values, quantiles, 10.0, 1.0, silent(), levels)
    slack = 10.0 / levels * (1 + 1e-9) + 1e-9
    assert (estimates >= np.quantile(values, quantiles, method="inverted_cdf") - slack).all()
    assert (estimates <= np.quantile(values, quantiles, method="higher") + slack).all()


def test_quantiles_depend_on_a_user_through_one_noisy_count() -> None:
    """Noise that makes up for the count gives the same quantiles, bit for bit."""
    column, noise = root_of_running_sums(4), [10**17] * 4
    few = release_quantiles([0.2, 0.2, 0.9], [0.5], 1.0, 1.0, Played(noise), 4)
    moved = [unit - by for unit, by in zip(noise, [0, 0, *column[:2]], strict=True)]
    more = release_quantiles([0.2, 0.2, 0.9, 0.6], [0.5], 1.0, 1.0, Played(moved), 4)
    assert few.tolist() == more.tolist()


def test_noise_above_the_number_of_users_gives_no_estimate() -> None:
    mean = release_mean([1.0], 2.0, 1.0, Played([-(2**32)] * 2))
    assert math.isnan(mean.estimate)
    assert (mean.standard_error, mean.count < 0.0) == (math.inf, True)
    assert np.isnan(release_quantiles([1.0], [0.1], 2.0, 1.0, Played([-(2**60)] * 8), 8)).all()


# --- continual counts ---------------------------------------------------------------------------


def test_square_of_the_root_is_the_matrix_of_running_sums() -> None:
    series = [Fraction(math.comb(2 * k, k), 4**k) for k in range(120)]
    for k in range(120):
        assert sum(series[i] * series[k - i] for i in range(k + 1)) == 1
    assert root_of_running_sums(120) == [round(f * 2**ROOT_BITS) for f in series]


def test_norm_is_that_of_the_longest_column_of_the_root() -> None:
    for horizon in (1, 2, 60, 1000):
        counter = ContinualCounter(horizon, 0.5, seeded())
        square = sum(Fraction(f, 2**ROOT_BITS) ** 2 for f in root_of_running_sums(horizon))
        assert square <= Fraction(counter.norm) ** 2 <= square * (1 + Fraction(1, 2**50))


@given(counts=st.lists(st.integers(0, 1000), min_size=1, max_size=70))
def test_counts_without_noise_are_the_running_sums(counts: list[int]) -> None:
    counter = ContinualCounter(len(counts), 1.0, silent())
    answers = [counter.add(count) for count in counts]
    np.testing.assert_allclose(answers, np.cumsum(counts), rtol=1e-13, atol=1e-11)


def test_counts_depend_on_a_user_through_noisy_sums_only() -> None:
    """Noise that makes up for one user more gives the same answers, bit for bit."""
    horizon, rng = 37, np.random.default_rng(3)
    counts = rng.integers(0, 50, horizon).tolist()
    units = [int(u) for u in rng.normal(0.0, 40.0 * 2**ROOT_BITS, horizon)]

    def answers(counts: list[int], units: list[int]) -> list[float]:
        counter = ContinualCounter(horizon, 0.5, Played(units))
        return [counter.add(count) for count in counts]

    for step in (1, 2, 12, 37):
        one_more = [count + (t == step) for t, count in enumerate(counts, start=1)]
        shift = [0] * (step - 1) + root_of_running_sums(horizon - step + 1)
        moved = [unit - by for unit, by in zip(units, shift, strict=True)]
        assert answers(one_more, moved) == answers(counts, units)


# --- sparse vector: its answers have the distribution of a model, and the model is private ------

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
) -> dict[Pattern, float]:
    """The probability of each sequence of answers, summed over the threshold's noise."""
    shift = positives * (1 if monotone else 2)
    first = epsilon / (1.0 + shift ** (2.0 / 3.0))
    threshold_scale = sensitivity / first
    scale = shift * sensitivity / (epsilon - first)
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


def answers(sparse: Any, queries: list[int]) -> Pattern:
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


def neighbours(length: int, sensitivity: int, monotone: bool) -> Iterator[tuple[int, ...]]:
    changes = itertools.product((-sensitivity, 0, sensitivity), repeat=length)
    return (c for c in changes if not monotone or min(c) * max(c) >= 0)


@CASES
def test_likelihood_ratio_of_sparse_vector_is_within_epsilon(
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


@pytest.mark.slow
@CASES
def test_answers_have_the_probabilities_of_the_model(
    positives: int, sensitivity: int, monotone: bool
) -> None:
    queries, runs, noise = [5, 8, 11], 6000, seeded(21)
    model = probabilities(queries, 9, 2.0, positives, sensitivity, monotone)
    seen = dict.fromkeys(model, 0)
    options = {"positives": positives, "sensitivity": sensitivity, "monotone": monotone}
    for _ in range(runs):
        seen[answers(SparseVector(9, 2.0, noise, **options), queries)] += 1
    expected = np.array([model[p] for p in seen]) * runs
    assert expected.min() > 5
    expected *= runs / expected.sum()
    # Fails for one seed in a million.
    assert stats.chisquare(list(seen.values()), expected).pvalue > 1e-6


@pytest.mark.parametrize("contribution", [0, 1, 2, 3])
def test_a_user_who_changes_less_pays_in_proportion(contribution: int) -> None:
    epsilon, queries = 1.5, [-2, 1, 3]
    sparse = SparseVector(0, epsilon, seeded(), sensitivity=3)
    (paid,) = sparse.norms([contribution])
    assert paid == pytest.approx(epsilon * contribution / 3)
    assert Fraction(paid) >= Fraction(epsilon) * contribution / 3
    charge = MEASURES["zcdp"].charge_units(PureDP(), [paid])
    assert int(charge[0]) == math.ceil(Fraction(paid) ** 2 * 2**43)
    here = probabilities(queries, 0, epsilon, sensitivity=3)
    for change in neighbours(3, contribution, monotone=False):
        moved = [q + c for q, c in zip(queries, change, strict=True)]
        there = probabilities(moved, 0, epsilon, sensitivity=3)
        assert worst_log_ratio(here, there) <= paid + 1e-12


@pytest.mark.parametrize(
    ("make", "request_", "bad"),
    [
        (lambda noise: ContinualCounter(7, 0.5, noise).add, "count", [-1, 1.0, True, None]),
        (
            lambda noise: SparseVector(3, 1.0, noise, positives=50).above,
            "value",
            [1.0, math.nan, True, "1", None, 2**53 + 1],
        ),
    ],
    ids=["counter", "sparse vector"],
)
def test_refused_values_leave_no_trace(make: Any, request_: str, bad: list[Any]) -> None:
    clean, tried = (make(seeded(27)) for _ in range(2))
    for number in range(7):
        for value in bad:
            with refused(request_):
                tried(value)
        assert tried(number) == clean(number)


def test_nothing_is_answered_after_the_last_step_or_positive() -> None:
    counter, sparse = (
        ContinualCounter(1, 0.5, seeded()),
        SparseVector(0, 1.0, seeded(23), positives=2),
    )
    counter.add(0)
    assert [sparse.above(10**6), sparse.above(-(10**6)), sparse.above(10**6)] == [True, False, True]
    for call, argument in ((counter.add, "step"), (sparse.above, "remaining")):
        with refused(argument):
            call(0)
