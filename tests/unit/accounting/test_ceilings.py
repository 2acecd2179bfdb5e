"""Delta of the add direction, where it is bounded without a lattice."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from accounting.costs.mechanisms import PoissonGaussian
from accounting.reports.pld.ceilings import AddedCeilings
from accounting.reports.pld.losses import steps_of
from accounting.reports.pld.pld_report import PldReport
from tests.examples import examples
from tests.unit.accounting.exact_deltas import sampled_delta


@pytest.mark.parametrize(
    ("noise", "q", "steps", "epsilon"),
    [(0.3, 1e-5, 10**5, 1.0), (0.5, 1e-4, 10**3, 0.1), (1.0, 1e-3, 10**3, 1.0)],
)
def test_delta_is_tight_where_adding_a_user_can_lose_hardly_as_much(
    noise: float, q: float, steps: int, epsilon: float
) -> None:
    # Just below the largest loss of that direction, where its delta all but vanishes.
    assert epsilon < -steps * math.log1p(-q) < epsilon * 1.01
    bounds = PldReport(PoissonGaussian(noise, q), np.ones(1)).delta(np.array([[steps]]), epsilon)
    assert 0.0 < bounds.upper[0] <= bounds.lower[0] * 1.05


@examples(60)
@given(st.floats(-8.0, -0.01), st.floats(-2.5, 1.5), st.floats(0.0, 0.999))
def test_delta_of_an_added_user_is_below_its_ceiling(
    log_rate: float, log_ratio: float, part: float
) -> None:
    q, m = 10.0**log_rate, 10.0**log_ratio
    epsilon = -math.log1p(-q) * part
    ceilings = AddedCeilings(steps_of(PoissonGaussian(1.0, q), np.array([m])))
    with mpmath.workdps(60):
        exact = sampled_delta(m, q, epsilon, added=True)
    assert exact <= mpf(float(ceilings.delta(np.ones((1, 1)), np.array([epsilon]))[0]))


def test_delta_of_an_added_user_is_0_from_the_largest_loss_on() -> None:
    largest = -3 * math.log1p(-0.1)
    ceilings = AddedCeilings(steps_of(PoissonGaussian(1.0, 0.1), np.ones(1)))
    epsilon = np.array([largest * (1.0 - 1e-12), largest * (1.0 + 1e-12)])
    found = ceilings.delta(np.full((2, 1), 3.0), epsilon)
    assert 0.0 == found[1] < found[0] < 1e-100
