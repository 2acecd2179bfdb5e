"""The tightest report: no looser than loss distributions or Rényi, exact for Gaussian steps."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import Gaussian, Laplace, PoissonGaussian
from accounting.costs.mechanisms import Mechanism
from accounting.reports import NormGrid, ReportAccountant
from tests.examples import examples
from tests.unit.accounting.exact_deltas import gaussian_delta

GRID = NormGrid(1.0, 4)


def accountant(mechanism: Mechanism, levels: int = 1) -> ReportAccountant:
    return ReportAccountant(mechanism, NormGrid(1.0, levels))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "epsilon", "most"),
    [
        # Between tight values on both sides: what the method said was 1.
        pytest.param(0.8, 1e-5, 10**6, 10.0, 1.7e-60, marks=pytest.mark.thorough),
        pytest.param(0.8, 1e-5, 10**6, 3.0, 1.4e-19, marks=pytest.mark.thorough),
        (0.3, 1e-5, 10**5, 1.0, 0.01529),
    ],
)
def test_delta_is_not_useless_where_one_method_can_say_nothing(
    noise: float, rate: float, steps: int, epsilon: float, most: float
) -> None:
    delta = accountant(PoissonGaussian(noise, rate)).delta([steps], epsilon)
    assert delta.bounds.lower <= float(delta) <= most


@pytest.mark.slow
@examples(5)
@given(
    st.floats(-4.0, 0.0).map(lambda x: 10.0**x),
    st.floats(0.4, 6.0),
    st.lists(st.integers(0, 200), min_size=4, max_size=4),
    st.floats(-9.0, -0.2).map(lambda x: 10.0**x),
)
def test_upper_bound_is_the_least_of_both_methods_and_intervals_overlap(
    rate: float, noise: float, history: list[int], delta: float
) -> None:
    report = ReportAccountant(PoissonGaussian(noise, rate), GRID)
    for level, ask in ((delta, report.epsilon), (3.0 * noise * delta, report.delta)):
        found = ask(history, level)
        least = min(float(ask(history, level, method)) for method in ("pld", "renyi"))
        assert float(found) <= least
        for method in ("pld", "renyi", "saddlepoint"):
            other = ask(history, level, method)
            assert found.bounds.lower <= float(other)
            assert other.bounds.lower <= float(found)


@pytest.mark.slow
@examples(15)
@given(
    st.floats(-2.0, 2.0).map(lambda x: 10.0**x),
    st.lists(st.integers(0, 10**4), min_size=4, max_size=4).filter(any),
    st.floats(-250.0, -0.1).map(lambda x: 10.0**x),
)
def test_gaussian_histories_are_exact_but_for_rounding_and_rounded_up(
    noise: float, history: list[int], delta: float
) -> None:
    report = ReportAccountant(Gaussian(noise), GRID)
    bounds = report.epsilon(history, delta).bounds
    with mpmath.workdps(400):
        squares = sum(n * mpf(c) ** 2 for n, c in zip(history, GRID.norms.tolist(), strict=True))
        mu = mpmath.sqrt(squares) / mpf(noise)
        assert gaussian_delta(mu, float(bounds.upper)) <= mpf(delta)
        if bounds.lower > 0.0:
            assert gaussian_delta(mu, float(bounds.lower)) >= mpf(delta)
        at = min(float(bounds.upper), 1e5)
        exact, found = gaussian_delta(mu, at), report.delta(history, at).bounds
        assert mpf(float(found.lower)) <= exact <= mpf(float(found.upper))
    assert bounds.upper - bounds.lower <= 1e-9 * bounds.upper + 1e-9 * math.sqrt(float(squares))


@pytest.mark.parametrize(
    ("noise", "rate"), [(1e-3, 0.01), (1e-3, 0.999), (7e-3, 0.5), (0.1, 1.0 - 1e-9)]
)
def test_no_sampled_history_is_above_the_same_without_sampling(noise: float, rate: float) -> None:
    sampled = PoissonGaussian(noise, rate)
    histories = [[100, 0], [3, 2]]  # the second mechanism is not sampled
    report = ReportAccountant([sampled, Gaussian(noise)], NormGrid(1.0, 1))
    whole = ReportAccountant([Gaussian(noise), Gaussian(noise)], NormGrid(1.0, 1))
    assert (report.epsilon(histories, 1e-5) <= whole.epsilon(histories, 1e-5) * (1 + 1e-12)).all()


def test_no_delta_of_sampled_steps_is_above_that_without_sampling() -> None:
    epsilons = [0.0, 50.0, 90.0, 5e3]
    sampled, whole = (
        [float(accountant(step).delta([1], epsilon)) for epsilon in epsilons]
        for step in (PoissonGaussian(0.1, 1.0 - 1e-9), Gaussian(0.1))
    )
    assert all(low <= high * (1 + 1e-12) for low, high in zip(sampled, whole, strict=True))


def test_steps_of_pure_dp_are_not_left_out_of_the_bound_without_sampling() -> None:
    report = ReportAccountant([PoissonGaussian(0.5, 0.5), Laplace(0.01)], NormGrid(1.0, 1))
    assert report.epsilon([1, 1], 1e-5) > report.epsilon([1, 0], 1e-5) + 80.0
    assert report.delta([1, 1], 50.0) > 0.5
