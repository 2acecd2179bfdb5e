"""Deltas in closed form, by mpmath in its working precision, at any real epsilon."""

from __future__ import annotations

import mpmath
from mpmath import mpf


def gaussian_delta(mu: mpf, epsilon: mpf) -> mpf:
    """Delta of mu-Gaussian DP."""
    m, e = mpf(mu), mpf(epsilon)
    return normal_above(e / m - m / 2) - mpmath.exp(e) * normal_above(e / m + m / 2)


def sampled_delta(ratio: mpf, rate: mpf, epsilon: mpf, *, added: bool) -> mpf:
    """Delta of one Poisson-sampled Gaussian step with this ratio of norm to noise.

    The loss is monotone in the outcome, so it exceeds epsilon on one side of a place.
    """
    m, q, e = mpf(ratio), mpf(rate), mpf(epsilon)
    growth = (mpmath.expm1(-e if added else e) + q) / q
    if growth <= 0:  # every outcome is beyond epsilon, or none is
        return mpf(0) if added else -mpmath.expm1(e)
    x = mpmath.log(growth) / m + m / 2
    side = -1 if added else 1
    without = normal_above(side * x)
    with_user = (1 - q) * without + q * normal_above(side * (x - m))
    return without - mpmath.exp(e) * with_user if added else with_user - mpmath.exp(e) * without


def larger_sampled_delta(ratio: float, rate: float, epsilon: float) -> mpf:
    """`sampled_delta` of the larger direction, in 60 digits."""
    with mpmath.workdps(60):
        return max(sampled_delta(ratio, rate, epsilon, added=added) for added in (False, True))


def normal_above(x: mpf) -> mpf:
    """The standard normal probability above x."""
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2
