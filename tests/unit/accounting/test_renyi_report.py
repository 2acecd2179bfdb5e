from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import renyi_cost, renyi_to_delta, renyi_to_epsilon, zcdp_to_epsilon
from accounting.costs.mechanisms import Gaussian, Laplace, Mechanism, PoissonGaussian, PureDP
from accounting.exact.argument_checks import IntArray
from accounting.reports import NormGrid
from accounting.reports.renyi_report import DEFAULT_ORDERS, RenyiReport
from tests.unit.accounting.exact_deltas import gaussian_delta

GRID = NormGrid(1.0, 20)
ORDERS = [1.25, 2.0, 3.5, 8.0, 64.0, 1000.0]
MECHANISMS: list[Mechanism] = [
    Gaussian(0.7),
    PoissonGaussian(0.7, 0.01),
    PoissonGaussian(0.7, 1.0),
    Laplace(2.0),
    PureDP(),
]
histories = st.lists(st.integers(0, 300), min_size=20, max_size=20)


def random_counts(users: int, largest: int, seed: int = 0) -> IntArray:
    return np.random.default_rng(seed).integers(0, largest, (users, GRID.levels))


# ----------------------------------------------------------------------------- published numbers


# -------------------------------------------------------------------------- upper bound, accuracy


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_divergences_are_the_sums_of_the_costs_of_all_steps_rounded_up(
    mechanism: Mechanism,
) -> None:
    counts = np.vstack([random_counts(3, 1000), random_counts(3, 2**46, seed=1)])
    got = RenyiReport(mechanism, GRID.norms, ORDERS).divergences(counts)
    table = renyi_cost(mechanism, GRID.norms, ORDERS)
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
    report = RenyiReport(Gaussian(stddev), GRID.norms)
    epsilon = float(report.epsilon(counts, delta).upper[0])
    squares = sum(n * mpf(c) ** 2 for n, c in zip(history, GRID.norms.tolist(), strict=True))
    if not any(history):
        assert epsilon == 0.0
        return
    with mpmath.workdps(60):
        mu = mpmath.sqrt(squares) / mpf(stddev)
        assert gaussian_delta(mu, epsilon) <= delta
        assert gaussian_delta(mu, 1.0) <= report.delta(counts, 1.0).upper[0]
    assert epsilon <= float(zcdp_to_epsilon(float(mu * mu / 2), delta)) * 1.002 + 1e-12


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_n_steps_at_once_equal_n_single_steps(mechanism: Mechanism) -> None:
    report = RenyiReport(mechanism, GRID.norms)
    counts = random_counts(1, 30)
    single = np.repeat(renyi_cost(mechanism, GRID.norms, report.orders), counts[0], axis=0)
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
