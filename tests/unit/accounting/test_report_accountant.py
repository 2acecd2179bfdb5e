from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest

from accounting import InvalidInput, gdp_to_delta, gdp_to_epsilon, noise_for_epsilon
from accounting.costs.mechanisms import Gaussian, Laplace, Mechanism, PoissonGaussian, PureDP
from accounting.reports import METHODS, Method, NormGrid, ReportAccountant
from accounting.reports.pld.pld_report import PldReport
from accounting.reports.saddlepoint import SaddlePointReport
from tests.examples import grid

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
