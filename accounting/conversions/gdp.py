"""Convert Gaussian DP to (epsilon, delta), and (epsilon, delta) to the largest mu.

The trade-off of mu-Gaussian DP is computed in logarithms, accurate in the far tail.

With x = epsilon/mu - mu/2, y = x + mu, the normal density phi and Mills' ratio
m(x) = Phi(-x) / phi(x):

    delta = Phi(-x) - e^epsilon Phi(-y) = phi(x) (m(x) - m(y)),   phi(x) = e^epsilon phi(y).

The first form cancels in the tail. So does the second if mu is small, and becomes an integral:
m(x) - m(y) is that of 1 - u m(u), which is positive, over [x, y].

x itself cancels if mu is large, and a density in the tail multiplies its error by x; so x is
computed as a sum of two float64, and the smaller one enters to first order.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import scipy

from accounting.conversions.amounts import (
    confirmed,
    known_amounts,
    probability_up,
    restored,
    rising_root,
    target_epsilon,
)
from accounting.exact.argument_checks import FloatArray, probability
from accounting.exact.products import split, two_product_error

_SMALL_MU = 0.25
_LARGEST_MU = 2.0**50
# Gauss-Legendre of 12 points is exact to rounding on an interval this short.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_LOG_ROOT_2_PI = 0.5 * math.log(2.0 * math.pi)
_NEWTON_STEPS = 100
# Against 70 digits, for mu from 1e-6 to 1e3 and delta down to 1e-300, the error of log delta is
# below (32 + 2.5 x^2) 2**-52. Twice that is added.
_ERROR, _TAIL_ERROR = 64.0, 5.0
# Below 1e-6 log d may be of any size: log delta = log d - x^2 / 2 - log sqrt(2 pi), and
# d = m(x) - m(y) is in proportion to mu. The logarithm is off by an ulp of it at most, and each of
# four sums (three terms and this slack) by half an ulp of it, and what x^2 adds to that:
# together by 3 |log d| 2**-52. Twice that is added as well. Where d <= 1,
# |log d| < -log delta - x^2 / 2; where it is above 1 its logarithm is below 1/4, among the 32.
_LOG_ERROR = 6.0


def gdp_to_epsilon(mu: npt.ArrayLike, delta: float) -> FloatArray:
    """Return the epsilon that mu-GDP implies at `delta`, of the shape of `mu`.

    The inverse of `gdp_to_delta`, approached from above.

    Args:
        mu: >= 0, of any shape; infinity gives infinity.
        delta: strictly between 0 and 1.
    """
    mus, known = known_amounts("mu", mu)
    log_delta = math.log(probability("delta", delta))
    return restored(known, _least_epsilon(mus, log_delta), infinite=math.inf)


def gdp_to_delta(mu: npt.ArrayLike, epsilon: float) -> FloatArray:
    """Return the delta that mu-GDP implies at `epsilon`, of the shape of `mu`.

    Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2) (Koskela et al., sec. 2), stable in
    the far tail.

    Args:
        mu: >= 0, of any shape; infinity gives 1.
        epsilon: finite, >= 0.
    """
    mus, known = known_amounts("mu", mu)
    eps = np.full_like(mus, target_epsilon(epsilon))
    delta = probability_up(_log_delta_up(mus, eps))
    return restored(known, delta, infinite=1.0)


def gdp_budget(epsilon: float, delta: float) -> float:
    """Return the largest mu such that mu-GDP implies (epsilon, delta), or just below.

    Never above the true budget.

    Args:
        epsilon: finite, >= 0.
        delta: strictly between 0 and 1.
    """
    eps = target_epsilon(epsilon)
    tail = probability("delta", delta)
    target, point = math.log(tail), np.array([eps])
    log_mu = rising_root(
        lambda u: _log_delta_up(np.exp(u), point) - target,
        np.array([-80.0]),
        # At this mu, delta is at least Phi(10) for any epsilon.
        np.log(np.sqrt(2.0 * point) + 30.0),
    )
    mu = math.exp(float(log_mu[0]))
    return confirmed(mu, eps, tail, gdp_to_epsilon, gdp_to_delta)


def _log_delta_up(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Return an upper bound of log delta, shape (n,); arguments as in `log_delta`.

    Above the exact value by at most 2e-12 wherever delta is above 1e-300. It may exceed 0.
    """
    with np.errstate(under="ignore"):
        tail = np.maximum(epsilon / mu - 0.5 * mu, 0.0)
        square, value = tail * tail, log_delta(mu, epsilon)
        small = np.maximum(-value - 0.5 * square, 0.0)
        # Where delta is 0, no slack is needed.
        slack = _ERROR + _TAIL_ERROR * square + _LOG_ERROR * np.where(value > -np.inf, small, 0.0)
        return value + 2.0**-52 * slack


def log_delta(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Return log delta, shape (n,), for mu > 0 and epsilon >= 0 of shape (n,), both finite."""
    x, x_low = _distance(mu, epsilon)
    y = epsilon / mu + 0.5 * mu
    small = mu < _SMALL_MU
    left = ~small & (x < 0.0)
    tail = ~small & ~left
    difference = np.ones_like(x)
    difference[small] = _mills_integral(x[small], mu[small])
    near = _mills(x[tail])
    moved = x_low[tail] * (x[tail] * near - 1.0)  # m'(x) = x m(x) - 1
    difference[tail] = np.maximum(near - _mills(y[tail]) + moved, 0.0)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        result = np.log(difference) - x * x_low - 0.5 * x * x - _LOG_ROOT_2_PI
        # To the left of the mode nothing cancels, and phi(x) m(x) would overflow.
        x_left = x[left]
        density = np.exp(-0.5 * x_left * x_left - _LOG_ROOT_2_PI)
        below = scipy.special.ndtr(-x_left)
        result[left] = np.log(below - density * (_mills(y[left]) + x_low[left]))
    return result


def _least_epsilon(mu: FloatArray, log_delta_target: float) -> FloatArray:
    """Return the least epsilon >= 0 with log delta at most the target, rounded up; shape (n,).

    Newton's method. log delta is concave and decreasing in epsilon (a convolution of log-concave
    functions), so every iterate that starts above the root stays above it.
    """
    # At this start, Phi(-x) <= exp(-x^2 / 2) / 2 = delta / 2, and delta(epsilon) is less.
    result: FloatArray = mu * (math.sqrt(-2.0 * log_delta_target) + 0.5 * mu)
    # Each entry stops on its own, so that results do not depend on other entries. If mu is so large
    # that x is lost in the rounding of epsilon / mu, the start is the result.
    moving = np.flatnonzero(mu < _LARGEST_MU)
    for _ in range(_NEWTON_STEPS):
        level, current = mu[moving], result[moving]
        x = current / level - 0.5 * level
        value = _log_delta_up(level, current)
        # d delta / d epsilon = -e^epsilon Phi(-y) = -phi(x) m(y).
        log_slope = -0.5 * x * x - _LOG_ROOT_2_PI + np.log(_mills(x + level)) - value
        following = np.maximum(current - (log_delta_target - value) * np.exp(-log_slope), 0.0)
        result[moving] = np.minimum(following, current)
        moving = moving[following < current * (1.0 - 2.0**-50)]
        if not moving.size:
            break
    return result * (1.0 + 2.0**-48)


def _distance(mu: FloatArray, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return x = epsilon/mu - mu/2 as (rounded value, rounding error)."""
    quotient, half = epsilon / mu, 0.5 * mu
    product = quotient * mu
    error = two_product_error(product, *split(quotient), *split(mu))
    remainder = ((epsilon - product) - error) / mu
    x = quotient - half
    taken = x - quotient
    return x, (quotient - (x - taken)) - (half + taken) + remainder


def _mills(x: FloatArray) -> FloatArray:
    """Return Phi(-x) / phi(x)."""
    return np.asarray(math.sqrt(math.pi / 2.0) * scipy.special.erfcx(x * math.sqrt(0.5)))


def _mills_integral(x: FloatArray, mu: FloatArray) -> FloatArray:
    """Return m(x) - m(x + mu) as the integral of 1 - u m(u)."""
    half = 0.5 * mu
    total = np.zeros_like(x)
    for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
        u = x + half * (1.0 + node)
        total += weight * (1.0 - u * _mills(u))
    return np.maximum(total, 0.0) * half
