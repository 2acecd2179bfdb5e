"""Continual monitoring, against the filter itself; statistics with fixed seeds."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import special, stats

from accounting import MEASURES
from accounting.exact.units import from_units_down
from accounting.release import ExactNoise
from streams import Turnstile
from streams.queries.continual_monitoring import QueryAnswerer, Release, read_contributions
from streams.sdk.errors import DecisionTimeout, InvalidRequest, ReleasedTwice
from streams.sdk.run import Run
from tests.readme import blocks, page
from tests.unit.sdk.partitions import in_memory_run


class Silence(ExactNoise):
    """Draws zeros and counts how often it was asked, so that the sum can be seen."""

    def __init__(self) -> None:
        super().__init__(np.random.default_rng(0))
        self.draws = 0

    def rounded_normal(self, stddev: Fraction) -> int:
        self.draws += 1
        return 0


@contextmanager
def silence() -> Iterator[Silence]:
    """Give this noise to answerers that are created here."""
    noise = Silence()
    with patch("streams.queries.continual_monitoring.ExactNoise", lambda _: noise):
        yield noise


def quiet(run: Run, norm_budget: float = 4.0, clip_norm: float | None = None) -> QueryAnswerer:
    rho = float(from_units_down(run.policy.budget[0]))
    with silence():
        return QueryAnswerer.calibrated(run, norm_budget=norm_budget, rho=rho, clip_norm=clip_norm)


def run_of(budget: float) -> Run:
    return in_memory_run(budget)[1]


@pytest.mark.parametrize("measure", ["gdp", "zcdp"])
def test_whole_budget_pays_for_the_norm_budget_and_no_more(measure: str) -> None:
    with Turnstile.in_memory(partitions=1) as t:
        policy = t.create_dataset("d", measure=measure, epsilon=1.0, delta=1e-6)
        run = t.run("d", "r")
        answerer = QueryAnswerer.calibrated(run, norm_budget=20.0)
        rho = MEASURES[policy.measure].gaussian_rho(policy.budget[0])
        same = QueryAnswerer.calibrated(run, norm_budget=20.0, rho=rho)
        assert answerer.noise_stddev == same.noise_stddev
        admitted = []
        for _ in range(22):
            answerer.answer([7], [1.0])
            assert answerer.last_charge is not None
            admitted.append(bool(answerer.last_charge.decision.admitted[0]))
        assert admitted == [True] * 20 + [False] * 2


@pytest.mark.parametrize("measure", ["renyi", "pure-dp"])
def test_no_rho_follows_from_other_measures(measure: str) -> None:
    with Turnstile.in_memory(partitions=1) as t:
        t.create_dataset("d", measure=measure, epsilon=1.0, delta=1e-6)
        with pytest.raises(InvalidRequest):
            QueryAnswerer.calibrated(t.run("d", "r"), norm_budget=20.0)


def test_answer_is_the_sum_over_the_admitted() -> None:
    run = run_of(1.0)
    answerer = quiet(run, norm_budget=1.0)
    users = np.array([5, 6, 7])
    assert answerer.answer(users, [1.0, 0.5, 0.0]).value == 1.5
    # User 5 has spent everything, user 6 a quarter; 7 has paid nothing yet.
    answer = answerer.answer(users, [1.0, 0.5, 1.0])
    assert answer.value == 1.5
    assert answer.value.shape == ()
    assert answerer.last_charge is not None
    assert answerer.last_charge.decision.admitted.tolist() == [False, True, True]


def test_users_without_a_contribution_pay_nothing() -> None:
    service, run = in_memory_run(1.0)
    answerer = quiet(run)
    answerer.answer(["a", "b", "c"], [0.0, 1.0, 0.0])
    assert service.spent().keys() == {"b"}
    assert answerer.answer(["a", "b"], [0.0, 0.0]).value == 0.0
    assert answerer.answer([], [], dimension=3).value.shape == (3,)
    assert service.charged() == [{"b": 1.0}, {}, {}]


def test_who_was_charged_is_told_in_the_caller_s_own_spelling() -> None:
    answerer = quiet(run_of(1.0))
    answerer.answer(["Zoe\u0308", "b", "Jörg"], [1.0, 0.0, 0.5])
    assert answerer.last_charge is not None
    assert list(answerer.last_charge.users) == ["Zoe\u0308", "Jörg"]


def test_contributions_are_clipped_before_the_charge() -> None:
    service, run = in_memory_run(1.0)
    release = quiet(run, clip_norm=1.0).answer(["a", "b"], [[30.0, 40.0], [0.0, 0.5]], dimension=2)
    assert service.charged() == [{"a": 1.0, "b": pytest.approx(0.5, rel=1e-14)}]
    np.testing.assert_allclose(release.value, [0.6, 1.3], rtol=1e-11)


def test_contributions_are_clipped_to_the_granted_norm() -> None:
    run = in_memory_run(1.0, on_exhaustion="clip")[1]
    answerer = quiet(run, norm_budget=25.0)
    answerer.answer(["a"], [[0.0, -4.0]], dimension=2)
    # 25 - 16 = 9 is left: a norm of 3.
    answer = answerer.answer(["a"], [[6.0, 8.0]], dimension=2)
    np.testing.assert_allclose(answer.value, [1.8, 2.4], rtol=1e-8)
    assert answerer.answer(["a"], [[6.0, 8.0]], dimension=2).value.tolist() == [0.0, 0.0]


def test_failed_charge_draws_nothing_and_can_be_repeated() -> None:
    service, run = in_memory_run(1.0)
    with silence() as noise:
        answerer = QueryAnswerer(run, noise_stddev=2.0)
    service.mute = {0}
    with pytest.raises(DecisionTimeout):
        answerer.answer(["a"], [1.0])
    assert (noise.draws, answerer.last_charge) == (0, None)
    service.mute = set()
    assert answerer.answer(["a"], [1.0]).step == 0
    assert noise.draws == 1


def test_one_step_is_never_answered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(10.0)
    with silence() as noise:
        answerer = QueryAnswerer(run, noise_stddev=2.0)
    assert [answerer.answer(["a"], [1.0]).step for _ in range(3)] == [0, 1, 2]
    assert answerer.last_charge is not None
    again = answerer.last_charge.decision
    monkeypatch.setattr(run, "charge", lambda *arguments, **options: again)
    with pytest.raises(ReleasedTwice):
        answerer.answer(["a"], [1.0])
    assert noise.draws == 3


@pytest.mark.parametrize(
    "contributions", [[1.0], [[1.0, 2.0]], [[], []], [[[1.0]], [[1.0]]], ["x", "y"]], ids=str
)
def test_invalid_contributions_are_rejected_before_the_charge(contributions: object) -> None:
    service, run = in_memory_run(1.0)
    with pytest.raises(InvalidRequest):
        quiet(run).answer(["a", "b"], contributions)
    assert service.charged() == []


@pytest.mark.parametrize(
    ("noise", "clip_norm"),
    [*((1.0, bad) for bad in (0.0, -1.0, math.inf, math.nan)), (1e-200, None), (1e200, None)],
)
def test_clip_norms_and_noise_without_a_grid_are_rejected(
    noise: float, clip_norm: float | None
) -> None:
    with pytest.raises(InvalidRequest):
        QueryAnswerer(run_of(1.0), noise_stddev=noise, clip_norm=clip_norm)


@pytest.mark.parametrize("dimension", [1, 10, 1000])
@pytest.mark.parametrize("delta", [0.5, 0.05, 1e-9])
def test_error_bound_is_that_of_corollary_4_7_and_holds(delta: float, dimension: int) -> None:
    answerer = quiet(run_of(0.3), norm_budget=7.0)
    bound = answerer.error_bound(delta, dimension)
    assert bound == pytest.approx(math.sqrt(7.0 * math.log(dimension / delta) / 0.3), rel=1e-7)
    # Union bound over the exact tails of the coordinates.
    assert dimension * 2.0 * special.ndtr(-bound / answerer.noise_stddev) <= delta
    for wrong in ((0.0, dimension), (1.0, dimension), (math.nan, dimension), (delta, 0)):
        with pytest.raises(InvalidRequest):
            answerer.error_bound(*wrong)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_noise_of_answers_is_gaussian_as_charged(seed: int) -> None:
    noise = np.random.default_rng(seed)
    answerer = QueryAnswerer(run_of(1e4), noise_stddev=3.0, noise=noise)
    errors = np.concatenate(
        [
            answerer.answer(["a"], np.full((1, 500), 2.0), dimension=500).value - 2.0
            for _ in range(20)
        ]
    )
    count = errors.size
    # Exact tails: each of the three fails for fewer than one seed in a million.
    assert abs(errors.mean()) < stats.norm.isf(1e-7) * 3.0 / math.sqrt(count)
    squares = float(np.square(errors / 3.0).sum())
    assert stats.chi2.ppf(1e-7, count) < squares < stats.chi2.isf(1e-7, count)
    assert stats.kstest(errors / 3.0, "norm").pvalue > 1e-7


def test_noise_of_coordinates_and_of_answers_is_not_repeated() -> None:
    answerer = QueryAnswerer(run_of(1e4), noise_stddev=1.0)
    values = np.concatenate(
        [answerer.answer(["a"], np.ones((1, 50)), dimension=50).value for _ in range(10)]
    )
    assert len(np.unique(values)) == values.size


def test_a_copied_answerer_draws_noise_of_its_own() -> None:
    run = run_of(1e4)
    original = QueryAnswerer(run, noise_stddev=1.0)
    original.answer(["a"], [1.0])
    copies = [copy.deepcopy(original, {id(run): run}) for _ in range(20)]
    assert len({float(each.answer(["a"], [1.0]).value) for each in copies}) == 20


def test_sum_does_not_depend_on_the_order_of_users() -> None:
    users, rows = np.arange(1000), np.random.default_rng(3).normal(0.0, 1e3, 1000)
    values = []
    for order in (slice(None), slice(None, None, -1)):
        with silence():
            answerer = QueryAnswerer(run_of(1e5), noise_stddev=1e2)
        values.append(float(answerer.answer(users[order], rows[order]).value))
    assert values[0] == values[1]
    np.testing.assert_allclose(values[0], math.fsum(rows), atol=1000 * 2.0**-33)


def test_contributions_are_rounded_towards_zero() -> None:
    with silence():
        answerer = QueryAnswerer(run_of(10.0), noise_stddev=3.0)
    rows = np.array([[math.pi, -math.e], [1e-30, -1e-30]])
    value = answerer.answer(["a", "b"], rows, dimension=2).value
    assert np.all(value * 2.0**38 == np.trunc(value * 2.0**38))
    assert np.all(np.abs(value) <= np.abs(rows[0]))
    np.testing.assert_allclose(value, rows[0], atol=2.0**-38)
    noisy = QueryAnswerer(run_of(10.0), noise_stddev=3.0)
    values = noisy.answer(["a"], np.full((1, 200), 0.1), dimension=200).value * 2.0**38
    assert np.all(values == np.trunc(values))


@pytest.mark.parametrize("whole", [1e200, math.inf, 2**53 + 1, 2**64, 10**400, -(10**400)])
@pytest.mark.parametrize("others", [[0.5, 0.25], [1, 0]])
@pytest.mark.parametrize(
    "column",
    [list, lambda values: pd.Series(values, dtype=object), lambda values: pd.Series(values)],
)
def test_whole_number_beyond_float64_halts_its_user_alone(
    whole: int, others: list[float], column: Callable[[list[float]], Any]
) -> None:
    with silence():
        answerer = QueryAnswerer(run_of(1.0), noise_stddev=1.0)
    answered = answerer.answer(["a", "b", "c"], column([*others, whole]))
    assert answered.value == sum(others)
    assert answerer.last_charge is not None
    assert answerer.last_charge.decision.granted[-1] == 0.0


def test_whole_numbers_become_the_nearest_float() -> None:
    columns: list[Any] = [
        [1.0, 2**53 + 1],
        [1, 2**53 + 1],
        np.array([1, 2**53 + 1]),
        np.array([1, 2**53 + 1], dtype=np.uint64),
        pl.Series([1, 2**53 + 1]),
    ]
    for column in columns:
        assert read_contributions(column, 2, None).tolist() == [1.0, 2.0**53]
    for vectors in ([[1.0], (2**53 + 1,)], [np.array([1]), np.array([2**53 + 1])]):
        assert read_contributions(vectors, 2, 1).tolist() == [[1.0], [2.0**53]]
    frame = pd.DataFrame({"x": [0.5, 1.0], "y": [10**400, None]})
    assert read_contributions(frame, 2, 2).tolist() == [[0.5, 2.0**400], [1.0, 0.0]]


@pytest.mark.parametrize("missing", [None, pd.NA, pd.NaT, math.nan])
def test_missing_contribution_counts_as_zero_for_its_user_alone(missing: object) -> None:
    with silence():
        answerer = QueryAnswerer(run_of(1.0), noise_stddev=1.0)
    assert answerer.answer(["a", "b"], [missing, 0.5]).value == 0.5
    vectors = [[missing, 0.25], [0.5, 0.5]]
    assert answerer.answer(["a", "b"], vectors, dimension=2).value.tolist() == [0.5, 0.75]


@pytest.mark.parametrize("shape", [(), (1,), (12,)])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_intervals_hold_for_all_coordinates_together(
    confidence: float, shape: tuple[int, ...]
) -> None:
    release = Release(0, np.full(shape, 7.0), 3.0)
    lower, upper = release.interval(confidence)
    assert lower.shape == upper.shape == shape
    np.testing.assert_allclose(upper - 7.0, 7.0 - lower)
    inside = 2.0 * stats.norm.cdf((upper - 7.0) / 3.0) - 1.0
    assert float(np.prod(inside)) == pytest.approx(confidence, rel=1e-9)
    for bad in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(InvalidRequest):
            release.interval(bad)


def test_the_lines_in_the_docs_answer() -> None:
    _, example, *_ = blocks(page("query/python"))
    users, amounts = ["ann", "bob"], [12.0, 250.0]
    frame = pd.DataFrame({"customer": users, "amount": amounts})
    given = {"users": users, "amounts": amounts, "purchases": frame}
    names = {**given, "run": run_of(1e4), "QueryAnswerer": QueryAnswerer}
    exec(example, names)
    assert names["lower"] < names["spent"].value < names["upper"]
