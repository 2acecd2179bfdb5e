from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import Gaussian, gdp_to_delta, gdp_to_epsilon
from accounting.costs.mechanisms import (
    DIRECTIONS,
    Direction,
    Laplace,
    Mechanism,
    PoissonGaussian,
    PoissonRecords,
    PureDP,
)
from accounting.reports.histories import Bounds
from accounting.reports.pld.pld_report import PldReport
from accounting.reports.renyi import RenyiReport
from accounting.reports.saddlepoint.loss_columns import CumulantTable, LossColumns
from accounting.reports.saddlepoint.saddlepoint_report import SaddlePointReport
from accounting.reports.saddlepoint.sampled_loss import SampledLoss
from accounting.reports.saddlepoint.tilted_sums import TiltedSums
from tests.examples import examples, grid
from tests.unit.accounting.refusals import refused

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
@pytest.mark.parametrize(
    ("counts", "epsilon"),
    grid([(0, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, 1), (0, 0, 0, 2)], [0.0, 0.05, 0.5, 2.0, 4.0]),
)
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


@pytest.mark.slow
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
    assert bounds.estimate[0] == pytest.approx(delta, rel=1e-3)
    interval = saddle_point.epsilon(steps(*counts), delta)
    assert_ordered(interval)
    assert interval.lower[0] <= epsilon * (1 + 1e-3)
    assert interval.upper[0] >= epsilon * (1 - 1e-3)
    assert interval.estimate[0] == pytest.approx(epsilon, rel=1e-3)


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
    assert bounds.estimate[0] == pytest.approx(published, rel=5e-4)


# Rates, noises, steps and deltas of which some leave delta to a tail that delta_2 does not see.
SINGLE = """
rate      noise   steps     delta
0.01      2.0     1000      1e-10
3.2149e-4 2.57463 17799     4.118e-9
1.396e-3  2.6347  2647      1.0518e-11
4.266e-5  1.273   2992912   7.12e-7
7.634e-5  1.227   1906480   8.04e-14
3.590e-5  1.097   2143608   6.39e-11
1.674e-4  0.788   1127745   6.72e-5
1.239e-5  0.4196  10936531  1.06e-8
4.720e-4  0.6626  237930    1.41e-4
2.790e-4  1.050   431104    3.06e-15
2.638e-3  0.9027  42333     1.51e-9
0.3       0.7     200       1e-6
0.999     5.0     60        1e-3
"""


@pytest.mark.slow
@pytest.mark.parametrize("row", SINGLE.split("\n")[2:-1])
def test_estimates_are_within_1e_3_of_the_loss_distributions(row: str) -> None:
    rate, noise, count, delta = (float(number) for number in row.split())
    mechanism, norms, counts = PoissonGaussian(noise, rate), np.ones(1), steps(int(count))
    exact = PldReport(mechanism, norms).epsilon(counts, delta)
    bounds = SaddlePointReport(mechanism, norms).epsilon(counts, delta)
    assert_ordered(bounds)
    assert bounds.lower[0] <= exact.upper[0]
    assert exact.lower[0] <= bounds.upper[0]
    assert exact.lower[0] * (1 - 1e-3) <= bounds.estimate[0] <= exact.upper[0] * (1 + 1e-3)
    epsilon = float(bounds.estimate[0])
    at = SaddlePointReport(mechanism, norms).delta(counts, epsilon)
    assert at.estimate[0] == pytest.approx(delta, rel=1e-3)


@pytest.mark.slow
@examples(8)
@given(
    st.floats(-4.0, -0.3),
    st.floats(-0.4, 0.8),
    st.floats(1.7, 3.5),
    st.floats(-12.0, -3.0),
    st.lists(st.integers(0, 100), min_size=4, max_size=4).filter(any),
)
def test_estimates_lie_between_the_loss_distributions_bounds_for_50_participations_or_more(
    log_rate: float, log_noise: float, log_participations: float, log_delta: float, shape: list[int]
) -> None:
    rate, delta = 10.0**log_rate, 10.0**log_delta
    mechanism = PoissonGaussian(10.0**log_noise, rate)
    total = 10.0**log_participations / rate
    counts = np.ceil(np.array([shape]) * (total / sum(shape))).astype(np.int64)
    exact = PldReport(mechanism, LEVELS).epsilon(counts, delta)
    estimate = SaddlePointReport(mechanism, LEVELS).epsilon(counts, delta).estimate
    assert exact.lower[0] * (1 - 1e-3) <= estimate[0] <= exact.upper[0] * (1 + 1e-3)


def test_interval_closes_in_on_the_estimate_as_steps_accumulate() -> None:
    widths = []
    for count in (10**3, 10**4, 10**5, 10**6):
        bounds = COMMON.epsilon(steps(0, 0, 0, count), 1e-5)
        assert_ordered(bounds)
        widths.append(float((bounds.upper - bounds.lower)[0] / bounds.estimate[0]))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.01


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


def add_table(rate: float) -> CumulantTable:
    columns = LossColumns([SampledLoss(float(level), rate, "add") for level in LEVELS])
    return columns.table(np.arange(LEVELS.size))


def test_adding_a_user_never_loses_more_than_the_bounded_loss() -> None:
    sums = TiltedSums(add_table(0.2), np.array([[0.0, 2.0, 0.0, 3.0]]))
    largest = -5.0 * math.log1p(-0.2)
    for epsilon in (largest * (1 + 1e-11), 2.0 * largest, 1e6):
        assert [part.tolist() for part in sums.log_delta(np.array([epsilon]))] == [[-math.inf]] * 2
    lower, upper = sums.epsilon(-690.0)
    assert lower <= upper <= largest * (1 + 1e-11)
    before = sums.log_delta(np.array([0.9 * largest]))
    assert not np.isnan(before).any()
    assert before[1] < 0.0


EXTREMES = [
    (5.378, 1.0, 1.0 - 2.0**-52),
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


@pytest.mark.slow
@pytest.mark.parametrize(("history", "count"), grid(EXTREMES, [1, 1000, 2**46]))
def test_extreme_histories_give_ordered_bounds_without_nan_or_warning(
    history: tuple[float, float, float], count: int
) -> None:
    largest, spread, rate = history
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


@pytest.mark.parametrize(("noise", "count"), grid([0.5, 1.0, 4.0], [1, 30, 1000, 10**5]))
def test_upper_bounds_are_never_above_those_of_renyi_accounting(noise: float, count: int) -> None:
    mechanism, counts = PoissonGaussian(noise, 0.01), steps(0, 0, 3, count)
    ours, renyi = SaddlePointReport(mechanism, LEVELS), RenyiReport(mechanism, LEVELS)
    for delta in (1e-3, 1e-5, 1e-12):
        upper = ours.epsilon(counts, delta).upper[0]
        assert upper <= renyi.epsilon(counts, delta).upper[0] * (1 + 1e-12)
        at = float(upper) * 0.9
        assert ours.delta(counts, at).upper[0] <= renyi.delta(counts, at).upper[0] * (1 + 1e-9)


# -------------------------------------------------------------------------- histories of many kinds


def mixed_delta(mechanisms: list[Mechanism], counts: list[int], epsilon: float) -> float:
    """As `discretised_delta`, for Gaussian steps of norm 1, sampled or not."""
    mesh, size = 2e-4, 2**17
    z = np.linspace(-9.0, 12.0, 200_001)
    middle, width = 0.5 * (z[1:] + z[:-1]), z[1] - z[0]
    normal = np.exp(-0.5 * middle**2) / math.sqrt(2.0 * math.pi) * width
    losses = mesh * ((np.arange(size) + size // 2) % size - size // 2)
    beyond = losses > epsilon
    results = []
    for direction in DIRECTIONS:
        sign = 1.0 if direction == "remove" else -1.0
        transform = np.ones(size // 2 + 1, dtype=complex)
        for mechanism, count in zip(mechanisms, counts, strict=True):
            match mechanism:
                case Gaussian(noise):
                    loss, density = middle / noise + 0.5 / noise**2, normal
                case PoissonGaussian(noise, rate):
                    ratio = 1.0 - rate + rate * np.exp(middle / noise - 0.5 / noise**2)
                    loss, density = sign * np.log(ratio), normal * (ratio if sign > 0 else 1.0)
            place = np.floor(loss / mesh)
            part, index = loss / mesh - place, place.astype(np.int64)
            mass = np.bincount(index % size, weights=density * (1.0 - part), minlength=size)
            mass += np.bincount((index + 1) % size, weights=density * part, minlength=size)
            transform *= np.fft.rfft(mass) ** count
        mass = np.fft.irfft(transform, size)
        results.append(float(np.sum(mass[beyond] * -np.expm1(epsilon - losses[beyond]))))
    return max(results)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
@pytest.mark.parametrize("counts", [(2000, 500, 2), (1000, 0, 9), (0, 400, 5)])
def test_mixed_histories_agree_with_discretised_losses(
    counts: tuple[int, ...], epsilon: float
) -> None:
    mechanisms: list[Mechanism] = [
        PoissonGaussian(1.0, 0.01),
        PoissonGaussian(2.0, 0.05),
        Gaussian(5.0),
    ]
    found = SaddlePointReport(mechanisms, np.ones(3))
    delta = mixed_delta(mechanisms, list(counts), epsilon)
    bounds = found.delta(steps(*counts), epsilon)
    assert_ordered(bounds)
    assert bounds.lower[0] <= delta * (1 + 1e-3)
    assert delta * (1 - 1e-3) <= bounds.upper[0]
    assert bounds.estimate[0] == pytest.approx(delta, rel=2e-3, abs=1e-15)
    if delta > 1e-12:
        assert found.epsilon(steps(*counts), delta).estimate[0] == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize(
    "mechanism", [Laplace(2.0), PureDP(), PoissonRecords(1.0, 0.1, 3)], ids=repr
)
def test_other_noise_and_several_records_are_refused(mechanism: Mechanism) -> None:
    with refused("mechanism"):
        SaddlePointReport(mechanism, np.ones(1)).epsilon(steps(10), 1e-5)


def test_one_mechanism_for_all_levels_is_that_mechanism_for_each() -> None:
    mechanism, counts = PoissonGaussian(1.0, 0.01), steps(10, 200, 0, 3000)
    for mechanisms in ([mechanism] * 4, (mechanism,) * 4):
        each = SaddlePointReport(mechanisms, LEVELS).epsilon(counts, 1e-6)
        for one, other in zip(each, COMMON.epsilon(counts, 1e-6), strict=True):
            # Where arrays lie in memory decides the order in which some of it is added up.
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_gaussian_steps_of_different_noise_are_exact_gaussian_dp() -> None:
    mechanisms = [Gaussian(4.0), PoissonGaussian(8.0, 1.0), PoissonGaussian(1.0, 0.0)]
    bounds = SaddlePointReport(mechanisms, np.array([1.0, 0.5, 1.0])).epsilon(steps(3, 5, 9), 1e-5)
    mu = math.sqrt(3.0 / 16.0 + 5.0 / 256.0)
    assert bounds.upper[0] == pytest.approx(gdp_to_epsilon(mu, 1e-5), rel=1e-9)


# ------------------------------------------------------------------------------------- properties

histories = st.lists(st.tuples(*[st.integers(0, 5000)] * 4), min_size=1, max_size=6).map(
    lambda rows: np.array(rows, dtype=np.int64)
)


@pytest.mark.slow
@examples(6)
@given(histories, st.floats(-12.0, -0.5).map(lambda x: 10.0**x))
def test_users_at_once_and_in_any_order_are_as_one_by_one(counts: np.ndarray, delta: float) -> None:
    together = np.array(COMMON.epsilon(counts, delta))
    backwards = np.array(COMMON.epsilon(counts[::-1], delta))[:, ::-1]
    alone = np.array([COMMON.epsilon(row[np.newaxis], delta) for row in counts])[:, :, 0].T
    assert together == pytest.approx(alone, rel=1e-8, abs=1e-9)
    assert together == pytest.approx(backwards, rel=1e-8, abs=1e-9)
    assert_ordered(Bounds(*together))


@pytest.mark.slow
@examples(6)
@given(histories, st.floats(1e-3, 20.0))
def test_epsilon_at_the_upper_delta_is_consistent(counts: np.ndarray, epsilon: float) -> None:
    bounds = COMMON.delta(counts, epsilon)
    assert_ordered(bounds)
    usable = (bounds.upper > 1e-300) & (bounds.upper < 1.0)
    for row, delta in zip(counts[usable], bounds.upper[usable], strict=True):
        interval = COMMON.epsilon(row[np.newaxis], float(delta))
        # delta(epsilon) <= the upper delta, so the exact epsilon there is at most this one.
        assert interval.lower[0] <= epsilon * (1 + 1e-9)


@examples(15)
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
