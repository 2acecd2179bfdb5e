"""Reports from loss distributions, beside exact deltas in many digits."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import Gaussian, Laplace, PoissonGaussian, PureDP, gdp_to_epsilon
from accounting.reports.bounds import Bounds
from accounting.reports.pld.discretisation import (
    SMALLEST_STEP,
    LatticeLoss,
    StepLoss,
    base_step,
    discretised,
    log_expectations,
)
from accounting.reports.pld.losses import SampledGaussian
from accounting.reports.pld.pld_report import PldReport
from accounting.reports.pld.transforms import (
    Composition,
    Lattice,
    LossTransforms,
    log_largest_weight,
)
from accounting.reports.renyi_report import RenyiReport
from tests.examples import examples
from tests.unit.accounting.exact_deltas import gaussian_delta, larger_sampled_delta, sampled_delta
from tests.unit.accounting.refusals import refused

DELTA = 1e-5


def rows(*counts: list[int]) -> np.ndarray:
    return np.array(counts, dtype=np.int64)


STEPS = [
    # norm / noise, sampling rate, lattice step
    (1.0, 0.01, 2.0**-10),
    (1.0, 0.01, 2.0**-6),
    (1.0, 0.01, 2.0**-3),
    (1.0, 1.0, 2.0**-5),
    (0.01, 0.01, 2.0**-10),
    (0.01, 1.0, 2.0**-12),
    (3.0, 0.2, 2.0**-6),
    (2.0, 1e-6, 2.0**-5),
    (6.0, 0.3, 2.0),
    (1.0, 1.0 - 1e-10, 2.0**-5),
    (2.0, 0.01, 2.0**-40),
]


def lattice_delta(lattice: LatticeLoss, epsilon: float, added: bool) -> float:
    losses, log_mass = lattice.directed(added)
    return float(np.exp(log_mass) @ np.maximum(-np.expm1(epsilon - losses), 0.0))


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("ratio", "rate", "step"), STEPS)
def test_step_lies_between_its_discretisations(
    ratio: float, rate: float, step: float, added: bool
) -> None:
    losses = discretised(SampledGaussian(ratio, rate), step, 12.0)
    for epsilon in [-2.0, -0.1, -0.0051, 0.0, 1e-5, 0.003, 0.02, 0.1, 0.5, 2.0, 8.0]:
        with mpmath.workdps(60):
            exact = sampled_delta(ratio, rate, epsilon, added=added)
        above = lattice_delta(losses.above, epsilon, added) + losses.infinity_mass
        assert exact <= above * (1.0 + losses.error)
        if losses.below is not None:
            below = lattice_delta(losses.below, epsilon, added)
            assert below * (1.0 - losses.error) <= exact


@examples(60)
@given(
    st.floats(-17.0, 0.0).map(lambda x: 10.0**x),
    st.floats(-8.0, 2.1).map(lambda x: 10.0**x),
    st.sampled_from([4.0, 8.0, 16.0, 37.5]),
    st.floats(0.0, 1.0),
)
def test_masses_of_lattices_add_up_to_one_on_the_safe_side(
    rate: float, ratio: float, cut: float, part: float
) -> None:
    largest = max(map(abs, SampledGaussian(ratio, rate).extremes(cut)))
    exponent = math.log2(largest * SMALLEST_STEP)
    exponent = math.ceil(exponent + part * (1.0 - exponent))
    losses = discretised(SampledGaussian(ratio, rate), 2.0 ** min(exponent, 1), cut)
    for masses in (losses.above.log_removed, losses.above.log_added):
        assert math.fsum(np.exp(masses)) + losses.infinity_mass >= 1.0 - losses.error
    if losses.below is not None:
        for masses in (losses.below.log_removed, losses.below.log_added):
            assert math.fsum(np.exp(masses)) <= 1.0 + losses.error


@pytest.mark.parametrize("step", [2.0**-60, 4.0, 2.0**-1000])
def test_lattices_that_are_too_coarse_or_overflow_are_refused(step: float) -> None:
    with refused("step"):
        discretised(SampledGaussian(20.0, 1e-15), step, 37.5)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("upper", [False, True])
def test_transforms_give_the_delta_of_a_plain_convolution(added: bool, upper: bool) -> None:
    step, power = 2.0**-5, 4
    losses = discretised(SampledGaussian(1.0, 0.3), step, 9.0)
    lattice = losses.above if upper else losses.below
    assert lattice is not None
    table = LossTransforms(2, Lattice(step, 2**11, 2.0), added, upper, 2**10)
    table.fill(1, losses)
    composition = Composition(table, np.array([0.0, float(power)]))
    indices = -lattice.indices if added else lattice.indices
    mass = np.zeros(int(np.ptp(indices)) + 1)
    mass[indices - indices.min()] = np.exp(lattice.directed(added)[1])
    masses = mass
    for _ in range(power - 1):
        masses = np.convolve(masses, mass)
    offset = -lattice.offset if added else lattice.offset
    composed = power * (offset + step * int(indices.min())) + step * np.arange(masses.size)
    outside = power * losses.infinity_mass if upper else 0.0
    for epsilon in (-0.62, 0.0, 0.5, 0.99):
        direct = float(masses @ np.maximum(-np.expm1(epsilon - composed), 0.0)) + outside
        found = composition.delta(epsilon)
        assert found == pytest.approx(direct, rel=1e-8)
        assert found >= direct * (1.0 - 1e-13) if upper else found <= direct * (1.0 + 1e-13)
        back = composition.epsilon(found, epsilon)
        assert back == pytest.approx(max(epsilon, 0.0), abs=1e-9)


@pytest.mark.parametrize("kept", [8, 64, 2**9, 2**10])
def test_frequencies_that_are_left_out_are_in_the_bound(kept: int) -> None:
    # A loss of few nodes: its transform does not decay, and its last frequency is the largest.
    masses, step = np.log([0.5, 0.25, 0.25]), 2.0**-5
    lattice = LatticeLoss(step, 0.0, np.array([-40, 8, 2**10]), masses, masses)
    losses = StepLoss(lattice, lattice, 40.0, 0.0, 0.0)
    bounds = []
    for upper in (False, True):
        table = LossTransforms(1, Lattice(step, 2**11, 0.01), False, upper, kept)
        table.fill(0, losses)
        bounds.append(Composition(table, np.ones(1)).delta(-3 * step))
    exact = lattice_delta(lattice, -3 * step, added=False)
    assert bounds[0] <= exact <= bounds[1]
    if kept == 2**10:
        assert bounds[1] <= 1.01 * exact + 2.0 * math.exp(-0.01 * step * 2**11)


@examples(60)
@given(st.floats(-8.0, -0.01), st.floats(-2.5, 1.5), st.sampled_from([5.0, 11.0, 37.5]))
def test_expectations_of_the_lattice_are_above_the_exact_ones(
    log_rate: float, log_ratio: float, cut: float
) -> None:
    """By Chernoff: no delta is above the bound of any tilt."""
    q, m = 10.0**log_rate, 10.0**log_ratio
    source, tilts = SampledGaussian(m, q), 2.0 ** np.arange(-20.0, 30.0)
    losses = discretised(source, base_step(source, cut), cut)
    for added, epsilon in (
        (True, -0.5 * math.log1p(-q)),
        (True, -math.log1p(-q) * 0.999),
        (False, m),
    ):
        with mpmath.workdps(60):
            exact = sampled_delta(m, q, epsilon, added=added)
        log_bound = log_expectations(losses, added, tilts) + log_largest_weight(tilts)
        bound = math.exp(min(float((log_bound - tilts * epsilon).min()), 0.0))
        assert exact <= bound * (1.0 + 1e-10) + losses.infinity_mass


@pytest.mark.slow
@examples(40)
@given(
    st.floats(-7.0, 3.0).map(math.exp),
    st.floats(-14.0, 0.0).map(math.exp),
    st.floats(-600.0, -0.1).map(math.exp),
)
@example(1.5, 0.3, 1e-3)
@example(0.05, 0.01, 1e-5)
@example(3.0, 0.95, 1e-5)
def test_one_step_is_never_outside_of_its_bounds(ratio: float, rate: float, delta: float) -> None:
    report = PldReport([PoissonGaussian(1.0, rate)], np.array([ratio]))
    bounds = report.epsilon(rows([1]), delta)
    assert larger_sampled_delta(ratio, rate, float(bounds.upper[0])) <= delta
    assert (
        bounds.lower[0] == 0.0 or larger_sampled_delta(ratio, rate, float(bounds.lower[0])) >= delta
    )
    for epsilon in (0.0, 0.1, 1.0, 5.0):
        lower, estimate, upper = report.delta(rows([1]), epsilon)
        exact = larger_sampled_delta(ratio, rate, epsilon)
        assert mpf(lower[0]) <= exact <= mpf(upper[0])
        assert lower[0] <= estimate[0] <= upper[0]
        if exact > 1e-20 and 0.05 <= ratio <= 3.0 and rate >= 1e-4:
            assert float(exact) * 0.95 <= lower[0] <= upper[0] <= float(exact) * 1.05


@pytest.mark.slow
def test_norm_beyond_the_tables_is_unbounded_above() -> None:
    report = PldReport([Gaussian(1.0)] * 2, np.array([0.5, 200.0]))
    bounds = report.epsilon(rows([1, 0], [1, 1]), DELTA)
    assert bounds.upper[1] == math.inf
    assert gdp_to_epsilon(127.0, DELTA) <= bounds.lower[1] <= gdp_to_epsilon(200.0, DELTA)
    assert bounds.upper[0] == pytest.approx(gdp_to_epsilon(0.5, DELTA), rel=1e-3)
    # At the larger epsilon the exact delta is nearly 1, and that of the largest norm 1e-190.
    for epsilon in (1.0, 12000.0):
        assert report.delta(rows([1, 1]), epsilon).upper.tolist() == [1.0]


@pytest.mark.parametrize(
    ("noise", "q", "steps", "epsilon"),
    [(0.3, 1e-5, 10**5, 1.0), (0.5, 1e-4, 10**3, 0.1), (1.0, 1e-3, 10**3, 1.0)],
)
def test_delta_is_tight_near_the_largest_loss_of_adding_a_user(
    noise: float, q: float, steps: int, epsilon: float
) -> None:
    # Just below the largest loss of that direction, where its delta all but vanishes.
    assert epsilon < -steps * math.log1p(-q) < epsilon * 1.01
    bounds = PldReport([PoissonGaussian(noise, q)], np.ones(1)).delta(rows([steps]), epsilon)
    assert 0.0 < bounds.upper[0] <= bounds.lower[0] * 1.05


def report(q: float, ratios: list[float]) -> PldReport:
    return PldReport([PoissonGaussian(1.0, q)] * len(ratios), np.array(ratios))


def total_variation_up(ratio: float, rate: float, steps: int) -> float:
    """Above delta at epsilon 0, by closed forms: the sum of the steps', and chi squared."""
    one = rate * math.erf(ratio / math.sqrt(8.0))
    log_chi = steps * math.log1p(rate * rate * math.expm1(min(ratio * ratio, 700.0)))
    return min(steps * one, 0.5 * math.sqrt(math.expm1(min(log_chi, 10.0))))


@pytest.mark.slow
@examples(2)
@given(
    st.floats(-17.0, -5.0).map(lambda x: 10.0**x),
    st.floats(-2.0, 2.0).map(lambda x: 10.0**x),
    st.floats(0.0, 13.0).map(lambda x: int(10.0**x)),
)
@example(1.2077818275488336e-08, 1.0 / 0.5640967641203588, 2176141669575)
@example(1.6849489561803855e-13, 1.0 / 0.04050237510066314, 4339)
def test_lower_bound_is_within_total_variation_at_small_rates(
    rate: float, ratio: float, steps: int
) -> None:
    bounds = report(rate, [ratio]).delta(np.array([[steps]]), 0.0)
    assert bounds.lower[0] <= total_variation_up(ratio, rate, steps) * (1.0 + 1e-12)


mpmath.mp.dps = 40


def responses(size: float, count: int, epsilon: mpf) -> mpf:
    """Delta of `count` randomised responses, at any real epsilon."""
    e, total = mpf(size), mpf(0)
    for ahead in range(count + 1):
        loss = (2 * ahead - count) * e
        mass = mpmath.binomial(count, ahead) * mpmath.exp(ahead * e) / (1 + mpmath.exp(e)) ** count
        total += mass * max(1 - mpmath.exp(epsilon - loss), mpf(0))
    return total


def assert_between(bounds: Bounds, exact: mpf, width: float) -> None:
    assert mpf(float(bounds.lower[0])) <= exact <= mpf(float(bounds.upper[0]))
    assert bounds.upper[0] <= bounds.lower[0] * (1.0 + width) + 1e-12


def assert_around(
    bounds: Bounds, exact: Callable[[mpf], mpf], epsilon: float, largest: float
) -> None:
    """The bounds hold, and are those of an epsilon that is off by some thousandths of the loss."""
    e, shift = mpf(epsilon), mpf(0.006) * mpf(largest)
    lower, upper = mpf(float(bounds.lower[0])), mpf(float(bounds.upper[0]))
    assert lower <= exact(e) <= upper
    assert exact(e + shift) * mpf(0.98) - mpf(1e-12) <= lower
    assert upper <= exact(e - shift) * mpf(1.02) + mpf(1e-12)


@examples(30)
@given(st.floats(-2.0, 1.0).map(lambda x: 10.0**x), st.floats(0.0, 1.1))
def test_one_laplace_step_is_the_exact_one(size: float, part: float) -> None:
    def exact(epsilon: mpf) -> mpf:
        return max(-mpmath.expm1((epsilon - mpf(size)) / 2), mpf(0))

    bounds = PldReport([Laplace(1.0)], np.array([size])).delta(np.array([[1]]), size * part)
    assert_around(bounds, exact, size * part, size)


@examples(30)
@example(1.0049436676389785, 35, 0.875)
@given(st.floats(0.01, 2.0), st.integers(1, 40), st.floats(0.0, 1.0))
def test_randomised_responses_are_the_exact_ones(size: float, count: int, part: float) -> None:
    epsilon = size * count * part * part
    bounds = PldReport([PureDP()], np.array([size])).delta(np.array([[count]]), epsilon)
    assert_around(bounds, lambda e: responses(size, count, e), epsilon, size * count)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5, 4.0])
def test_gaussian_steps_and_a_response_are_a_mixture_of_both(epsilon: float) -> None:
    report = PldReport([Gaussian(2.0), PureDP()], np.array([1.0, 0.7]))
    ahead = 1 / (1 + mpmath.exp(-mpf(0.7)))
    mu, e = mpmath.sqrt(3) / 2, mpf(epsilon)
    shifted = [gaussian_delta(mu, e - mpf(0.7)), gaussian_delta(mu, e + mpf(0.7))]
    exact = ahead * shifted[0] + (1 - ahead) * shifted[1]
    assert_between(report.delta(np.array([[3, 1]]), epsilon), exact, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "epsilon", [0.3, *(pytest.param(e, marks=pytest.mark.thorough) for e in (0.0, 2.0))]
)
def test_sampled_and_gaussian_steps_lose_the_larger_direction(epsilon: float) -> None:
    report = PldReport([PoissonGaussian(1.0, 0.1), Gaussian(1.0)], np.array([1.0, 0.5]))

    def loss(x: mpf) -> mpf:
        return mpmath.log1p(mpf(0.1) * mpmath.expm1(x - mpf(1) / 2))

    def removed(x: mpf) -> mpf:
        density = (1 - mpf(0.1)) * mpmath.npdf(x) + mpf(0.1) * mpmath.npdf(x, 1)
        return density * gaussian_delta(mpf(0.5), mpf(epsilon) - loss(x))

    def added(x: mpf) -> mpf:
        return mpmath.npdf(x) * gaussian_delta(mpf(0.5), mpf(epsilon) + loss(x))

    points = [mpf(x) for x in np.linspace(-12.0, 13.0, 26)]
    exact = max(mpmath.quad(removed, points), mpmath.quad(added, points))
    assert_between(report.delta(np.array([[1, 1]]), epsilon), exact, 0.02)


def test_divergences_of_mixed_histories_are_sums() -> None:
    norms, counts = np.array([1.0, 0.5, 0.2]), np.array([[5, 7, 3]])
    mechanisms = [Laplace(4.0), PoissonGaussian(1.0, 0.1), Laplace(4.0)]
    total = RenyiReport(mechanisms, norms).divergences(counts)
    parts = [
        RenyiReport([mechanism], norms[[level]]).divergences(counts[:, [level]])
        for level, mechanism in enumerate(mechanisms)
    ]
    np.testing.assert_allclose(total, sum(parts), rtol=1e-12)
