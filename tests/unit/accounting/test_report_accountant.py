"""Reports by every method: what they agree on, and the tightest of them."""

from __future__ import annotations

import math
from contextlib import suppress
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import (
    Gaussian,
    InvalidInput,
    Laplace,
    Mechanism,
    PoissonGaussian,
    PureDP,
    gdp_to_delta,
    gdp_to_epsilon,
    noise_for_epsilon,
    renyi_cost,
    renyi_to_delta,
    renyi_to_epsilon,
    zcdp_to_epsilon,
)
from accounting.exact.argument_checks import IntArray
from accounting.reports import METHODS, Method, NormGrid, ReportAccountant
from accounting.reports.pld.pld_report import PldReport
from accounting.reports.renyi_report import DEFAULT_ORDERS, RenyiReport
from accounting.reports.saddlepoint import SaddlePointReport
from tests.examples import examples, grid
from tests.unit.accounting.exact_deltas import gaussian_delta

GRID = NormGrid(1.0, 10)
MECHANISMS = [Gaussian(2.0), PoissonGaussian(1.0, 0.05)]
COUNTS = np.random.default_rng(0).integers(0, 20, (7, 10))
COUNTS[3] = 0


def accountant(mechanism: Mechanism) -> ReportAccountant:
    return ReportAccountant(mechanism, GRID)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_values_are_the_upper_bounds_and_the_interval_is_beside_them(
    mechanism: Mechanism, method: Method
) -> None:
    reports = accountant(mechanism)
    epsilon = reports.epsilon(COUNTS, 1e-5, method=method)
    delta = reports.delta(COUNTS, 0.5, method=method)
    for values in (epsilon, delta):
        lower, estimate, upper = values.bounds
        assert values.shape == lower.shape == estimate.shape == (7,)
        assert values.dtype == np.float64
        np.testing.assert_array_equal(values, upper)
        assert (lower >= 0.0).all()
        assert (lower <= estimate).all()
        assert (estimate <= upper).all()
        assert values[3] == 0.0 < np.delete(values, 3).min()
    assert (delta <= 1.0).all()


@pytest.mark.parametrize("method", METHODS)
def test_one_user_many_users_and_none_have_the_same_report_in_any_layout(method: Method) -> None:
    reports = accountant(MECHANISMS[1])
    together = reports.epsilon(COUNTS, 1e-5, method)
    alone = reports.epsilon(COUNTS[0], 1e-5, method)
    assert alone.shape == alone.bounds.lower.shape == ()
    assert float(alone) == float(together[0])
    assert f"{alone:.3f}" == f"{together[0]:.3f}"
    for counts in (COUNTS.astype(np.uint8), np.asfortranarray(COUNTS), COUNTS.tolist()):
        np.testing.assert_array_equal(reports.epsilon(counts, 1e-5, method), together)
    for nobody in (reports.epsilon(COUNTS[:0], 1e-5, method), reports.delta(COUNTS[:0], 1, method)):
        assert nobody.shape == nobody.bounds.estimate.shape == (0,)


def test_orders_given_are_the_orders_used() -> None:
    both = ReportAccountant(Gaussian(2.0), GRID).epsilon(COUNTS, 1e-5, "renyi")
    one = ReportAccountant(Gaussian(2.0), GRID, orders=[40.0]).epsilon(COUNTS, 1e-5, "renyi")
    assert (np.delete(one, 3) > np.delete(both, 3)).all()


def test_what_is_computed_from_a_report_is_a_plain_array() -> None:
    values = accountant(MECHANISMS[0]).epsilon(COUNTS, 1e-5, "renyi")
    for derived in (values * 2.0, np.sqrt(values), values > 1.0, values + values, np.copy(values)):
        assert type(derived) is np.ndarray
    for number in (values.max(), values[2], values[()].sum()):
        assert type(number) is np.float64
    assert not values.flags.writeable
    assert not any(part.flags.writeable for part in values.bounds)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Laplace(2.0), PureDP()])
def test_pure_mechanisms_are_reported_by_all_methods(mechanism: Mechanism) -> None:
    reports = accountant(mechanism)
    by_renyi = reports.epsilon(COUNTS, 1e-5, "renyi")
    assert (np.delete(by_renyi, 3) > 0.0).all()
    for method in METHODS:
        most = 1.1 if method == "saddlepoint" else 1.0 + 1e-5
        assert (reports.epsilon(COUNTS, 1e-5, method) <= by_renyi * most).all()


@pytest.mark.slow
def test_several_mechanisms_have_their_histograms_side_by_side() -> None:
    sampled, laplace = PoissonGaussian(1.0, 0.05), Laplace(20.0)
    both = ReportAccountant([sampled, laplace], [GRID, NormGrid(2.0, 3)])
    first = np.concatenate([COUNTS[:2], np.zeros((2, 3), np.int64)], axis=1)
    second = np.concatenate([np.zeros((2, 10), np.int64), [[3, 1, 2], [0, 0, 9]]], axis=1)
    for method in METHODS:
        of_first = both.epsilon(first, 1e-5, method)
        of_second = both.epsilon(second, 1e-5, method)
        np.testing.assert_allclose(
            of_first, accountant(sampled).epsilon(COUNTS[:2], 1e-5, method), rtol=2e-3
        )
        alone = ReportAccountant(laplace, NormGrid(2.0, 3))
        np.testing.assert_allclose(
            of_second, alone.epsilon([[3, 1, 2], [0, 0, 9]], 1e-5, method), rtol=2e-3
        )
        together = both.epsilon(first + second, 1e-5, method)
        assert (together > np.maximum(of_first, of_second)).all()
        assert (together <= (of_first + of_second) * 1.1).all()
    one_grid = ReportAccountant([sampled, laplace], GRID)
    assert one_grid.epsilon(np.ones(20, np.int64), 1e-5).shape == ()


PUBLISHED: dict[Method, tuple[float, float]] = {
    **dict.fromkeys(("tightest", "pld", "saddlepoint"), (1.828, 7.751)),
    "renyi": (2.10, 8.83),
}


@pytest.mark.parametrize("method", PUBLISHED)
def test_epsilons_of_dp_sgd_are_the_published_ones(method: Method) -> None:
    for noise, steps, published in zip((1.0, 0.65), (1000, 2000), PUBLISHED[method], strict=True):
        report = ReportAccountant(PoissonGaussian(3.0 * noise, 0.01), NormGrid(3.0, 1))
        lower, estimate, upper = report.epsilon([steps], 1e-5, method).bounds
        if method == "saddlepoint":
            assert lower <= published <= upper
            assert estimate == pytest.approx(published, rel=0.02)
        else:
            assert lower <= estimate <= upper == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize("kind", [PldReport, SaddlePointReport])
@pytest.mark.parametrize("step", [Gaussian(4.0), PoissonGaussian(4.0, 1.0)])
def test_unsampled_steps_agree_with_gaussian_dp_far_into_the_tail(kind: type, step) -> None:
    norms = np.array([0.1, 0.25, 1.0])
    counts = np.array([[400, 30, 2], [0, 0, 1], [10**6, 0, 0], [0, 0, 50]])
    mu, report = np.sqrt(counts @ norms**2) / 4.0, kind(step, norms)
    for delta in (0.3, 1e-5, 1e-60, 1e-250):
        bounds, exact = report.epsilon(counts, delta), gdp_to_epsilon(mu, delta)
        assert (bounds.lower <= exact).all()
        assert (exact <= bounds.upper * (1.0 + 1e-12)).all()
        np.testing.assert_allclose(bounds.upper, bounds.lower, rtol=5e-3, atol=1e-6)
    for epsilon in (0.0, 0.5, 4.0, 20.0):
        bounds, exact = report.delta(counts, epsilon), gdp_to_delta(mu, epsilon)
        assert (bounds.lower <= exact * (1.0 + 1e-11)).all()
        assert (exact <= bounds.upper * (1.0 + 1e-11) + 1e-322).all()


@pytest.mark.parametrize("method", METHODS)
def test_no_steps_and_a_rate_of_zero_lose_nothing(method: Method) -> None:
    for rate, counts in ((0.0, [5] * 10), (0.1, [0] * 10)):
        report = accountant(PoissonGaussian(1.0, rate))
        for found in (report.epsilon(counts, 1e-300, method), report.delta(counts, 0.0, method)):
            assert [*found.bounds] == [0.0] * 3


EXTREMES = [  # norm to noise, rate
    *((1e-200, 1.0), (1e-9, 1.0 - 1e-9), (1e-3, 1e-300), (100.0, 1e-6), (1e3, 0.5), (1e200, 0.5)),
    *((5.4, 1.0 - 2.0**-52), (1e-6, 0.999), (127.0, 0.5), (1e-300, 5e-324), (134.0, 0.0476)),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
@pytest.mark.parametrize("method", ["tightest", "saddlepoint"])
@pytest.mark.parametrize(("history", "count"), grid(EXTREMES, [1, 1000, 2**46]))
def test_extreme_histories_give_ordered_bounds(
    history: tuple[float, float], count: int, method: Method
) -> None:
    """The saddle point may refuse: then its interval would say nothing."""
    ratio, rate = history
    report = ReportAccountant(PoissonGaussian(1.0, rate), NormGrid(ratio, 2))
    asked = [(report.delta, epsilon) for epsilon in (0.0, 1.0, 50.0, 1e6, 1e300)]
    asked += [(report.epsilon, delta) for delta in (1.0 - 2.0**-53, 0.5, 1e-5, 1e-300)]
    for ask, level in asked:
        with suppress(InvalidInput if method == "saddlepoint" else ()):
            lower, estimate, upper = ask([[0, count], [count, 0]], level, method).bounds
            assert (lower >= 0.0).all()
            assert (lower <= estimate).all()
            assert (estimate <= upper).all()
            assert ask == report.epsilon or (upper <= 1.0).all()


@pytest.mark.parametrize("method", METHODS)
def test_delta_at_the_largest_epsilons_is_next_to_nothing(method: Method) -> None:
    for epsilon in (1e200, 1e308):
        found = accountant(MECHANISMS[1]).delta(COUNTS[0], epsilon, method).bounds
        assert found.lower == 0.0
        assert found.upper < 1e-80


def test_extreme_gaussian_histories_have_valid_lower_bounds() -> None:
    # delta is 0 to hundreds of digits at the large epsilon, and below the ratio at epsilon 0.
    for ratio, epsilon in ((1e13, 1e30), (1e-200, 0.0)):
        report = ReportAccountant(Gaussian(1.0 / ratio), NormGrid(1.0, 1))
        assert report.delta([1], epsilon).bounds.lower == 0.0
    bounds = ReportAccountant(Gaussian(1e-120), NormGrid(1.0, 1)).epsilon([1], 1e-5).bounds
    assert bounds.lower < bounds.upper == math.inf


@pytest.mark.parametrize("rate", [5e-324, 1e-320])
def test_noise_is_found_for_rates_at_the_end_of_float64(rate: float) -> None:
    assert 0.0 < noise_for_epsilon(2.0, 1e-5, 5, rate) <= 0.01


FOUR_LEVELS = NormGrid(1.0, 4)


def one_level(mechanism: Mechanism, levels: int = 1) -> ReportAccountant:
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
    delta = one_level(PoissonGaussian(noise, rate)).delta([steps], epsilon)
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
    report = ReportAccountant(PoissonGaussian(noise, rate), FOUR_LEVELS)
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
    report = ReportAccountant(Gaussian(noise), FOUR_LEVELS)
    bounds = report.epsilon(history, delta).bounds
    with mpmath.workdps(400):
        squares = sum(
            n * mpf(c) ** 2 for n, c in zip(history, FOUR_LEVELS.norms.tolist(), strict=True)
        )
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
        [float(one_level(step).delta([1], epsilon)) for epsilon in epsilons]
        for step in (PoissonGaussian(0.1, 1.0 - 1e-9), Gaussian(0.1))
    )
    assert all(low <= high * (1 + 1e-12) for low, high in zip(sampled, whole, strict=True))


def test_steps_of_pure_dp_are_not_left_out_of_the_bound_without_sampling() -> None:
    report = ReportAccountant([PoissonGaussian(0.5, 0.5), Laplace(0.01)], NormGrid(1.0, 1))
    assert report.epsilon([1, 1], 1e-5) > report.epsilon([1, 0], 1e-5) + 80.0
    assert report.delta([1, 1], 50.0) > 0.5


RENYI_GRID = NormGrid(1.0, 20)
ORDERS = [1.25, 2.0, 3.5, 8.0, 64.0, 1000.0]
RENYI_MECHANISMS: list[Mechanism] = [
    Gaussian(0.7),
    PoissonGaussian(0.7, 0.01),
    PoissonGaussian(0.7, 1.0),
    Laplace(2.0),
    PureDP(),
]
histories = st.lists(st.integers(0, 300), min_size=20, max_size=20)


def random_counts(users: int, largest: int, seed: int = 0) -> IntArray:
    return np.random.default_rng(seed).integers(0, largest, (users, RENYI_GRID.levels))


# ----------------------------------------------------------------------------- published numbers


# -------------------------------------------------------------------------- upper bound, accuracy


@pytest.mark.parametrize("mechanism", RENYI_MECHANISMS, ids=str)
def test_divergences_are_the_sums_of_the_costs_of_all_steps_rounded_up(
    mechanism: Mechanism,
) -> None:
    counts = np.vstack([random_counts(3, 1000), random_counts(3, 2**46, seed=1)])
    got = RenyiReport(mechanism, RENYI_GRID.norms, ORDERS).divergences(counts)
    table = renyi_cost(mechanism, RENYI_GRID.norms, ORDERS)
    for user, row in enumerate(counts.tolist()):
        for column in range(len(ORDERS)):
            exact = sum(
                Fraction(cost) * count
                for cost, count in zip(table[:, column].tolist(), row, strict=True)
            )
            assert exact <= Fraction(float(got[user, column])) <= exact * Fraction(1 + 1e-13)


@given(histories, st.floats(0.3, 50.0), st.floats(-12.0, -1.0))
def test_epsilon_of_gaussian_steps_is_above_the_exact_one_and_near_the_best_order(
    history: list[int], stddev: float, log_delta: float
) -> None:
    counts, delta = np.array([history]), 10.0**log_delta
    report = RenyiReport(Gaussian(stddev), RENYI_GRID.norms)
    epsilon = float(report.epsilon(counts, delta).upper[0])
    squares = sum(n * mpf(c) ** 2 for n, c in zip(history, RENYI_GRID.norms.tolist(), strict=True))
    if not any(history):
        assert epsilon == 0.0
        return
    with mpmath.workdps(60):
        mu = mpmath.sqrt(squares) / mpf(stddev)
        assert gaussian_delta(mu, epsilon) <= delta
        assert gaussian_delta(mu, 1.0) <= report.delta(counts, 1.0).upper[0]
    assert epsilon <= float(zcdp_to_epsilon(float(mu * mu / 2), delta)) * 1.002 + 1e-12


@pytest.mark.parametrize("mechanism", RENYI_MECHANISMS, ids=str)
def test_n_steps_at_once_equal_n_single_steps(mechanism: Mechanism) -> None:
    report = RenyiReport(mechanism, RENYI_GRID.norms)
    counts = random_counts(1, 30)
    single = np.repeat(renyi_cost(mechanism, RENYI_GRID.norms, report.orders), counts[0], axis=0)
    total = single.sum(axis=0)
    upper = report.epsilon(counts, 1e-6).upper
    assert upper == pytest.approx([float(renyi_to_epsilon(report.orders, total, 1e-6))], rel=1e-12)
    upper = report.delta(counts, 50.0).upper
    assert upper == pytest.approx([float(renyi_to_delta(report.orders, total, 50.0))], rel=1e-9)


@given(st.floats(-2.0, 4.8), st.sampled_from([1e-12, 1e-5, 0.01]))
def test_default_orders_miss_the_best_order_by_less_than_two_thousandths(
    log_t: float, delta: float
) -> None:
    # The rho whose best order is 1 + t, up to the constants of the conversion.
    rho = -math.log(delta) / 100.0**log_t
    epsilon = float(renyi_to_epsilon(DEFAULT_ORDERS, rho * DEFAULT_ORDERS, delta))
    best = float(zcdp_to_epsilon(rho, delta))
    assert best * (1 - 1e-12) <= epsilon <= best * 1.002 + 1e-5 * math.sqrt(rho)


# ------------------------------------------------------------------------------------- properties


def test_an_infinite_divergence_spoils_its_order_and_no_user_who_does_not_have_it() -> None:
    # At order 1000 the second level costs more than the largest float64.
    step = PoissonGaussian(1.0, 1.0 - 2.0**-50)
    report = RenyiReport(step, np.array([1.0, 1e153]), [2.0, 1000.0])
    table = renyi_cost(step, [1.0, 1e153], [2.0, 1000.0])
    assert np.isinf(table).tolist() == [[False, False], [False, True]]
    divergences = report.divergences(np.array([[1, 0], [1, 1]]))
    assert divergences[0] == pytest.approx([1.0, 500.0])
    assert divergences[1, 1] == math.inf
    assert report.epsilon(np.array([[1, 0], [1, 1]]), 1e-5).upper[0] < 20.0
    assert report.delta(np.array([[1, 1]]), 1.0).upper.tolist() == [1.0]
