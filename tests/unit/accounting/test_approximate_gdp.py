from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from accounting import Gaussian, gdp_to_delta
from accounting.costs.mechanisms import PoissonGaussian
from accounting.reports.accountant import ReportAccountant
from accounting.reports.grid import NormGrid
from accounting.research.approximate_gdp import approximate_mu
from tests.unit.accounting.refusals import refused

GRID = NormGrid(1.0, 4)  # levels 0.25, 0.5, 0.75 and 1


def steps(*counts: int) -> np.ndarray:
    return np.array([counts], dtype=np.int64)


def accountant(noise_stddev: float, sampling_rate: float) -> ReportAccountant:
    return ReportAccountant(PoissonGaussian(noise_stddev, sampling_rate), GRID)


def test_unsampled_steps_have_the_mu_of_their_gdp_cost() -> None:
    expected = math.sqrt((3 * 0.25**2 + 5 * 0.75**2 + 7) / 4.0**2)
    for mechanism in (Gaussian(4.0), PoissonGaussian(4.0, 1.0)):
        mu = approximate_mu(ReportAccountant(mechanism, GRID), steps(3, 0, 5, 7))
        assert mu == pytest.approx([expected], rel=1e-6)


def test_many_sampled_steps_approach_the_central_limit() -> None:
    """Bu et al. 2020: mu tends to q sqrt(T (e^(c^2 / s^2) - 1))."""
    mu = approximate_mu(accountant(1.0, 1e-3), steps(0, 10**6, 0, 10**6))
    limit = 1e-3 * math.sqrt(1e6 * (math.expm1(0.25) + math.expm1(1.0)))
    assert mu == pytest.approx([limit], rel=1e-2)
    assert mu[0] >= limit


def test_gdp_curve_is_at_or_above_the_estimate_at_every_point_and_at_one_of_them_equal() -> None:
    report = accountant(1.0, 0.01)
    counts, deltas = steps(0, 0, 500, 2000), [1e-2, 1e-4, 1e-6]
    mu = float(approximate_mu(report, counts, deltas)[0])
    ratios = [
        gdp_to_delta(mu, float(report.epsilon(counts, d, "saddlepoint").bounds.estimate[0])) / d
        for d in deltas
    ]
    ratios.append(
        gdp_to_delta(mu, 0.0) / report.delta(counts, 0.0, "saddlepoint").bounds.estimate[0]
    )
    assert min(ratios) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.slow
def test_mu_rises_with_every_further_step_and_users_do_not_touch_each_other() -> None:
    report = accountant(1.0, 0.02)
    counts = np.cumsum(np.full((6, 4), 100, dtype=np.int64), axis=0)
    together = approximate_mu(report, counts)
    assert np.all(np.diff(together) > 0.0)
    alone = [float(approximate_mu(report, row)) for row in counts]
    assert together == pytest.approx(alone, rel=1e-9)


def test_a_user_without_steps_or_never_sampled_has_mu_0() -> None:
    assert approximate_mu(accountant(1.0, 0.01), steps(0, 0, 0, 0)).tolist() == [0.0]
    assert approximate_mu(accountant(1.0, 0.0), steps(1, 2, 3, 4)).tolist() == [0.0]


@pytest.mark.parametrize(
    "deltas",
    [[], [0.0], [1.0], [math.nan], [1e-5, -1.0], 1e-5, None, np.float64(1e-5), np.array(1e-5), "1"],
)
def test_other_deltas_are_refused_by_name(deltas: Any) -> None:
    with refused("deltas"):
        approximate_mu(accountant(1.0, 0.01), steps(1, 0, 0, 0), deltas)


def test_other_accountants_are_refused_by_name() -> None:
    other: Any = PoissonGaussian(1.0, 0.01)
    with refused("accountant"):
        approximate_mu(other, steps(1, 0, 0, 0))


def test_mu_of_a_history_is_that_of_its_loss_distribution() -> None:
    report, counts = accountant(2.0, 0.01), steps(0, 0, 0, 1000)
    by_pld = approximate_mu(report, counts, [1e-10], "pld")
    assert approximate_mu(report, counts, [1e-10]) == pytest.approx(by_pld, rel=1e-3)
