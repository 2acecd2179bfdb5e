"""Deltas in closed form, by mpmath in its working precision, and hockey-stick divergences."""

from __future__ import annotations

import mpmath
import numpy as np
from mpmath import mpf
from numpy.typing import NDArray


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


Laws = tuple[NDArray[np.float64], NDArray[np.float64]]
"""The probabilities of every output, with and without the user."""


def hockey_stick_excess(laws: Laws, bound: Laws) -> float:
    """Return by how much a divergence of `laws`, in either direction, exceeds that of `bound`.

    Both are convex and piecewise linear in gamma, so the ends of their pieces decide.
    """
    worst = -1.0
    for (p, q), (limit, base) in ((laws, bound), (laws[::-1], bound[::-1])):
        gammas = np.unique(np.concatenate([p / q, limit / base]))[:, np.newaxis]
        found = np.maximum(p - gammas * q, 0.0).sum(axis=1)
        allowed = np.maximum(limit - gammas * base, 0.0).sum(axis=1)
        worst = max(worst, float((found - allowed).max()))
    return worst
