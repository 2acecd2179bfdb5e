from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from accounting import Gaussian, PoissonGaussian, gdp_to_delta
from accounting.costs.mechanisms import DIRECTIONS
from accounting.reports.pld.pld_report import PldReport
from accounting.reports.saddlepoint.sampled_loss import SampledLoss
from accounting.research import EqualSteps, saddle_point_delta


def test_gaussian_steps_have_the_exact_delta_2() -> None:
    found = saddle_point_delta([EqualSteps(Gaussian(8.0), 1.0, 64)], 1.0)
    assert found.delta_2 == pytest.approx(float(gdp_to_delta(1.0, 1.0)), rel=1e-9)


def test_both_formulas_are_near_the_loss_distributions_after_many_steps() -> None:
    history = [EqualSteps(PoissonGaussian(1.0, 0.01), norm, 5000) for norm in (0.5, 1.0)]
    report = PldReport(PoissonGaussian(1.0, 0.01), np.array([0.5, 1.0]))
    exact = report.delta(np.array([[5000, 5000]]), 5.0).estimate[0]
    found = saddle_point_delta(history, 5.0)
    assert found.delta_1 == pytest.approx(exact, rel=0.02)
    assert found.delta_2 == pytest.approx(exact, rel=0.02)


def test_delta_is_0_beyond_the_largest_loss_of_an_added_user() -> None:
    report = saddle_point_delta([EqualSteps(PoissonGaussian(1e3, 0.5), 1.0, 1)], 50.0)
    assert report.delta_2 < 1e-300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "rate", "count", "epsilon"),
    [(2.0, 0.01, 1000, 1.0), (1.0, 0.01, 3000, 4.0), (1.05, 2.79e-4, 431104, 1.676)],
)
def test_delta_2_is_the_expectation_that_defines_it(
    noise: float, rate: float, count: int, epsilon: float
) -> None:
    """The saddle point by bisection, and the expectation by quadrature in many digits."""
    expected = [mpf(0)]
    for direction in DIRECTIONS:
        loss = SampledLoss(1.0 / noise, rate, direction)

        def sums(t: float, of: SampledLoss = loss) -> tuple[float, float, float]:
            cumulant, mean, variance, _ = of.cumulants(np.array([t]))
            return count * float(cumulant[0]), count * float(mean[0]), count * float(variance[0])

        if epsilon >= count * loss.largest:
            continue
        low, high = 1e-6, loss.tilts[1]
        for _ in range(80):
            t = 0.5 * (low + high)
            below = sums(t)[1] < epsilon + 1 / t + 1 / (1 + t)
            low, high = (t, high) if below else (low, t)
        cumulant, mean, variance = sums(t)

        def integrand(z: mpf, t: float = t, m: float = mean, v: float = variance) -> mpf:
            tilted = mpmath.exp(t * (epsilon - z)) * (1 - mpmath.exp(epsilon - z))
            return tilted * mpmath.npdf(z, m, mpmath.sqrt(v))

        spread = math.sqrt(variance)
        ends = [epsilon + k * spread for k in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0)]
        log_scale = cumulant - epsilon * t
        expected.append(mpmath.exp(log_scale) * mpmath.quad(integrand, ends))
    found = saddle_point_delta([EqualSteps(PoissonGaussian(noise, rate), 1.0, count)], epsilon)
    assert found.delta_2 == pytest.approx(float(max(expected)), rel=1e-6)
