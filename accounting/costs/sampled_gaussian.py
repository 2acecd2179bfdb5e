"""Rényi divergence of the Poisson-sampled Gaussian at any order above 1.

With mu = norm / noise_stddev, P = N(0, 1) and the sampled mixture M = (1-q) N(0, 1) + q N(mu, 1),
the privacy loss of M against P at y is l = log(1 + q (e^v - 1)), v = mu (y - mu / 2). Removing
the user from the data turns M into P, and adding the user turns P into M. A step is charged
D_a(M || P), because D_a(P || M) is not larger (Mironov, Talwar and Zhang, "Rényi differential
privacy of the sampled Gaussian mechanism", 2019, Thm 5).

For any two distributions with loss l = log(dP/dQ), and because E_P[e^-l] = 1,

    e^{(a-1) D_a(P || Q)} - 1 = E_P[r((a-1) l) + (a-1) r(-l)],    r(t) = e^t - 1 - t >= 0.

Nothing cancels in this form, for divergences from 1e-300 to 1e6, at whole and fractional orders.
The integrand is analytic in a strip around the real line and falls off like a Gaussian, so that
the trapezoidal rule converges geometrically (Trefethen and Weideman, "The exponentially
convergent trapezoidal rule", 2014); the step is chosen for an error below e^-38.

If the largest losses dominate the divergence, Minkowski's inequality in L_a(P),
|1 - q + q e^v|_a <= 1 - q + q |e^v|_a, gives the divergence to the last digit. It always bounds it.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from accounting.costs.mechanisms import PoissonGaussian
from accounting.exact.argument_checks import FloatArray

# Ratios and rates are raised to the first (their squares must not underflow); the integrand is
# not evaluated where v exceeds the second, or at more nodes than the third.
SMALLEST: Final = 2.0**-200
_LARGEST_LOG_RATIO: Final = 600.0
_MOST_NODES: Final = 2**14
REACH: Final = 9.0  # standard deviations beyond which a Gaussian is left out: 1e-18 of its mass
_LOG_ACCURACY: Final = 38.0
_NEGLIGIBLE: Final = 35.0
# The exponents of the integrand are sums of a few terms, none above the square of the farthest
# node in magnitude, each within a few 2**-53 of its own magnitude; the floor covers the rest.
ROUNDING: Final = 2.0**-49
ROUNDING_FLOOR: Final = 128.0
_SERIES_LIMIT: Final = 0.25
_SERIES: Final = tuple(1.0 / math.factorial(power) for power in range(12, 1, -1))
_PAIRS: Final = 2**15  # of a norm and an order, at a time
_BLOCK: Final = 2**15  # nodes at a time, so that the temporaries stay in the cache


class Windows(NamedTuple):
    """The integration windows, one per pair: from `low` to `high` with `nodes` equal nodes."""

    low: FloatArray
    high: FloatArray
    nodes: FloatArray


def poisson_gaussian_divergence(
    mechanism: PoissonGaussian, norms: FloatArray, orders: FloatArray
) -> FloatArray:
    """Return the Rényi divergence of each user at each order, in nats, rounded up.

    An upper bound that exceeds the exact value by less than a relative 2**-49 (128 + (a mu + 9)^2),
    mu the ratio of norm to noise: 2e-10 at most for orders to 1024 and noise of at least 0.3 norms,
    and usually 1e-12. Monotone in the norm within that. If the integral would need more than 2**14
    nodes or overflow (a norm of 15 times the noise or more, or orders above 10^6 with noise above
    100 norms) the result is Minkowski's bound, which is rough in that range, and infinite if that
    overflows.

    A norm of 0 and a sampling rate of 0 cost nothing; every other cost is positive (a positive
    rate, or ratio of norm to noise, below 2**-200 is rounded up to that).

    Args:
        mechanism: the step, at a sampling rate below 1.
        norms: shape (n,), L2, finite, >= 0.
        orders: shape (k,), > 1, at most 2**40.

    Returns:
        Shape (n, k).
    """
    distinct, position = np.unique(norms, return_inverse=True)
    table = np.zeros((distinct.size, orders.size))
    if mechanism.sampling_rate > 0.0:
        rate = max(mechanism.sampling_rate, SMALLEST)
        rows = max(1, _PAIRS // orders.size)
        for start in range(int(np.searchsorted(distinct, 0.0, side="right")), distinct.size, rows):
            block = slice(start, start + rows)
            with np.errstate(over="ignore", under="ignore"):
                ratios = np.maximum(distinct[block] / mechanism.noise_stddev, SMALLEST)
            ratio, order = np.broadcast_arrays(ratios[:, np.newaxis], orders)
            pairs = _divergence(ratio.ravel(), order.ravel(), rate)
            table[block] = pairs.reshape(ratio.shape)
    return table[position]


def _divergence(mu: FloatArray, order: FloatArray, rate: float) -> FloatArray:
    """Return the divergence of each pair of a ratio `mu` and an order; shape (m,)."""
    # A ratio near the largest float64 overflows; the bound then covers it.
    with np.errstate(all="ignore"):
        bound = _minkowski_bound(mu, order, rate)
        windows = _windows(mu, order)
        # As mu grows, each condition fails once and stays false, so the result is monotone across
        # it.
        use = windows.nodes <= _MOST_NODES
        use &= mu * (windows.high - 0.5 * mu) <= _LARGEST_LOG_RATIO
        use &= math.log(rate) + 0.5 * (order - 1.0) * mu * mu <= _NEGLIGIBLE
        chosen = np.flatnonzero(use)
        windows = Windows(*(part[chosen] for part in windows))
        beta = order[chosen] - 1.0
        log_moment = _log_moment(mu[chosen], beta, rate, windows)
        farthest = np.maximum(-windows.low, windows.high)
        log_moment += ROUNDING * (farthest * farthest + ROUNDING_FLOOR)
        exact = np.logaddexp(0.0, log_moment) / beta * (1.0 + ROUNDING)
        bound[chosen] = np.minimum(bound[chosen], exact)
    return bound


def _minkowski_bound(mu: FloatArray, order: FloatArray, rate: float) -> FloatArray:
    """Return a / (a - 1) log(1 + q (e^{(a-1) mu^2 / 2} - 1)), rounded up."""
    exponent = 0.5 * (order - 1.0) * mu * mu
    log_norm = np.where(
        exponent < 700.0,
        np.log1p(rate * np.expm1(np.minimum(exponent, 700.0))),
        exponent + math.log(rate),
    )
    # The exponent's rounding is magnified while the result is small beside it.
    slack = ROUNDING * (1.0 + np.minimum(exponent, 256.0))
    bound: FloatArray = order / (order - 1.0) * log_norm * (1.0 + slack)
    return bound


def _windows(mu: FloatArray, order: FloatArray) -> Windows:
    """Return where the integrand is concentrated: tilts of P by e^{k mu y}.

    At y + ib its modulus is at most e^{b^2 / 2} times that of a like integrand at y, as far as
    the singularities of the loss, at b = pi / mu.
    """
    high = np.maximum(order, 2.0) * mu + REACH
    return equal_nodes(np.full_like(mu, -REACH), high, math.pi / mu)


def equal_nodes(
    low: FloatArray, high: FloatArray, strip: FloatArray, curvature: FloatArray | float = 1.0
) -> Windows:
    """Return windows whose step h leaves a relative error of e^-38 (`_LOG_ACCURACY`).

    The trapezoidal rule errs by e^{-2 pi b / h} times the modulus at distance b from the real line,
    which is at most e^{curvature b^2 / 2} for b up to `strip`.
    """
    distance = np.minimum(np.sqrt(2.0 * _LOG_ACCURACY / curvature), strip)
    step = 2.0 * math.pi * distance / (_LOG_ACCURACY + 0.5 * curvature * distance * distance)
    count = np.ceil((high - low) / step) + 1.0
    # Few distinct counts, so that pairs with the same count are computed together. A pair's result
    # must depend on the pair alone, or a batch would differ from its parts in the last bit.
    grain = np.exp2(np.floor(np.log2(count)) - 3.0)
    return Windows(low, high, np.ceil(count / grain) * grain)


def _log_moment(mu: FloatArray, beta: FloatArray, rate: float, windows: Windows) -> FloatArray:
    """Return log(e^{beta D} - 1) of each pair, by quadrature over its window; shape (m,)."""
    results = np.empty_like(mu)
    for count in np.unique(windows.nodes).tolist():
        members = np.flatnonzero(windows.nodes == count)
        rows = max(1, int(_BLOCK / count))
        for start in range(0, members.size, rows):
            block = members[start : start + rows]
            low, high = windows.low[block, np.newaxis], windows.high[block, np.newaxis]
            step = (high - low) / (count - 1.0)
            y = low + step * np.arange(count)
            exponent, factor = _integrand(y, mu[block, np.newaxis], beta[block, np.newaxis], rate)
            peak = exponent.max(axis=1, keepdims=True)
            total = (np.exp(exponent - peak) * factor).sum(axis=1)
            scale = step[:, 0] / math.sqrt(2.0 * math.pi)
            results[block] = peak[:, 0] + np.log(total * scale)
    return results


def _integrand(
    y: FloatArray, mu: FloatArray, beta: FloatArray, rate: float
) -> tuple[FloatArray, FloatArray]:
    """Return (exponent, factor): e^exponent factor / sqrt(2 pi) is the integrand at y."""
    loss = np.log1p(rate * np.expm1(mu * (y - 0.5 * mu)))
    exponent = -0.5 * y * y
    exponent += loss  # the expectation is over M
    growth = beta * loss
    largest = np.maximum(growth, 0.0)
    exponent += largest
    factor = scaled_remainder(growth, largest)
    factor += beta * scaled_remainder(-loss, largest)
    return exponent, factor


def scaled_remainder(t: FloatArray, scale: FloatArray) -> FloatArray:
    """Return e^-scale (e^t - 1 - t), by the power series near 0."""
    decay = np.exp(-scale)
    series = np.full_like(t, _SERIES[0])
    for coefficient in _SERIES[1:]:
        series *= t
        series += coefficient
    series *= t * t * decay
    direct = np.exp(t - scale) - (1.0 + t) * decay
    return np.where(np.abs(t) < _SERIES_LIMIT, series, direct)
