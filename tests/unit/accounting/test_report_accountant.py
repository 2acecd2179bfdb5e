from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accounting.costs.mechanisms import Gaussian, Laplace, Mechanism, PoissonGaussian, PureDP
from accounting.reports import METHODS, Method, NormGrid, ReportAccountant
from accounting.reports.renyi_report import RenyiReport

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
def test_one_user_is_a_number_and_many_are_that_number_each(method: Method) -> None:
    reports = accountant(MECHANISMS[1])
    together = reports.epsilon(COUNTS, 1e-5, method)
    alone = reports.epsilon(COUNTS[0], 1e-5, method)
    assert alone.shape == alone.bounds.lower.shape == ()
    assert float(alone) == float(together[0])
    assert f"{alone:.3f}" == f"{together[0]:.3f}"


@pytest.mark.parametrize("method", METHODS)
def test_no_users_are_an_empty_report(method: Method) -> None:
    reports = accountant(MECHANISMS[1])
    for values in (
        reports.epsilon(COUNTS[:0], 1e-5, method),
        reports.delta(COUNTS[:0], 1.0, method),
    ):
        assert values.shape == values.bounds.estimate.shape == (0,)


@pytest.mark.parametrize("method", METHODS)
def test_any_integer_type_and_memory_layout_give_the_same_report(method: Method) -> None:
    reports = accountant(MECHANISMS[1])
    expected = reports.epsilon(COUNTS, 1e-5, method)
    for counts in (COUNTS.astype(np.uint8), np.asfortranarray(COUNTS), COUNTS.tolist()):
        np.testing.assert_array_equal(reports.epsilon(counts, 1e-5, method), expected)


def test_a_method_builds_its_tables_once_and_only_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = []
    original = RenyiReport.__init__

    def counting(self: RenyiReport, *arguments: Any) -> None:
        built.append(1)
        original(self, *arguments)

    monkeypatch.setattr(RenyiReport, "__init__", counting)
    reports = accountant(MECHANISMS[0])
    assert built == []
    reports.epsilon(COUNTS, 1e-5, "renyi")
    reports.delta(COUNTS, 1.0, "renyi")
    assert built == [1]


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
