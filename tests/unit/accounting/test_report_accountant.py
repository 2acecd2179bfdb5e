from __future__ import annotations

import math

import numpy as np
import pytest

from accounting import noise_for_epsilon
from accounting.costs.mechanisms import Gaussian, Laplace, Mechanism, PoissonGaussian, PureDP
from accounting.reports import METHODS, Method, NormGrid, ReportAccountant

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


# ------------------------------------------------------------------------------ the array returned


def test_what_is_computed_from_a_report_is_a_plain_array() -> None:
    values = accountant(MECHANISMS[0]).epsilon(COUNTS, 1e-5, "renyi")
    for derived in (values * 2.0, np.sqrt(values), values > 1.0, values + values, np.copy(values)):
        assert type(derived) is np.ndarray
    for number in (values.max(), values[2], values[()].sum()):
        assert type(number) is np.float64
    assert not values.flags.writeable
    assert not any(part.flags.writeable for part in values.bounds)


# -------------------------------------------------------------------- mechanisms and wrong input


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


# -------------------------------------------------------------------------- extremes, no warnings

NO_WARNING = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")


@NO_WARNING
@pytest.mark.parametrize("rate", [5e-324, 1e-310, 1e-290])
@pytest.mark.parametrize("delta", [1e-5, 1e-300])
def test_rates_at_the_end_of_float64_are_reported(rate: float, delta: float) -> None:
    mechanism = PoissonGaussian(1.0, rate)
    assert mechanism.sampling_rate == max(rate, 1e-290)
    report = ReportAccountant(mechanism, NormGrid(1.0, 1))
    assert 0.0 <= report.epsilon([2**46], delta) < math.inf


@NO_WARNING
@pytest.mark.parametrize("rate", [5e-324, 1e-320])
def test_noise_is_found_for_rates_at_the_end_of_float64(rate: float) -> None:
    assert 0.0 < noise_for_epsilon(2.0, 1e-5, 5, rate) <= 0.01


@NO_WARNING
@pytest.mark.parametrize("method", METHODS)
def test_delta_at_the_largest_epsilons_is_next_to_nothing(method: Method) -> None:
    accountant = ReportAccountant(PoissonGaussian(1.0, 0.01), NormGrid(1.0, 2))
    for epsilon in (1e200, 1e308):
        found = accountant.delta([3, 4], epsilon, method).bounds
        assert found.lower == 0.0
        assert found.upper < 1e-80


@NO_WARNING
# Loss distributions of large norms have long grids; the saddle point has no bound.
@pytest.mark.slow
@pytest.mark.parametrize("method", ["renyi", "pld", "tightest"])
def test_an_epsilon_is_found_where_loss_distributions_know_none(method: Method) -> None:
    accountant = ReportAccountant([PoissonGaussian(1, 0.0476)], [NormGrid(134.0, 1)])
    for delta in (0.1, 0.3, 0.9):
        found = accountant.epsilon([8], delta, method).bounds
        assert found.lower <= found.estimate <= found.upper
