"""Convert Rényi DP to (epsilon, delta), and (epsilon, delta) to orders and their budgets."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.conversions.amounts import (
    BISECTIONS,
    LARGEST_AMOUNT,
    SUM_ERROR,
    probability_up,
    target_epsilon,
)
from accounting.exact.argument_checks import (
    FloatArray,
    nonnegative_array,
    probability,
    renyi_orders,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.units import UNIT_BITS

MAX_CANDIDATES: Final = 32
_SEARCHED: Final = np.exp2(np.arange(-20 * 32, 39 * 32) / 32.0)  # distances of orders from 1
_DIGITS: Final = 2.0**8  # short orders are exact, are multiplied fast, and can be read


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


class CandidateOrders(NamedTuple):
    """Rising orders, each with the largest budget in nats that alone implies the target.

    Shape (k,), k at most `MAX_CANDIDATES`: orders that rounding makes equal count once.
    """

    orders: FloatArray
    budgets: FloatArray


def candidate_orders(epsilon: float, delta: float) -> CandidateOrders:
    """Return orders of which one serves every charge nearly as well as the best of all orders.

    They range from the first order with a budget for (epsilon, delta) to the order where
    budget / order is largest. No larger order is better: Gaussian steps cost in proportion to the
    order, and sampled steps more than that. Budgets are about epsilon - log(1/delta) / (order - 1),
    so the distances from 1 are spaced evenly in their inverse, which spaces the budgets evenly. For
    steps of the sampled Gaussian with noise of at least half the clip norm, the best candidate
    admits within 2 % of what the best real order admits, if that is 50 steps or more.

    A filter at one of these orders implies (epsilon, delta) for its user
    (`accounting.filters.per_user_order`).

    Args:
        epsilon: nats, > 0.
        delta: strictly between 0 and 1.

    Raises:
        InvalidInput: for other arguments, or if no order has a budget of one unit.
    """
    usable, best = _ends(epsilon, delta)
    distances = 1.0 / np.linspace(1.0 / usable, 1.0 / best, MAX_CANDIDATES + 1)[1:]
    digits, exponents = np.frexp(distances)
    orders = 1.0 + np.ldexp(np.round(digits * _DIGITS) / _DIGITS, exponents)
    orders = np.unique(orders)
    budgets = renyi_budgets(epsilon, delta, orders)
    kept = budgets >= 2.0**-UNIT_BITS
    return CandidateOrders(orders[kept], budgets[kept])


def _ends(epsilon: float, delta: float) -> tuple[float, float]:
    """Return distances from 1: the first order with a budget, and the best order for Gaussians."""
    budgets = renyi_budgets(epsilon, delta, 1.0 + _SEARCHED)
    usable = np.flatnonzero(budgets >= 2.0**-UNIT_BITS)
    if not usable.size:
        raise InvalidInput("epsilon", epsilon, "large enough for a budget of 2**-44 at some order")
    best = int(np.argmax(budgets / (1.0 + _SEARCHED)))
    return float(_SEARCHED[usable[0]]), float(_SEARCHED[best])


def _usable_curve(orders: npt.ArrayLike, rdp: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return (orders, shape (k,); divergences, (k,) or (n, k)), unusably large ones infinite."""
    alphas, divergences = renyi_orders("orders", orders), nonnegative_array("rdp", rdp)
    if divergences.ndim not in (1, 2) or divergences.shape[-1] != alphas.size:
        k = alphas.size
        raise InvalidInput("rdp", divergences.shape, f"one column per order: ({k},) or (n, {k})")
    if divergences.size and divergences.max() >= LARGEST_AMOUNT:
        divergences = np.where(divergences < LARGEST_AMOUNT, divergences, np.inf)
    return alphas, divergences


def _nothing_if_zero(divergences: FloatArray, results: FloatArray) -> FloatArray:
    """Return `results`, and 0 where the divergence is 0 at some order: equal distributions."""
    if divergences.size and divergences.min() == 0.0:
        results = np.where(divergences.min(axis=-1) > 0.0, results, 0.0)
    return np.asarray(results)[()]
