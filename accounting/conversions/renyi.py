"""Convert Rényi DP to (epsilon, delta), and (epsilon, delta) to the budget of each order."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from accounting.conversions.levels import (
    BISECTIONS,
    LARGEST_LEVEL,
    SUM_ERROR,
    probability_up,
    renyi_curve,
    target_epsilon,
)
from accounting.exact.validation import (
    FloatArray,
    probability,
    renyi_orders,
)


def renyi_to_epsilon(orders: npt.ArrayLike, rdp: npt.ArrayLike, delta: float) -> FloatArray:
    """Return the least epsilon over the orders.

    At each order a, the better of Mironov, rdp + log(1/delta) / (a - 1), and of
    Canonne-Kamath-Steinke, rdp + log((a - 1)/a) - (log delta + log a) / (a - 1) (Koskela et al.,
    Lemma C.4); the latter is never worse.

    Args:
        orders: shape (k,), finite, > 1.
        rdp: nats, >= 0, shape (k,) or (n, k). Infinity makes an order unusable, and epsilon
            infinite if all are; 0, which implies equal distributions, makes epsilon 0.
        delta: strictly between 0 and 1.

    Returns:
        Shape (n,) for `rdp` of shape (n, k), a float for (k,).
    """
    alphas, divergences = _usable_curve(orders, rdp)
    overhead, error = _epsilon_overhead(alphas, -math.log(probability("delta", delta)))
    epsilon = divergences * (1.0 + SUM_ERROR)
    epsilon += overhead + error
    return _nothing_if_zero(divergences, np.maximum(epsilon.min(axis=-1), 0.0))


def renyi_to_delta(orders: npt.ArrayLike, rdp: npt.ArrayLike, epsilon: float) -> FloatArray:
    """Return the least delta over the orders; at most 1.

    At each order a exp((a - 1) (rdp - epsilon)) / (a - 1) * (1 - 1/a)^a (Canonne-Kamath-Steinke;
    Koskela et al., Lemma C.4), never above Mironov's exp((a - 1) (rdp - epsilon)).

    Args:
        orders: shape (k,), finite, > 1.
        rdp: nats, >= 0, shape (k,) or (n, k), as in `renyi_to_epsilon`.
        epsilon: finite, >= 0.

    Returns:
        Shape (n,) for `rdp` of shape (n, k), a float for (k,).
    """
    alphas, divergences = _usable_curve(orders, rdp)
    eps = target_epsilon(epsilon)
    log_delta = _log_deltas(alphas, divergences, eps)
    return _nothing_if_zero(divergences, probability_up(log_delta.min(axis=-1)))


def _epsilon_overhead(
    alphas: FloatArray, log_inverse_delta: float
) -> tuple[FloatArray, FloatArray]:
    """Return the excess of epsilon over the divergence at each order, and its rounding error."""
    a_minus_1 = alphas - 1.0
    gain = np.log1p(1.0 / a_minus_1)  # -log((a - 1) / a)
    tail = (log_inverse_delta - np.log(alphas)) / a_minus_1
    size = gain + (log_inverse_delta + np.log(alphas)) / a_minus_1
    return tail - gain, SUM_ERROR * size


def _log_deltas(alphas: FloatArray, divergences: FloatArray, eps: float) -> FloatArray:
    """Return an upper bound of log delta at each order."""
    t = alphas - 1.0
    constant = t * np.log1p(1.0 / t) + np.log1p(t)
    # The rounding error is that of t (divergence + epsilon) + constant.
    log_delta = divergences * (t * (1.0 + SUM_ERROR))
    log_delta -= t * eps * (1.0 - SUM_ERROR) + constant * (1.0 - SUM_ERROR)
    return log_delta


def renyi_budgets(epsilon: float, delta: float, orders: npt.ArrayLike) -> FloatArray:
    """Return, for each order, the largest divergence that alone implies (epsilon, delta).

    Rounded down until `renyi_to_epsilon` and `renyi_to_delta` confirm it at that order
    (Canonne-Kamath-Steinke).

    A `RenyiFilter` at any one order with its budget is (epsilon, delta)-DP, if the order does not
    depend on what the steps release. Several orders in one filter must all hold, so each further
    order admits less. 0 means that no divergence above 0 at this order implies (epsilon, delta): as
    a budget it admits only steps that cost nothing.

    Args:
        epsilon: finite, >= 0.
        delta: strictly between 0 and 1.
        orders: shape (k,), finite, > 1.

    Returns:
        Nats, shape (k,).
    """
    alphas = renyi_orders("orders", orders)
    eps = target_epsilon(epsilon)
    tail = probability("delta", delta)
    overhead, error = _epsilon_overhead(alphas, -math.log(tail))
    margin = error + SUM_ERROR * (eps + np.abs(overhead))
    budgets, left = np.zeros_like(alphas), np.full(alphas.shape, True)
    for doublings in range(BISECTIONS):
        tried = np.maximum(eps - overhead - margin * 2.0**doublings, 0.0)
        holds = tried * (1.0 + SUM_ERROR) + (overhead + error) <= eps
        holds &= probability_up(_log_deltas(alphas, tried, eps)) <= tail
        budgets = np.where(left & holds, tried, budgets)
        left &= ~holds
        if not left.any():
            break
    return budgets


def _usable_curve(orders: npt.ArrayLike, rdp: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return `renyi_curve`, with unusably large divergences replaced by infinity."""
    alphas, divergences = renyi_curve(orders, rdp)
    if divergences.size and divergences.max() >= LARGEST_LEVEL:
        divergences = np.where(divergences < LARGEST_LEVEL, divergences, np.inf)
    return alphas, divergences


def _nothing_if_zero(divergences: FloatArray, results: FloatArray) -> FloatArray:
    """Return `results`, and 0 where the divergence is 0 at some order: equal distributions."""
    if divergences.size and divergences.min() == 0.0:
        results = np.where(divergences.min(axis=-1) > 0.0, results, 0.0)
    return np.asarray(results)[()]
