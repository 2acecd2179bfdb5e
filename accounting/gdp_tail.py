"""The trade-off of mu-Gaussian DP in logarithms, accurate in the far tail.

With x = epsilon/mu - mu/2, y = x + mu, the normal density phi and Mills' ratio
m(x) = Phi(-x) / phi(x):

    delta = Phi(-x) - e^epsilon Phi(-y) = phi(x) (m(x) - m(y)),   phi(x) = e^epsilon phi(y).

The first form cancels in the tail. So does the second if mu is small, and becomes an integral:
m(x) - m(y) is that of 1 - u m(u), which is positive, over [x, y].
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erfcx, ndtr

from accounting.validation import FloatArray

_SMALL_MU = 0.25
# Gauss-Legendre of 12 points is exact to rounding on an interval this short.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_LOG_ROOT_2_PI = 0.5 * math.log(2.0 * math.pi)
_NEWTON_STEPS = 100
# Of delta as computed by `log_delta`, wherever delta is above 1e-300.
RELATIVE_ERROR = 2.0**-41


def log_delta(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Return log delta, shape (n,), for mu > 0 and epsilon >= 0 of shape (n,), both finite."""
    x = epsilon / mu - 0.5 * mu
    y = epsilon / mu + 0.5 * mu
    small = mu < _SMALL_MU
    difference = np.empty_like(x)
    difference[small] = _mills_integral(x[small], mu[small])
    left = ~small & (x < 0.0)
    tail = ~small & ~left
    difference[tail] = _mills(x[tail]) - _mills(y[tail])
    difference[left] = 1.0
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        result = np.log(difference) - 0.5 * x * x - _LOG_ROOT_2_PI
        # To the left of the mode nothing cancels, and phi(x) m(x) would overflow.
        x_left = x[left]
        density = np.exp(-0.5 * x_left * x_left - _LOG_ROOT_2_PI)
        result[left] = np.log(ndtr(-x_left) - density * _mills(y[left]))
    return result


def epsilon(mu: FloatArray, log_delta_target: float) -> FloatArray:
    """Return the least epsilon >= 0 with log delta at most the target, rounded up; shape (n,).

    Newton's method. log delta is concave and decreasing in epsilon (a convolution of log-concave
    functions), so every iterate that starts above the root stays above it.
    """
    target = log_delta_target - RELATIVE_ERROR
    # There Phi(-x) <= exp(-x^2 / 2) = delta, and delta(epsilon) is less.
    result: FloatArray = mu * (math.sqrt(-2.0 * target) + 0.5 * mu)
    for _ in range(_NEWTON_STEPS):
        x = result / mu - 0.5 * mu
        value = log_delta(mu, result)
        # d delta / d epsilon = -e^epsilon Phi(-y) = -phi(x) m(y).
        log_slope = -0.5 * x * x - _LOG_ROOT_2_PI + np.log(_mills(x + mu)) - value
        following = np.maximum(result - (target - value) * np.exp(-log_slope), 0.0)
        done = following >= result * (1.0 - 2.0**-50)
        result = np.minimum(following, result)
        if done.all():
            break
    return result * (1.0 + 2.0**-48)


def _mills(x: FloatArray) -> FloatArray:
    """Return Phi(-x) / phi(x)."""
    return np.asarray(math.sqrt(math.pi / 2.0) * erfcx(x * math.sqrt(0.5)))


def _mills_integral(x: FloatArray, mu: FloatArray) -> FloatArray:
    """Return m(x) - m(x + mu) as the integral of 1 - u m(u)."""
    half = 0.5 * mu
    total = np.zeros_like(x)
    for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
        u = x + half * (1.0 + node)
        total += weight * (1.0 - u * _mills(u))
    return np.maximum(total, 0.0) * half
