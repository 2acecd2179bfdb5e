from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from accounting import InvalidInput
from accounting.costs.mechanisms import PoissonGaussian
from accounting.reports import SaddlePointReport
from accounting.reports.calibration import noise_for_epsilon
from accounting.reports.pld.pld_report import PldReport
from tests.examples import examples
from tests.unit.accounting.exact_deltas import gaussian_delta

DELTA = 1e-5


@examples(40)
@given(
    st.floats(0.0, 30.0),
    st.floats(-40.0, -0.1).map(math.exp),
    st.integers(1, 10**6),
    st.floats(1e-3, 1e3),
)
def test_noise_without_sampling_is_enough_and_hardly_more(
    epsilon: float, delta: float, steps: int, norm: float
) -> None:
    noise = noise_for_epsilon(epsilon, delta, steps, clip_norm=norm)
    with mpmath.workdps(60):
        mu = mpmath.sqrt(steps) * mpf(norm) / mpf(noise)
        assert gaussian_delta(mu, epsilon) <= delta
        assert gaussian_delta(mu * (1 + mpf(1e-6)), epsilon) > delta


@pytest.mark.filterwarnings("error")
def test_targets_at_the_ends_of_the_float_range_are_as_those_beside_them() -> None:
    least, small, large, most = (
        noise_for_epsilon(epsilon, 1e-5, 10, 0.5) for epsilon in (5e-324, 1e-200, 1e100, 1.7e308)
    )
    assert (least, large) == (small, most)


@pytest.mark.parametrize(
    ("epsilon", "delta", "steps", "norm", "argument"),
    [
        (0.0, 1e-300, 1, 1.0, "epsilon"),
        (1e-34, 5e-324, 9, 1.0, "epsilon"),
        (1.0, 1e-5, 1, 1e308, "clip_norm"),
        (1.0, 1e-5, 10**9, 1e308, "clip_norm"),
        (1e-30, 1e-300, 1, 1e300, "clip_norm"),
    ],
)
def test_a_target_that_no_finite_noise_reaches_is_rejected(
    epsilon: float, delta: float, steps: int, norm: float, argument: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        noise_for_epsilon(epsilon, delta, steps, clip_norm=norm)
    assert raised.value.argument == argument


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-30), (1e-30, 5e-324), (1e-30, 1e-30), (1e5, 1e-5)]
)
@pytest.mark.parametrize("norm", [5e-324, 1e-300, 1.0, 1e270])
def test_noise_at_the_ends_of_what_may_be_given_is_enough(
    epsilon: float, delta: float, norm: float
) -> None:
    noise = noise_for_epsilon(epsilon, delta, 1, clip_norm=norm)
    assert 0.0 < noise < math.inf
    assert gaussian_delta_of(norm, noise, epsilon) <= delta


def gaussian_delta_of(norm: float, noise: float, epsilon: float) -> mpf:
    with mpmath.workdps(120):
        return gaussian_delta(mpf(norm) / mpf(noise), epsilon)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "delta", "steps", "rate", "norm"),
    [
        (1.0, 1e-5, 1000, 0.01, 1.0),
        (0.3, 1e-9, 20, 0.2, 0.07),
        (5.0, 1e-6, 1, 0.5, 40.0),
        (2.0, 1e-5, 1000000, 0.001, 1.0),
        (0.0, 1e-3, 10, 0.1, 1.0),
    ],
)
def test_noise_with_sampling_satisfies_the_target_and_a_little_less_does_not(
    epsilon: float, delta: float, steps: int, rate: float, norm: float
) -> None:
    noise = noise_for_epsilon(epsilon, delta, steps, rate, norm)
    rows = np.array([[steps]], dtype=np.int64)
    report = PldReport(PoissonGaussian(noise, rate), np.array([norm]))
    assert report.epsilon(rows, delta).lower[0] <= epsilon
    assert report.delta(rows, epsilon).upper[0] <= delta * (1.0 + 1e-3)
    less = PldReport(PoissonGaussian(noise * (1.0 - 2e-3), rate), np.array([norm]))
    assert less.delta(rows, epsilon).lower[0] > delta


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "steps", "excess"),
    [(1.0, 10**6, 1e-3), (20.0, 10**7, 5e-4), (1.0, 10**9, 2e-2)],
)
def test_noise_of_very_many_steps_is_near_the_least(
    epsilon: float, steps: int, excess: float
) -> None:
    noise = noise_for_epsilon(epsilon, DELTA, steps, 0.5)
    rows, ones = np.array([[steps]], dtype=np.int64), np.ones(1)
    enough = SaddlePointReport(PoissonGaussian(noise, 0.5), ones)
    assert enough.epsilon(rows, DELTA).lower[0] <= epsilon
    assert enough.delta(rows, epsilon).lower[0] <= DELTA
    less = SaddlePointReport(PoissonGaussian(noise * (1.0 - excess), 0.5), ones)
    assert less.epsilon(rows, DELTA).lower[0] > epsilon
    # The central limit: mu = q sqrt(T (e^(1/s^2) - 1)), and a Gaussian trade-off.
    with mpmath.workdps(60):
        mu = mpf(0.5) * mpmath.sqrt(steps * mpmath.expm1(1 / mpf(noise) ** 2))
        assert gaussian_delta(mu, epsilon) <= DELTA * 1.001


@pytest.mark.slow
def test_where_sampling_alone_is_enough_the_least_noise_that_is_looked_at_is_returned() -> None:
    assert noise_for_epsilon(1.0, 1e-3, 10, 1e-5) == pytest.approx(1.0 / 128.0)


# ------------------------------------------------------------------------- epsilon of a given noise
