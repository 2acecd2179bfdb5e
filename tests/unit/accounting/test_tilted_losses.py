from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from accounting.costs.mechanisms import DIRECTIONS, Direction
from accounting.reports.saddlepoint.sampled_loss import SampledLoss
from accounting.reports.saddlepoint.tilted_losses import (
    RELATIVE_ERROR,
    THIRD_ERROR,
    UNKNOWN_THIRD,
    Cumulants,
    GaussianLoss,
)
from tests.examples import grid

GAUSS_NODES, GAUSS_WEIGHTS = (
    [mpf(float(v)) for v in values] for values in np.polynomial.legendre.leggauss(16)
)


def exact_cumulants(a: float, q: float, t: float, direction: Direction) -> tuple[mpf, ...]:
    """Gauss-Legendre on short panels; the third moment has its kink between two of them."""
    with mpmath.workdps(45):
        ratio, rate, tilt = mpf(a), mpf(q), mpf(t)
        exponent = tilt + 1 if direction == "remove" else -tilt
        sign = 1 if direction == "remove" else -1
        width = min(mpf(2), mpf(1) / ratio)

        def panels(split: mpf) -> list[tuple[mpf, mpf, mpf]]:
            """Weights under the normal density, x and the loss."""
            points = []
            for k in range(-int(20 / width), int(44 / width)):
                for node, weight in zip(GAUSS_NODES, GAUSS_WEIGHTS, strict=True):
                    z = split + width * (k + (1 + node) / 2)
                    x = rate * mpmath.expm1(ratio * z - ratio * ratio / 2)
                    points.append((width / 2 * weight * mpmath.npdf(z), x, mpmath.log1p(x)))
            return points

        def mean_of(function: Callable[[mpf], mpf], points: list[tuple[mpf, mpf, mpf]]) -> mpf:
            return mpmath.fsum(
                w * mpmath.exp(exponent * loss) * function(loss) for w, _, loss in points
            )

        points = panels(mpf(0))
        # E x = 0, and what is integrated here is nowhere negative: a relative error stays one.
        excess = mpmath.fsum(
            w * (mpmath.exp(exponent * loss) - 1 - exponent * x) for w, x, loss in points
        )
        total = mean_of(lambda loss: mpf(1), points)
        mean = mean_of(lambda loss: loss, points) / total
        variance = mean_of(lambda loss: (loss - mean) ** 2, points) / total
        points = panels((mpmath.log1p(mpmath.expm1(mean) / rate) + ratio * ratio / 2) / ratio)
        third = mean_of(lambda loss: abs(loss - mean) ** 3, points) / total
        return mpmath.log1p(excess), sign * mean, variance, third


def assert_within(found: Cumulants, exact: tuple[mpf, ...]) -> None:
    cumulant, mean, variance, third = exact
    assert found.third[0] < UNKNOWN_THIRD
    assert abs(found.cumulant[0] / cumulant - 1) <= RELATIVE_ERROR
    assert abs(found.mean[0] - mean) <= RELATIVE_ERROR * (mean + mpmath.sqrt(variance))
    assert abs(found.variance[0] / variance - 1) <= RELATIVE_ERROR
    assert third <= found.third[0] <= third * (1 + THIRD_ERROR)


CUMULANT_CASES = [
    (1.0, 0.01, 1.0),
    (1 / 0.3, 0.9, 0.5),
    (1e-4, 1e-6, 1e8),
    (12.0, 0.03, 1.3),
]
FURTHER_CUMULANT_CASES = [
    (1.0, 0.01, 0.001),
    (1.0, 0.01, 30.0),
    (1 / 0.3, 0.01, 4.0),
    (0.05, 0.3, 200.0),
    (1e-4, 1e-6, 0.7),
    (0.3, 1e-6, 25.0),
    (1.0, 0.999, 3.0),
    (0.7, 0.01, 9.0),
]
CUMULANT_POINTS = [
    *grid(CUMULANT_CASES, DIRECTIONS),
    *(
        pytest.param(case, direction, marks=pytest.mark.thorough)
        for case in FURTHER_CUMULANT_CASES
        for direction in DIRECTIONS
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "direction"), CUMULANT_POINTS)
def test_cumulants_are_within_the_stated_error_of_quadrature_in_many_digits(
    case: tuple[float, float, float], direction: Direction
) -> None:
    a, q, t = case
    assert_within(
        SampledLoss(a, q, direction).cumulants(np.array([t])), exact_cumulants(a, q, t, direction)
    )


def test_unknown_entries_keep_an_upper_bound_of_the_cumulant() -> None:
    """Order 101 at ratio 1: all mass lies where the sampled component is, far out."""
    found = SampledLoss(1.0, 0.01, "remove").cumulants(np.array([1.0, 100.0]))
    order, rate = 101, mpf("0.01")
    exact = mpmath.log(
        mpmath.fsum(
            mpmath.binomial(order, k)
            * rate**k
            * (1 - rate) ** (order - k)
            * mpmath.exp(mpf(k * (k - 1)) / 2)
            for k in range(order + 1)
        )
    )
    assert found.third[1] == UNKNOWN_THIRD
    assert exact <= found.cumulant[1] <= 1.2 * exact


# ------------------------------------------------------------------------- losses in closed form

Integral = Callable[[Callable[[mpf], mpf], list[mpf]], mpf]


def gaussian_integral(a: float) -> Integral:
    def integral(function: Callable[[mpf], mpf], splits: list[mpf]) -> mpf:
        ratio = mpf(a)

        def weighted(z: mpf) -> mpf:
            return mpmath.npdf(z) * function(ratio * z + ratio * ratio / 2)

        ends = [mpf(k) for k in range(-16, 53, 4)]
        kinks = [(loss - ratio * ratio / 2) / ratio for loss in splits]
        return mpmath.quad(weighted, sorted(ends + kinks))

    return integral


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "t"),
    [
        pytest.param(size, t, marks=() if i == j else pytest.mark.thorough)
        for i, size in enumerate((0.01, 0.4, 3.0))
        for j, t in enumerate((11.0, 1.5, 0.003))
    ],
)
def test_cumulants_of_gaussian_losses_are_within_the_stated_error(size: float, t: float) -> None:
    loss, integral = GaussianLoss(size), gaussian_integral(size)
    with mpmath.workdps(25):
        tilt = mpf(t)

        def tilted(function: Callable[[mpf], mpf], *splits: mpf) -> mpf:
            return integral(lambda x: mpmath.exp(tilt * x) * function(x), list(splits))

        total = tilted(lambda x: mpf(1))
        mean = tilted(lambda x: x) / total
        variance = tilted(lambda x: (x - mean) ** 2) / total
        third = tilted(lambda x: abs(x - mean) ** 3, mean) / total
        exact = mpmath.log(total), mean, variance, third
        assert_within(loss.cumulants(np.array([t])), exact)


@pytest.mark.slow
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("a", "q", "t"), [(1.0, 0.01, 3.0), (0.05, 0.3, 200.0), (3.0, 1e-4, 0.5)])
def test_transform_of_a_sampled_step_is_that_of_its_tilted_density(
    a: float, q: float, t: float, direction: Direction
) -> None:
    """By the same integral on a grid that is many times as fine, for 50 participations."""
    loss, count = SampledLoss(a, q, direction), math.ceil(50.0 / q)
    _, mean, variance, _ = (float(part[0]) for part in loss.cumulants(np.array([t])))
    step = 0.9 / math.sqrt(variance * count)
    found = loss.log_transform(t, mean, step, 8)
    z = np.linspace(-25.0, 60.0, 400_001)
    losses = np.log1p(q * np.expm1(a * z - 0.5 * a * a)) * (1.0 if direction == "remove" else -1.0)
    exponent = t * losses - 0.5 * z * z + (losses if direction == "remove" else 0.0)
    mass = np.exp(exponent - exponent.max())
    mass /= mass.sum()
    angles = np.multiply.outer(step * np.arange(1.0, 9.0), losses - mean)
    less = (-2.0 * np.sin(0.5 * angles) ** 2 + 1j * np.sin(angles)) @ mass
    assert count * found == pytest.approx(count * np.log1p(less), abs=1e-6)
