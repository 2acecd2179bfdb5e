"""Continual counting against matrices that are built from the answers alone."""

from __future__ import annotations

import math
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from accounting import (
    MEASURES,
    Gaussian,
    ZcdpFilter,
    gdp_cost,
)
from accounting.exact.argument_checks import FloatArray
from accounting.release import ContinualCounter
from accounting.release.exact_noise import ExactNoise
from tests.unit.accounting.refusals import refused

GRID_UNIT = 2**52
"""The units of the grid that make a count of one, at noise 1."""


class Played(ExactNoise):
    """Noise that is given, in units of the grid."""

    def __init__(self, units: list[int]) -> None:
        super().__init__(np.random.default_rng(0))
        self.units = iter(units)

    def rounded_normal(self, stddev: Fraction) -> int:
        return next(self.units)


def played(counts: list[int], units: list[int], noise_stddev: float = 1.0) -> FloatArray:
    with patch("accounting.release.counter.ExactNoise", lambda _: Played(units)):
        counter = ContinualCounter(
            len(counts),
            noise_stddev=noise_stddev,
            generator=np.random.default_rng(0),
        )
    return np.array([counter.add(count) for count in counts])


def decoder(horizon: int) -> FloatArray:
    """L, column by column: what the noise of one step does to the answers."""
    columns = []
    for step in range(horizon):
        units = [0] * horizon
        units[step] = GRID_UNIT
        columns.append(played([0] * horizon, units))
    return np.array(columns).T


def square_root_series(terms: int) -> list[Fraction]:
    return [Fraction(math.comb(2 * k, k), 4**k) for k in range(terms)]


@pytest.mark.parametrize("horizon", [1, 2, 3, 4, 5, 7, 8, 9, 16, 21, 32, 45])
def test_norm_is_that_of_the_longest_column_of_the_factor(horizon: int) -> None:
    left = decoder(horizon)
    sums = np.tril(np.ones((horizon, horizon)))
    right = np.linalg.solve(left, sums)
    np.testing.assert_allclose(np.triu(right, 1), 0.0, atol=1e-12)
    counter = ContinualCounter(horizon, noise_stddev=3.0, generator=np.random.default_rng(0))
    norms = np.linalg.norm(right, axis=0)
    assert counter.cost().norm == pytest.approx(norms[0], rel=1e-10)
    assert norms[0] == max(norms)
    errors = [counter.standard_error(step) for step in range(1, horizon + 1)]
    np.testing.assert_allclose(3.0 * np.linalg.norm(left, axis=1), errors, rtol=1e-12)


@given(counts=st.lists(st.integers(0, 1000), min_size=1, max_size=70))
def test_answers_without_noise_are_the_running_sums(counts: list[int]) -> None:
    answers = played(counts, [0] * len(counts))
    np.testing.assert_allclose(answers, np.cumsum(counts), rtol=1e-13, atol=1e-11)


def test_square_of_the_series_is_all_ones_and_its_norm_is_stated_to_the_last_bits() -> None:
    series = square_root_series(120)
    for k in range(120):
        assert sum(series[i] * series[k - i] for i in range(k + 1)) == 1
    for horizon in (1, 2, 3, 10, 60, 120):
        counter = ContinualCounter(horizon, noise_stddev=1.0, generator=np.random.default_rng(0))
        exact = sum(f**2 for f in series[:horizon])
        assert Fraction(counter.cost().norm) ** 2 == pytest.approx(exact, rel=1e-15)
    # The norm is never below that of the coefficients in use, which are multiples of 2**-52.
    used = [Fraction(round(f * 2**52), 2**52) for f in series]
    assert Fraction(counter.cost().norm) ** 2 >= sum(f**2 for f in used)


def test_norm_grows_by_log_over_pi() -> None:
    for horizon in (10, 1000, 100_000):
        counter = ContinualCounter(horizon, rho=0.5, generator=np.random.default_rng(0))
        squared = counter.cost().norm ** 2
        euler_part = (np.euler_gamma + 4.0 * math.log(2.0)) / math.pi
        assert squared == pytest.approx(math.log(horizon) / math.pi + euler_part, abs=1 / horizon)
        # Wallis: f_k^2 <= 1 / (pi (k + 1/4)).
        assert squared <= 1.0 + math.log((4 * horizon - 1) / 3) / math.pi


def test_answers_depend_on_the_counts_through_what_is_released_with_noise_only() -> None:
    """Noise that makes up for one user more gives the same answers, bit for bit."""
    horizon, rng = 37, np.random.default_rng(3)
    counts = rng.integers(0, 50, horizon).tolist()
    units = [int(u) for u in rng.normal(0.0, 40.0 * GRID_UNIT, horizon)]
    answers = played(counts, units)
    for step in (1, 2, 12, 37):
        one_more = [count + (t == step) for t, count in enumerate(counts, start=1)]
        series = [round(f * 2**52) for f in square_root_series(horizon)]
        shift = [0] * (step - 1) + series[: horizon - step + 1]
        moved = [unit - by for unit, by in zip(units, shift, strict=True)]
        np.testing.assert_array_equal(played(one_more, moved), answers)


@pytest.mark.slow
def test_noise_has_the_stated_distribution_at_every_step() -> None:
    horizon, runs = 16, 400
    left, generator = decoder(horizon), np.random.default_rng(5)
    counts = np.arange(horizon)
    errors = np.empty((runs, horizon))
    for run in range(runs):
        counter = ContinualCounter(horizon, noise_stddev=2.5, generator=generator)
        errors[run] = [counter.add(int(c)) for c in counts] - np.cumsum(counts)
    noise = np.linalg.solve(left, errors.T).T / 2.5
    # Each assertion fails for fewer than one seed in a million.
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-7
    for step in (1, 7, 8, 15, 16):
        scaled = errors[:, step - 1] / counter.standard_error(step)
        squares = float(scaled @ scaled)
        assert stats.chi2.ppf(1e-8, runs) < squares < stats.chi2.isf(1e-8, runs)
    correlation = np.corrcoef(noise, rowvar=False) - np.eye(horizon)
    assert np.abs(correlation).max() < stats.norm.isf(1e-9) / math.sqrt(runs)


@pytest.mark.parametrize("rho", [1e-4, 0.125, 3.0])
@pytest.mark.parametrize("contribution", [1, 5])
def test_cost_is_charged_like_any_other_step(rho: float, contribution: int) -> None:
    counter = ContinualCounter(
        100,
        rho=rho,
        max_contribution=contribution,
        generator=np.random.default_rng(0),
    )
    cost = counter.cost()
    assert cost.mechanism == Gaussian(counter.noise_stddev)
    assert rho * (1 - 1e-4) < cost.rho <= rho
    rule = ZcdpFilter(rho)
    charge = MEASURES["zcdp"].charge_units(cost.mechanism, [cost.norm])
    assert rule.admit_units(rule.initial_state(1), charge)[1].tolist() == [True]
    assert gdp_cost(cost.mechanism, [cost.norm])[0] == pytest.approx(2.0 * cost.rho)


def test_there_is_no_answer_beyond_the_horizon() -> None:
    counter = ContinualCounter(3, noise_stddev=1.0, generator=np.random.default_rng(0))
    for _ in range(3):
        counter.add(1)
    for _ in range(2):
        with refused("step"):
            counter.add(0)
    assert counter.step == 3


BAD_COUNTS = [-1, 1.0, 0.5, math.nan, math.inf, True, "1", None, np.float64(1), 2**36 + 1]


def test_invalid_counts_are_refused_and_leave_no_trace() -> None:
    clean, tried = (
        ContinualCounter(8, noise_stddev=1.0, generator=np.random.default_rng(9)) for _ in range(2)
    )
    for count in range(8):
        for bad in BAD_COUNTS:
            with refused("count"):
                tried.add(bad)
        assert tried.add(count) == clean.add(count)


def test_total_may_reach_its_limit_and_not_exceed_it() -> None:
    counter = ContinualCounter(4, noise_stddev=1.0, generator=np.random.default_rng(2))
    for _ in range(2):
        answer = counter.add(2**35)
    assert answer == pytest.approx(2**36, abs=20.0)
    with refused("count"):
        counter.add(1)
    assert counter.add(0) == pytest.approx(2**36, abs=20.0)


def test_noise_is_fresh_in_every_step_and_every_counter() -> None:
    generator = np.random.default_rng(4)
    answers = []
    for _ in range(20):
        counter = ContinualCounter(20, noise_stddev=1.0, generator=generator)
        answers.extend(counter.add(0) for _ in range(20))
    assert len(set(answers)) == len(answers)
