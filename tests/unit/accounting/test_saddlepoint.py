from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from accounting import Gaussian, InvalidInput, gdp_to_delta, gdp_to_epsilon, renyi_to_epsilon
from accounting.mechanisms import PoissonGaussian
from accounting.reports.bounds import Bounds
from accounting.reports.cumulants import (
    DIRECTIONS,
    RELATIVE_ERROR,
    UNKNOWN_THIRD,
    Direction,
    cumulant_table,
    tilt_nodes,
)
from accounting.reports.pld import PldReport
from accounting.reports.saddlepoint import SaddlePointReport
from accounting.reports.tilted_sums import TiltedSums

LEVELS = np.array([0.25, 0.5, 0.75, 1.0])


def report(noise_stddev: float, sampling_rate: float) -> SaddlePointReport:
    return SaddlePointReport(PoissonGaussian(noise_stddev, sampling_rate), LEVELS)


COMMON = report(1.0, 0.01)
DENSE = report(0.8, 0.2)


def steps(*counts: int) -> np.ndarray:
    return np.array([counts], dtype=np.int64)


def assert_ordered(bounds: Bounds) -> None:
    for part in bounds:
        assert not np.isnan(part).any()
    assert np.all(bounds.lower >= 0.0)
    assert np.all(bounds.lower <= bounds.estimate)
    assert np.all(bounds.estimate <= bounds.upper)


# --------------------------------------------------------------------------- exact small numbers


def normal_above(x: mpf) -> mpf:
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def one_step_delta(a: float, q: float, epsilon: mpf, direction: Direction) -> mpf:
    """Exact delta of one step at any real epsilon: the loss is monotone in the outcome."""
    ratio, rate, bound = mpf(a), mpf(q), mpmath.exp(epsilon)
    if direction == "add":
        bound = 1 / bound
    if bound <= 1 - rate:  # every outcome is beyond epsilon, or none is
        return 1 - 1 / bound if direction == "remove" else mpf(0)
    x = mpmath.log((bound - (1 - rate)) / rate) / ratio + ratio / 2
    if direction == "remove":
        mixture = (1 - rate) * normal_above(x) + rate * normal_above(x - ratio)
        return mixture - bound * normal_above(x)
    mixture = (1 - rate) * normal_above(-x) + rate * normal_above(ratio - x)
    return normal_above(-x) - mixture / bound


def exact_delta(ratios: list[float], q: float, epsilon: float) -> mpf:
    """Exact delta of one or two steps, the larger direction."""
    with mpmath.workdps(30):
        if len(ratios) == 1:
            return max(one_step_delta(ratios[0], q, mpf(epsilon), d) for d in DIRECTIONS)
        a = mpf(ratios[0])

        def after_first(z: mpf, direction: Direction) -> mpf:
            mixture = 1 - q + q * mpmath.exp(a * z - a * a / 2)
            loss, density = mpmath.log(mixture), mpmath.npdf(z)
            if direction == "add":
                return density * one_step_delta(ratios[1], q, epsilon + loss, direction)
            return density * mixture * one_step_delta(ratios[1], q, epsilon - loss, direction)

        ends = [-9, -5, -2, 0, 2, 4, 6, 9, 13]
        return max(
            mpmath.quad(lambda z, d=direction: after_first(z, d), ends) for direction in DIRECTIONS
        )


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.5, 2.0, 4.0])
@pytest.mark.parametrize("counts", [(0, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, 1), (0, 0, 0, 2)])
def test_exact_delta_of_one_and_two_steps_lies_between_the_bounds(
    counts: tuple[int, ...], epsilon: float
) -> None:
    ratios = [float(level) / 0.8 for level, k in zip(LEVELS, counts, strict=True) for _ in range(k)]
    bounds = DENSE.delta(steps(*counts), epsilon)
    exact = exact_delta(ratios, 0.2, epsilon)
    assert_ordered(bounds)
    assert bounds.lower[0] <= exact <= bounds.upper[0]
    if exact > 0.0 and (delta := float(exact)) < 0.1:
        interval = DENSE.epsilon(steps(*counts), delta)
        assert_ordered(interval)
        assert interval.lower[0] <= epsilon + 1e-12
        assert epsilon - 1e-12 <= interval.upper[0]


# ------------------------------------------------------------- many steps, by another computation


def discretised_delta(
    counts: tuple[int, ...], ratios: np.ndarray, q: float, epsilon: float
) -> float:
    """Delta of a composition by FFT of losses on a mesh, each divided between its neighbours.

    That keeps the mean and adds at most mesh^2 / 4 to the variance of a step: no bound, but
    accurate to 1e-3 for the cases below.
    """
    mesh, size = 4e-4, 2**17
    z = np.linspace(-9.0, 12.0, 400_001)
    middle, width = 0.5 * (z[1:] + z[:-1]), z[1] - z[0]
    losses = mesh * ((np.arange(size) + size // 2) % size - size // 2)
    beyond = losses > epsilon
    results = []
    for direction in DIRECTIONS:
        transform = np.ones(size // 2 + 1, dtype=complex)
        for a, k in zip(ratios, counts, strict=True):
            mixture = 1.0 - q + q * np.exp(a * middle - 0.5 * a * a)
            density = np.exp(-0.5 * middle**2) / math.sqrt(2.0 * math.pi) * width
            density *= mixture if direction == "remove" else 1.0
            loss = np.log(mixture) * (1.0 if direction == "remove" else -1.0) / mesh
            place = np.floor(loss)
            share, index = loss - place, place.astype(np.int64)
            mass = np.bincount(index % size, weights=density * (1.0 - share), minlength=size)
            mass += np.bincount((index + 1) % size, weights=density * share, minlength=size)
            transform *= np.fft.rfft(mass) ** k
        mass = np.fft.irfft(transform, size)
        results.append(float(np.sum(mass[beyond] * -np.expm1(epsilon - losses[beyond]))))
    return max(results)


@pytest.mark.parametrize(
    ("noise_stddev", "sampling_rate", "counts", "epsilon"),
    [
        (1.0, 0.01, (100, 200, 0, 300), 0.5),
        (1.0, 0.01, (3000, 2000, 1000, 9000), 2.0),
        (2.0, 0.05, (0, 100, 100, 0), 1.0),
        (0.8, 0.2, (10, 10, 10, 10), 4.0),
    ],
)
def test_heterogeneous_compositions_agree_with_discretised_losses(
    noise_stddev: float, sampling_rate: float, counts: tuple[int, ...], epsilon: float
) -> None:
    saddle_point = report(noise_stddev, sampling_rate)
    delta = discretised_delta(counts, LEVELS / noise_stddev, sampling_rate, epsilon)
    bounds = saddle_point.delta(steps(*counts), epsilon)
    assert_ordered(bounds)
    assert bounds.lower[0] <= delta * (1 + 1e-3)
    assert bounds.upper[0] >= delta * (1 - 1e-3)
    # delta_2 is an approximation of first order: with skew losses it is some tens of percent off.
    assert bounds.estimate[0] == pytest.approx(delta, rel=0.4)
    interval = saddle_point.epsilon(steps(*counts), delta)
    assert_ordered(interval)
    assert interval.lower[0] <= epsilon * (1 + 1e-3)
    assert interval.upper[0] >= epsilon * (1 - 1e-3)
    assert interval.estimate[0] == pytest.approx(epsilon, rel=0.11)


@pytest.mark.parametrize(
    ("noise_stddev", "count", "published", "renyi"),
    [(1.0, 1000, 1.828, 2.12), (0.65, 2000, 7.751, 8.83)],
)
def test_published_epsilons_lie_in_the_interval_and_near_the_estimate(
    noise_stddev: float, count: int, published: float, renyi: float
) -> None:
    bounds = report(noise_stddev, 0.01).epsilon(steps(0, 0, 0, count), 1e-5)
    assert_ordered(bounds)
    assert bounds.lower[0] <= published <= bounds.upper[0] <= renyi
    assert bounds.estimate[0] == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("rate", "noise", "steps_made", "delta"),
    [(3.2149e-4, 2.57463, 17_799, 4.118e-9), (1.396e-3, 2.6347, 2647, 1.0518e-11)],
)
def test_interval_holds_where_the_sampled_component_takes_over_between_two_tilts(
    rate: float, noise: float, steps_made: int, delta: float
) -> None:
    # The tilted loss is then far from normal, and delta_2 says nothing.
    mechanism, norms, counts = PoissonGaussian(noise, rate), np.ones(1), steps(steps_made)
    epsilon = PldReport(mechanism, norms).epsilon(counts, delta)
    bounds = SaddlePointReport(mechanism, norms).epsilon(counts, delta)
    assert bounds.lower[0] <= epsilon.upper[0]
    assert epsilon.lower[0] <= bounds.upper[0]
    at = epsilon.lower[0]
    exact = PldReport(mechanism, norms).delta(counts, at)
    bounds = SaddlePointReport(mechanism, norms).delta(counts, at)
    assert bounds.lower[0] <= exact.upper[0]
    assert exact.lower[0] <= bounds.upper[0]


def test_interval_closes_in_on_the_estimate_as_steps_accumulate() -> None:
    widths = []
    for count in (10**3, 10**4, 10**5, 10**6):
        bounds = COMMON.epsilon(steps(0, 0, 0, count), 1e-5)
        assert_ordered(bounds)
        widths.append(float((bounds.upper - bounds.lower)[0] / bounds.estimate[0]))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.01


def test_delta_1_and_delta_2_are_within_the_first_order_of_each_other() -> None:
    counts = steps(0, 0, 0, 10**4)
    first = COMMON.approximate_delta(counts, 5.0, "delta_1")
    second = COMMON.approximate_delta(counts, 5.0, "delta_2")
    assert first == pytest.approx(second, rel=0.01)
    assert second == pytest.approx(COMMON.delta(counts, 5.0).estimate, rel=1e-12)


def test_another_formula_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="formula"):
        COMMON.approximate_delta(steps(0, 0, 0, 1), 1.0, "delta_3")


def test_delta_2_is_the_expectation_that_defines_it() -> None:
    counts = np.array([[0.0, 0.0, 300.0, 700.0]])
    tilts = tilt_nodes(LEVELS, 0.01)
    for direction in DIRECTIONS:
        sums = TiltedSums(cumulant_table(LEVELS, 0.01, tilts, direction), counts)
        t, cumulant, mean, variance = (float(v[0]) for v in sums._saddle(np.array([1.5])))
        assert mean == pytest.approx(1.5 + 1 / t + 1 / (1 + t), rel=1e-8)

        def integrand(z: mpf, t: float = t, m: float = mean, v: float = variance) -> mpf:
            tilted = mpmath.exp(t * (1.5 - z)) * (1 - mpmath.exp(1.5 - z))
            return tilted * mpmath.npdf(z, m, mpmath.sqrt(v))

        expected = mpmath.exp(cumulant - 1.5 * t) * mpmath.quad(integrand, [1.5, 2, 3, 5])
        assert math.exp(sums.log_delta_2(np.array([1.5]))[0]) == pytest.approx(
            float(expected), rel=1e-7
        )


# -------------------------------------------------------------------------------------- cumulants


GAUSS_NODES, GAUSS_WEIGHTS = (
    [mpf(float(v)) for v in values] for values in np.polynomial.legendre.leggauss(16)
)


def exact_cumulants(a: float, q: float, t: float, direction: Direction) -> tuple[mpf, ...]:
    """Gauss-Legendre on short panels; the third moment has its kink between two of them."""
    with mpmath.workdps(45):
        ratio, rate, tilt = mpf(a), mpf(q), mpf(t)
        exponent = tilt + 1 if direction == "remove" else -tilt
        sign = 1 if direction == "remove" else -1
        width = min(mpf(2), mpf(1) / ratio)

        def panels(split: mpf) -> list[tuple[mpf, mpf, mpf]]:
            """Weights under the normal density, x and the loss."""
            points = []
            for k in range(-int(20 / width), int(44 / width)):
                for node, weight in zip(GAUSS_NODES, GAUSS_WEIGHTS, strict=True):
                    z = split + width * (k + (1 + node) / 2)
                    x = rate * mpmath.expm1(ratio * z - ratio * ratio / 2)
                    points.append((width / 2 * weight * mpmath.npdf(z), x, mpmath.log1p(x)))
            return points

        def mean_of(function: Callable[[mpf], mpf], points: list[tuple[mpf, mpf, mpf]]) -> mpf:
            return mpmath.fsum(
                w * mpmath.exp(exponent * loss) * function(loss) for w, _, loss in points
            )

        points = panels(mpf(0))
        # E x = 0, and what is integrated here is nowhere negative: a relative error stays one.
        excess = mpmath.fsum(
            w * (mpmath.exp(exponent * loss) - 1 - exponent * x) for w, x, loss in points
        )
        total = mean_of(lambda loss: mpf(1), points)
        mean = mean_of(lambda loss: loss, points) / total
        variance = mean_of(lambda loss: (loss - mean) ** 2, points) / total
        points = panels((mpmath.log1p(mpmath.expm1(mean) / rate) + ratio * ratio / 2) / ratio)
        third = mean_of(lambda loss: abs(loss - mean) ** 3, points) / total
        return mpmath.log1p(excess), sign * mean, variance, third


CUMULANT_CASES = [
    (1.0, 0.01, 0.001),
    (1.0, 0.01, 1.0),
    (1.0, 0.01, 30.0),
    (1 / 0.3, 0.01, 4.0),
    (1 / 0.3, 0.9, 0.5),
    (0.05, 0.3, 200.0),
    (1e-4, 1e-6, 0.7),
    (1e-4, 1e-6, 1e8),
    (0.3, 1e-6, 25.0),
    (1.0, 0.999, 3.0),
]


@pytest.mark.slow
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("a", "q", "t"), CUMULANT_CASES)
def test_cumulants_are_within_the_stated_error_of_quadrature_in_many_digits(
    a: float, q: float, t: float, direction: Direction
) -> None:
    table = cumulant_table(np.array([a]), q, np.array([t]), direction)
    cumulant, mean, variance, third = exact_cumulants(a, q, t, direction)
    assert table.third[0, 0] < UNKNOWN_THIRD
    assert abs(table.cumulant[0, 0] / cumulant - 1) <= RELATIVE_ERROR
    assert abs(table.mean[0, 0] - mean) <= RELATIVE_ERROR * (mean + mpmath.sqrt(variance))
    assert abs(table.variance[0, 0] / variance - 1) <= RELATIVE_ERROR
    assert third * (1 - RELATIVE_ERROR) <= table.third[0, 0] <= third * 1.02


def test_unknown_entries_keep_an_upper_bound_of_the_cumulant() -> None:
    """Order 101 at ratio 1: all mass lies where the sampled component is, far out."""
    table = cumulant_table(np.array([1.0]), 0.01, np.array([1.0, 100.0]), "remove")
    order, rate = 101, mpf("0.01")
    exact = mpmath.log(
        mpmath.fsum(
            mpmath.binomial(order, k)
            * rate**k
            * (1 - rate) ** (order - k)
            * mpmath.exp(mpf(k * (k - 1)) / 2)
            for k in range(order + 1)
        )
    )
    assert table.third[0, 1] == UNKNOWN_THIRD
    assert exact <= table.cumulant[0, 1] <= 1.2 * exact


# --------------------------------------------------------------------------- limits and far tails


@pytest.mark.parametrize("mechanism", [Gaussian(20.0), PoissonGaussian(20.0, 1.0)])
def test_unsampled_steps_are_exact_gaussian_dp(mechanism: Gaussian | PoissonGaussian) -> None:
    exact = SaddlePointReport(mechanism, LEVELS)
    counts = steps(100, 0, 50, 200)
    mu = math.sqrt(float((counts[0] * LEVELS**2).sum())) / 20.0
    for epsilon in (0.0, 0.5, 3.0, 15.0):
        bounds = exact.delta(counts, epsilon)
        assert_ordered(bounds)
        assert bounds.lower[0] <= gdp_to_delta(mu, epsilon) * (1 + 1e-9)
        assert bounds.upper[0] >= gdp_to_delta(mu, epsilon) * (1 - 1e-9)
        assert bounds.lower[0] == pytest.approx(bounds.upper[0], rel=1e-9)
        assert exact.approximate_delta(counts, epsilon) == pytest.approx(bounds.upper, rel=1e-9)
    for delta in (0.3, 1e-5, 1e-100, 1e-300):
        interval = exact.epsilon(counts, delta)
        assert_ordered(interval)
        assert interval.upper[0] == pytest.approx(gdp_to_epsilon(mu, delta), rel=1e-9)
        assert interval.lower[0] == pytest.approx(interval.upper[0], rel=1e-6)


def test_sampling_at_nearly_rate_1_is_near_gaussian_dp() -> None:
    counts = steps(0, 0, 0, 10**4)
    bounds = report(100.0, 0.999999).epsilon(counts, 1e-5)
    assert_ordered(bounds)
    assert bounds.estimate[0] == pytest.approx(gdp_to_epsilon(1.0, 1e-5), rel=1e-4)
    assert bounds.lower[0] <= gdp_to_epsilon(1.0, 1e-5) <= bounds.upper[0] * (1 + 1e-5)


def test_no_steps_and_no_sampling_cost_nothing() -> None:
    for exact, counts in ((COMMON, steps(0, 0, 0, 0)), (report(1.0, 0.0), steps(5, 5, 5, 5))):
        for bounds in (exact.delta(counts, 0.0), exact.epsilon(counts, 1e-300)):
            assert [part.tolist() for part in bounds] == [[0.0]] * 3
    gaussian = SaddlePointReport(Gaussian(1.0), LEVELS)
    assert gaussian.epsilon(steps(0, 0, 0, 0), 1e-5).upper.tolist() == [0.0]
    assert COMMON.epsilon(np.zeros((0, 4), dtype=np.int64), 1e-5).upper.shape == (0,)


def test_adding_a_user_never_loses_more_than_the_bounded_loss() -> None:
    tilts = tilt_nodes(LEVELS, 0.2)
    sums = TiltedSums(cumulant_table(LEVELS, 0.2, tilts, "add"), np.array([[0.0, 2.0, 0.0, 3.0]]))
    largest = -5.0 * math.log1p(-0.2)
    for epsilon in (largest * (1 + 1e-12), 2.0 * largest, 1e6):
        assert [part.tolist() for part in sums.log_delta(np.array([epsilon]))] == [[-math.inf]] * 3
    lower, estimate, upper = sums.epsilon(-690.0)
    assert lower <= estimate <= upper <= largest * (1 + 1e-12)
    before = sums.log_delta(np.array([0.9 * largest]))
    assert not np.isnan(before).any()
    assert before[2] < 0.0


EXTREMES = [
    (1e-4, 1.0, 1e-6),
    (1.0, 1.0, 1e-6),
    (1 / 0.3, 1.0, 0.5),
    (1 / 0.3, 1.0, 1e-6),
    (1e-4, 0.01, 0.999),
    (1e3, 1.0, 0.01),
    (1e-300, 1.0, 1e-300),
    (1e120, 1.0, 0.5),
    (1e-300, 1.0, 1.0),
    (1e150, 1.0, 1.0),
    (1.0, 1.0, 1.0),
]


@pytest.mark.parametrize(("largest", "spread", "rate"), EXTREMES)
@pytest.mark.parametrize("count", [1, 1000, 2**46])
def test_extreme_histories_give_ordered_bounds_without_nan_or_warning(
    largest: float, spread: float, rate: float, count: int
) -> None:
    saddle_point = SaddlePointReport(PoissonGaussian(1.0, rate), LEVELS[-2:] * largest * spread)
    counts = np.array([[0, count], [count, 0]], dtype=np.int64)
    with np.errstate(all="raise", under="ignore"):
        for epsilon in (0.0, 1e-12, 1.0, 50.0, 1e6, 1e300):
            bounds = saddle_point.delta(counts, epsilon)
            assert_ordered(bounds)
            assert np.all(bounds.upper <= 1.0)
        for delta in (1.0 - 2.0**-53, 0.5, 1e-5, 1e-300):
            assert_ordered(saddle_point.epsilon(counts, delta))


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_unusable_ratio_gives_no_good_news(rate: float) -> None:
    saddle_point = SaddlePointReport(PoissonGaussian(1.0, rate), np.array([1.0, 1e200]))
    assert saddle_point.epsilon(np.array([[0, 1]]), 1e-5).upper.tolist() == [math.inf]
    assert saddle_point.delta(np.array([[0, 1]]), 1e3).upper.tolist() == [1.0]


def test_upper_bounds_are_at_most_those_of_renyi_accounting_at_the_tabulated_orders() -> None:
    tilts = tilt_nodes(LEVELS, 0.01)
    table = cumulant_table(LEVELS, 0.01, tilts, "remove")
    for count in (1, 30, 3000):
        divergence = count * table.cumulant[3] / tilts
        expected = renyi_to_epsilon(1.0 + tilts, divergence, 1e-5)
        upper = COMMON.epsilon(steps(0, 0, 0, count), 1e-5).upper[0]
        assert upper <= expected * (1 + 1e-9)


# ------------------------------------------------------------------------------------- properties

histories = st.lists(st.tuples(*[st.integers(0, 5000)] * 4), min_size=1, max_size=6).map(
    lambda rows: np.array(rows, dtype=np.int64)
)


@settings(max_examples=15)
@given(histories, st.floats(-12.0, -0.5).map(lambda x: 10.0**x))
def test_users_at_once_and_in_any_order_are_as_one_by_one(counts: np.ndarray, delta: float) -> None:
    together = np.array(COMMON.epsilon(counts, delta))
    backwards = np.array(COMMON.epsilon(counts[::-1], delta))[:, ::-1]
    alone = np.array([COMMON.epsilon(row[np.newaxis], delta) for row in counts])[:, :, 0].T
    assert together == pytest.approx(alone, rel=1e-8, abs=1e-9)
    assert together == pytest.approx(backwards, rel=1e-8, abs=1e-9)
    assert_ordered(Bounds(*together))


@settings(max_examples=15)
@given(histories, st.floats(1e-3, 20.0))
def test_epsilon_at_the_upper_delta_is_consistent(counts: np.ndarray, epsilon: float) -> None:
    bounds = COMMON.delta(counts, epsilon)
    assert_ordered(bounds)
    usable = (bounds.upper > 1e-300) & (bounds.upper < 1.0)
    for row, delta in zip(counts[usable], bounds.upper[usable], strict=True):
        interval = COMMON.epsilon(row[np.newaxis], float(delta))
        # delta(epsilon) <= the upper delta, so the exact epsilon there is at most this one.
        assert interval.lower[0] <= epsilon * (1 + 1e-9)


@settings(max_examples=15)
@given(st.tuples(*[st.integers(0, 3000)] * 4), st.integers(0, 3), st.integers(1, 3000))
def test_further_steps_never_bring_the_interval_below_the_earlier_one(
    counts: tuple[int, ...], level: int, more: int
) -> None:
    before = np.array([counts], dtype=np.int64)
    after = before.copy()
    after[0, level] += more
    earlier, later = COMMON.epsilon(before, 1e-5), COMMON.epsilon(after, 1e-5)
    assert later.upper[0] >= earlier.lower[0]
    assert later.estimate[0] >= earlier.estimate[0] - 1e-9


def test_estimates_are_monotone_in_norm_rate_noise_and_epsilon() -> None:
    by_norm = COMMON.epsilon(np.eye(4, dtype=np.int64) * 5000, 1e-5).estimate
    rates = [report(1.0, q).epsilon(steps(0, 0, 0, 5000), 1e-5).estimate[0] for q in (0.005, 0.02)]
    noises = [report(s, 0.01).epsilon(steps(0, 0, 0, 5000), 1e-5).estimate[0] for s in (2.0, 1.0)]
    by_epsilon = [-COMMON.delta(steps(0, 0, 0, 5000), e).estimate[0] for e in (0.0, 1.0, 2.0, 9.0)]
    for rising in (by_norm.tolist(), rates, noises, by_epsilon):
        assert np.all(np.diff(rising) > 0.0)
