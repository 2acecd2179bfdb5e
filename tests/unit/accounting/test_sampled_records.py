"""Steps in which each record of a user is drawn by a coin of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import binom
from scipy.stats import norm as normal

from accounting import (
    Gaussian,
    InvalidInput,
    NormGrid,
    PoissonGaussian,
    PoissonRecords,
    ReportAccountant,
    gdp_cost,
    renyi_cost,
    zcdp_cost,
)


def test_no_rho_no_mu_and_no_order_describes_the_step() -> None:
    for cost in (zcdp_cost, gdp_cost, lambda *step: renyi_cost(*step, [2.0])):
        with pytest.raises(InvalidInput):
            cost(PoissonRecords(1.0, 0.1, 2), [1.0])


def test_one_record_all_records_and_none_drawn_are_simpler_steps() -> None:
    for records, simpler in (
        (PoissonRecords(4.0, 0.1, 1), PoissonGaussian(4.0, 0.1)),
        (PoissonRecords(4.0, 1.0, 8), Gaussian(0.5)),
        (PoissonRecords(4.0, 0.0, 8), PoissonGaussian(4.0, 0.0)),
    ):
        both = (renyi_cost(step, [0.0, 1.0, 2.0], [1.5, 8.0]) for step in (records, simpler))
        np.testing.assert_array_equal(*both)


@pytest.mark.parametrize("records", [0, -1, 1001, 2.0, True])
def test_numbers_of_records_out_of_range_are_refused(records: int) -> None:
    with pytest.raises(InvalidInput):
        PoissonRecords(1.0, 0.1, records)


STEPS = [(1.0, 0.01, 3), (4.0, 0.1, 10), (10.0, 0.001, 100), (2.0, 0.3, 2), (20.0, 0.002, 1000)]


@pytest.mark.slow
@pytest.mark.parametrize(("s", "q", "k"), STEPS)
def test_delta_of_one_step_lies_between_the_bounds_of_its_loss_distribution(
    s: float, q: float, k: int
) -> None:
    report = ReportAccountant(PoissonRecords(s, q, k), NormGrid(1.0, 1))
    weights, y = binom.pmf(np.arange(k + 1), k, q), np.linspace(-12.0, 12.0 + k / s, 200_001)
    without, width = normal.pdf(y), y[1] - y[0]
    likely = np.flatnonzero(weights > 1e-25)
    with_user = sum(weights[j] * normal.pdf(y - j / s) for j in likely)
    for epsilon in (0.05, 0.5):
        removed = np.maximum(with_user - math.exp(epsilon) * without, 0.0).sum() * width
        added = np.maximum(without - math.exp(epsilon) * with_user, 0.0).sum() * width
        bounds = report.delta([1], epsilon, "pld").bounds
        exact, slack = max(removed, added), 1e-12
        assert bounds.lower - slack <= exact * (1 + 1e-6) <= (bounds.upper + slack) * (1 + 2e-6)
        assert bounds.upper <= exact * 1.02 + slack


@pytest.mark.slow
@pytest.mark.parametrize(
    ("s", "q", "k", "steps"), [(1.0, 0.01, 3, 1000), (4.0, 0.1, 10, 50), (2.0, 0.3, 2, 30)]
)
def test_compositions_agree_with_the_mixtures_of_dp_accounting(
    s: float, q: float, k: int, steps: int
) -> None:
    drawn = np.arange(k + 1.0)
    peer = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        s, drawn, binom.pmf(drawn, k, q), value_discretization_interval=1e-3
    ).self_compose(steps)
    theirs = peer.get_epsilon_for_delta(1e-5)
    bounds = (
        ReportAccountant(PoissonRecords(s, q, k), NormGrid(1.0, 1))
        .epsilon([steps], 1e-5, "pld")
        .bounds
    )
    assert bounds.lower <= theirs * (1 + 1e-4)
    assert theirs <= bounds.upper * (1 + 1e-3)
    assert bounds.upper <= bounds.lower * 1.001


@pytest.mark.slow
def test_reports_combine_records_with_other_steps() -> None:
    mechanisms = [PoissonRecords(4.0, 0.05, 6), PoissonGaussian(2.0, 0.1)]
    report = ReportAccountant(mechanisms, NormGrid(1.0, 1), [2.0, 4.0, 8.0, 16.0])
    both, first = report.epsilon([[100, 100], [100, 0]], 1e-6).bounds.upper
    assert first < both < math.inf
    by_orders = report.epsilon([[100, 100], [0, 100]], 1e-6, "renyi").tolist()
    assert by_orders[0] == math.inf > by_orders[1]
    with pytest.raises(InvalidInput):
        report.epsilon([100, 0], 1e-6, "saddlepoint")


@pytest.mark.slow
def test_a_user_who_is_hardly_ever_drawn_loses_the_chance_of_being_drawn() -> None:
    report = ReportAccountant(PoissonRecords(0.01, 1e-7, 20), NormGrid(1.0, 1))
    assert report.delta([3], 5.0) <= 3 * 20 * 1e-7 * (1 + 1e-9)
