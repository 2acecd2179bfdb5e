from __future__ import annotations

import math
from contextlib import suppress
from typing import get_args

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import Gaussian, InvalidInput, gdp_to_delta
from accounting.costs.mechanisms import (
    Direction,
    Laplace,
    Mechanism,
    PoissonGaussian,
    PureDP,
)
from accounting.reports.bounds import Bounds
from accounting.reports.pld.discretisation import discretised
from accounting.reports.pld.losses import SampledGaussian
from accounting.reports.pld.pld_report import PldReport
from accounting.reports.saddlepoint import SaddlePointReport, cumulants
from tests.examples import examples, grid
from tests.unit.accounting.exact_deltas import larger_sampled_delta, sampled_delta
from tests.unit.accounting.refusals import refused

LEVELS = np.array([0.25, 0.5, 0.75, 1.0])


def report(noise_stddev: float, sampling_rate: float) -> SaddlePointReport:
    return SaddlePointReport([PoissonGaussian(noise_stddev, sampling_rate)] * 4, LEVELS)


DENSE = report(0.8, 0.2)


def steps(*counts: int) -> np.ndarray:
    return np.array([counts], dtype=np.int64)


def assert_ordered(bounds: Bounds) -> None:
    for part in bounds:
        assert not np.isnan(part).any()
    assert np.all(bounds.lower >= 0.0)
    assert np.all(bounds.lower <= bounds.estimate)
    assert np.all(bounds.estimate <= bounds.upper)


def assert_meet(bounds: Bounds, other: Bounds) -> None:
    assert_ordered(bounds)
    assert bounds.lower[0] <= other.upper[0]
    assert other.lower[0] <= bounds.upper[0]


# ----------------------------------------------------------- cumulants and the two approximations


@pytest.mark.parametrize("direction", get_args(Direction))
def test_cumulants_of_the_lattices_enclose_the_exact_ones(direction: Direction) -> None:
    rate, tilts, step = 0.1, np.array([0.1, 1.0, 3.0, 10.0]), 2.0**-10
    z, width = np.linspace(-12.0, 28.0, 200_001, retstep=True)
    log_mixture = np.log(1.0 - rate + rate * np.exp(z - 0.5))
    power = tilts + 1.0 if direction == "remove" else -tilts
    mass = np.exp(np.multiply.outer(power, log_mixture) - 0.5 * z * z)
    exact = np.log(mass.sum(axis=1) * width / math.sqrt(2.0 * math.pi))
    losses = discretised(SampledGaussian(1.0, rate), step, 20.0)
    added = direction == "add"
    assert losses.below is not None
    above, below = (cumulants(lattice, added, tilts)[0] for lattice in (losses.above, losses.below))
    assert np.all(below[0] <= exact)
    assert np.all(exact <= above[0])
    assert above[0] == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    ("noise", "rate", "count", "epsilon"),
    [(1.0, 0.01, 1000, 1.828), (2.0, 0.05, 400, 1.0), (0.8, 0.2, 40, 4.0)],
)
def test_approximations_are_those_of_the_paper(
    noise: float, rate: float, count: int, epsilon: float
) -> None:
    """K by the trapezoidal rule, the saddle point by bisection, delta_2 by its expectation."""
    z, width = np.linspace(-12.0, 28.0, 200_001, retstep=True)
    log_mixture = np.log(1.0 - rate + rate * np.exp(z / noise - 0.5 / noise**2))
    log_normal = -0.5 * z * z + math.log(width / math.sqrt(2.0 * math.pi))
    found = []
    for sign in (1.0, -1.0):  # remove and add
        loss, log_density = sign * log_mixture, log_normal + max(sign, 0.0) * log_mixture
        low, high = 0.01, 100.0
        for _ in range(60):
            t = math.sqrt(low * high)
            mass = np.exp(t * loss + log_density)
            mean = (mass @ loss) / mass.sum()
            variance = (mass @ (loss - mean) ** 2) / mass.sum()
            below = count * mean < epsilon + 1.0 / t + 1.0 / (1.0 + t)
            low, high = (t, high) if below else (low, t)
        mean, deviation = count * mean, math.sqrt(count * variance)
        scale = math.exp(count * math.log(mass.sum()) - epsilon * t)
        curvature = t**2 * (1 + t) ** 2 * deviation**2 + t**2 + (1 + t) ** 2
        x = np.linspace(epsilon, epsilon + mean + 12.0 * deviation, 200_001)
        weight = np.exp(t * (epsilon - x)) * -np.expm1(epsilon - x)
        density = np.exp(-0.5 * ((x - mean) / deviation) ** 2) / deviation
        expectation = float(weight @ density) * (x[1] - x[0]) / math.sqrt(2.0 * math.pi)
        found.append((scale / math.sqrt(2.0 * math.pi * curvature), scale * expectation))
    both = report(noise, rate).approximations(steps(0, 0, 0, count), epsilon)
    assert both[:, 0] == pytest.approx(np.array(found).max(axis=0), rel=5e-3)


def test_delta_2_of_gaussian_steps_is_exact() -> None:
    gaussian = SaddlePointReport([Gaussian(20.0)] * 4, LEVELS)
    for epsilon in (0.0, 0.5, 3.0):
        _, second = gaussian.approximations(steps(0, 0, 0, 400), epsilon)
        assert second[0] == pytest.approx(float(gdp_to_delta(1.0, epsilon)), rel=2e-3)


# --------------------------------------------------------------------------- the proven interval


def exact_delta(ratios: list[float], q: float, epsilon: float) -> mpf:
    """Exact delta of one or two steps, the larger direction."""
    with mpmath.workdps(30):
        if len(ratios) == 1:
            return larger_sampled_delta(ratios[0], q, epsilon)
        a = mpf(ratios[0])

        def after_first(z: mpf, added: bool) -> mpf:
            mixture = 1 - q + q * mpmath.exp(a * z - a * a / 2)
            left = epsilon + mpmath.log(mixture) if added else epsilon - mpmath.log(mixture)
            density = mpmath.npdf(z) * (1 if added else mixture)
            return density * sampled_delta(ratios[1], q, left, added=added)

        ends = [-9, -5, -2, 0, 2, 4, 6, 9, 13]
        return max(
            mpmath.quad(lambda z, added=added: after_first(z, added), ends)
            for added in (False, True)
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "epsilon"),
    grid([(0, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, 1), (0, 0, 0, 2)], [0.0, 0.05, 0.5, 2.0, 4.0]),
)
def test_exact_delta_of_one_and_two_steps_is_in_the_interval(
    counts: tuple[int, ...], epsilon: float
) -> None:
    ratios = [float(level) / 0.8 for level, k in zip(LEVELS, counts, strict=True) for _ in range(k)]
    exact = exact_delta(ratios, 0.2, epsilon)
    try:
        bounds = DENSE.delta(steps(*counts), epsilon)
    except InvalidInput:
        assert exact > 0.0
        return
    assert_ordered(bounds)
    assert bounds.lower[0] <= exact <= bounds.upper[0]
    if exact > 0.0 and (delta := float(exact)) < 0.1:
        interval = DENSE.epsilon(steps(*counts), delta)
        assert_ordered(interval)
        assert interval.lower[0] - 1e-12 <= epsilon <= interval.upper[0] + 1e-12


# Some of these leave delta to a tail that delta_2 does not see.
SINGLE = """
rate      noise   steps     delta
0.01      2.0     1000      1e-10
1.396e-3  2.6347  2647      1.0518e-11
4.266e-5  1.273   2992912   7.12e-7
7.634e-5  1.227   1906480   8.04e-14
1.674e-4  0.788   1127745   6.72e-5
1.239e-5  0.4196  10936531  1.06e-8
2.790e-4  1.050   431104    3.06e-15
0.3       0.7     200       1e-6
0.999     5.0     60        1e-3
0.5       1865.5  1000000   1e-5
"""


@pytest.mark.slow
@pytest.mark.parametrize("row", SINGLE.split("\n")[2:-1])
def test_interval_meets_that_of_the_loss_distributions(row: str) -> None:
    rate, noise, count, delta = (float(number) for number in row.split())
    step, norms = [PoissonGaussian(noise, rate)], np.ones(1)
    reports = SaddlePointReport(step, norms), PldReport(step, norms)
    assert_meet(*(report.epsilon(steps(int(count)), delta) for report in reports))


KINDS: dict[str, list[Mechanism]] = {
    "sampled": [PoissonGaussian(1.1, 0.02)] * 4,
    "mixed": [PoissonGaussian(1.0, 0.05), Gaussian(20.0), Laplace(8.0), PoissonGaussian(3.0, 0.5)],
    "pure": [PureDP()] * 4,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@examples(6)
@given(
    st.lists(st.integers(0, 60), min_size=4, max_size=4),
    st.floats(-10.0, -0.5).map(lambda x: 10.0**x),
    st.floats(-2.0, 1.0).map(lambda x: 10.0**x),
)
def test_interval_meets_the_exact_one_for_steps_of_every_kind(
    kind: str, history: list[int], delta: float, epsilon: float
) -> None:
    norms = LEVELS * (0.1 if kind == "pure" else 1.0)
    reports = SaddlePointReport(KINDS[kind], norms), PldReport(KINDS[kind], norms)
    assert_meet(*(report.epsilon(steps(*history), delta) for report in reports))
    with suppress(InvalidInput):  # the interval may end above 1
        assert_meet(*(report.delta(steps(*history), epsilon) for report in reports))


def test_delta_is_nothing_beyond_the_largest_loss() -> None:
    """Three randomised responses of 0.1 lose at most 0.3, and one lattice step each."""
    pure = SaddlePointReport([PureDP()], np.array([0.1]))
    assert pure.delta(steps(3), 0.32).upper[0] < 1e-80
    assert pure.epsilon(steps(3), 1e-60).upper[0] < 0.32
    assert pure.approximations(steps(3), 0.32).tolist() == [[0.0], [0.0]]


# -------------------------------------------------------------------------- limits and refusals


@pytest.mark.slow
def test_an_interval_that_says_nothing_is_refused() -> None:
    few = SaddlePointReport([PoissonGaussian(0.3, 0.5)], np.ones(1))
    with refused("epsilon"):
        few.delta(steps(3), 0.0)
    with refused("delta"):  # less than the mass of outcomes that are cut off
        few.epsilon(steps(3), 1e-100)
    for rate in (0.01, 0.5):
        far = SaddlePointReport([PoissonGaussian(1.0, rate)] * 2, np.array([1.0, 1000.0]))
        with refused("delta"):
            far.epsilon(steps(0, 1), 1e-5)
        with refused("epsilon"):
            far.delta(np.array([[5, 0], [5, 1]]), 1e3)
