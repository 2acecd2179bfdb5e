from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from accounting import gdp_to_delta
from accounting.costs.mechanisms import DIRECTIONS, Direction
from accounting.reports.saddlepoint.sampled_loss import SampledLoss
from accounting.reports.saddlepoint.tilted_sums import log_delta_2


def delta_2(t: float, *sums: float) -> float:
    """Return delta_2 at a tilt, for the sums K, K', K'' and epsilon."""
    return math.exp(float(log_delta_2(*(np.array([x]) for x in (t, *sums)))[0]))


def test_gaussian_steps_have_the_exact_delta_at_any_tilt() -> None:
    for t in (0.5, 2.0):  # one step of 1-GDP
        found = delta_2(t, 0.5 * t * (t + 1.0), t + 0.5, 1.0, 1.0)
        assert found == pytest.approx(float(gdp_to_delta(1.0, 1.0)), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("noise", "rate", "count", "epsilon"),
    [(2.0, 0.01, 1000, 1.0), (1.0, 0.01, 3000, 4.0), (1.05, 2.79e-4, 431104, 1.676)],
)
def test_delta_2_is_the_expectation_that_defines_it(
    direction: Direction, noise: float, rate: float, count: int, epsilon: float
) -> None:
    """The saddle point by bisection, and the expectation by quadrature in many digits."""
    loss = SampledLoss(1.0 / noise, rate, direction)

    def sums(t: float) -> tuple[float, float, float]:
        cumulant, mean, variance, _ = loss.cumulants(np.array([t]))
        return count * float(cumulant[0]), count * float(mean[0]), count * float(variance[0])

    low, high = 1e-6, loss.tilts[1]
    for _ in range(80):
        t = 0.5 * (low + high)
        below = sums(t)[1] < epsilon + 1 / t + 1 / (1 + t)
        low, high = (t, high) if below else (low, t)
    cumulant, mean, variance = sums(t)

    def integrand(z: mpf) -> mpf:
        tilted = mpmath.exp(t * (epsilon - z)) * (1 - mpmath.exp(epsilon - z))
        return tilted * mpmath.npdf(z, mean, mpmath.sqrt(variance))

    spread = math.sqrt(variance)
    ends = [epsilon + k * spread for k in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0)]
    expected = mpmath.exp(cumulant - epsilon * t) * mpmath.quad(integrand, ends)
    found = delta_2(t, cumulant, mean, variance, epsilon)
    assert found == pytest.approx(float(expected), rel=1e-6)
