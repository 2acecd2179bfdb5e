"""Convert zCDP to (epsilon, delta), and (epsilon, delta) to the largest rho that implies it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from accounting.conversions.amounts import (
    SUM_ERROR,
    confirmed,
    known_amounts,
    probability_up,
    restored,
    rising_root,
    target_epsilon,
)
from accounting.exact.argument_checks import FloatArray, probability


def zcdp_to_epsilon(rho: npt.ArrayLike, delta: float) -> FloatArray:
    """Return the epsilon that rho-zCDP implies at `delta`, of the shape of `rho`.

    The least over all real orders of Canonne-Kamath-Steinke.

    Args:
        rho: nats, >= 0, of any shape; infinity gives infinity.
        delta: strictly between 0 and 1.
    """
    rhos, known = known_amounts("rho", rho)
    log_inverse_delta = -math.log(probability("delta", delta))
    # With a = t + 1 the best order solves rho t^2 + log(1 + t) = log(1/delta).
    log_t = rising_root(
        lambda u: rhos * np.exp(2.0 * u) + np.log1p(np.exp(u)) - log_inverse_delta,
        np.full_like(rhos, -50.0),
        np.minimum(0.5 * np.log(log_inverse_delta / rhos), log_inverse_delta),
    )
    t = np.exp(log_t)
    tail, gain = (log_inverse_delta - np.log1p(t)) / t, np.log1p(1.0 / t)
    epsilon = (t + 1.0) * rhos + tail - gain
    epsilon += SUM_ERROR * ((t + 1.0) * rhos + (log_inverse_delta + np.log1p(t)) / t + gain)
    return restored(known, np.maximum(epsilon, 0.0), infinite=math.inf)


def zcdp_to_delta(rho: npt.ArrayLike, epsilon: float) -> FloatArray:
    """Return the delta that rho-zCDP implies at `epsilon`, of the shape of `rho`.

    The least over all real orders of Canonne-Kamath-Steinke.

    Args:
        rho: nats, >= 0, of any shape; infinity gives 1.
        epsilon: finite, >= 0.
    """
    rhos, known = known_amounts("rho", rho)
    eps = target_epsilon(epsilon)
    # With a = t + 1 the best order solves (2 t + 1) rho - log(1 + 1/t) = epsilon.
    log_t = rising_root(
        lambda u: (2.0 * np.exp(u) + 1.0) * rhos - np.log1p(np.exp(-u)) - eps,
        np.full_like(rhos, -100.0),
        np.maximum(np.log((eps + 1.0) / rhos), 0.0),
    )
    t = np.exp(log_t)
    constant = t * np.log1p(1.0 / t) + np.log1p(t)
    log_delta = t * ((t + 1.0) * rhos - eps) - constant
    log_delta += SUM_ERROR * (t * ((t + 1.0) * rhos + eps) + constant)
    return restored(known, probability_up(log_delta), infinite=1.0)


def zcdp_budget(epsilon: float, delta: float) -> float:
    """Return the largest rho, in nats, such that rho-zCDP implies (epsilon, delta), or just below.

    Never above the true budget; 0 if rounding down leaves nothing.

    Args:
        epsilon: finite, >= 0.
        delta: strictly between 0 and 1.
    """
    eps = target_epsilon(epsilon)
    tail = probability("delta", delta)
    log_inverse_delta = -math.log(tail)
    # Every order t + 1 gives a rho that implies (epsilon, delta). At the best one,
    # rho t^2 = log(1/delta) - log(1 + t) and epsilon = (2 t + 1) rho - log(1 + 1/t).
    log_t = rising_root(
        lambda u: (
            eps
            + np.log1p(np.exp(-u))
            - (2.0 + np.exp(-u)) * np.exp(-u) * (log_inverse_delta - np.log1p(np.exp(u)))
        ),
        np.array([-60.0]),
        np.array([log_inverse_delta]),
    )
    t = math.exp(float(log_t[0]))
    gain, rest = math.log1p(1.0 / t), (log_inverse_delta - math.log1p(t)) / t
    rho = max((eps + gain - rest) / (t + 1.0), 0.0)
    return confirmed(rho, eps, tail, zcdp_to_epsilon, zcdp_to_delta)
