"""From Rényi DP, zCDP and Gaussian DP to (epsilon, delta), and from (epsilon, delta) to budgets.

All hold for neighbours in either direction. Epsilon and divergences are in nats. An epsilon is
never negative. Results are upper bounds and budgets lower ones: every formula below holds at *any*
order, so an inexact minimiser costs tightness and never validity, and the rounding errors of the
evaluation are added to the safe side. Arguments that float64 cannot hold are rounded to it as well:
divergences and levels of rho and mu up, epsilon and delta down; orders are refused.

Checked against 40 to 80 digits, for delta down to 1e-300, mu from 1e-6 to 1e3 and rho from 1e-12
to 1e4: delta is above the exact formula by at most 2e-12 of it for GDP and 2e-11 for zCDP, and an
epsilon is the least one of a delta smaller by as much. Monotone in every argument between
arguments that are 1e-9 apart, and to within 1e-13 between any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import overload

import numpy as np
import numpy.typing as npt

from accounting.conversions import gdp_tail
from accounting.exact.errors import InvalidInput
from accounting.exact.roots import bisected
from accounting.exact.validation import (
    FloatArray,
    nonnegative_array,
    nonnegative_finite,
    probability,
    renyi_orders,
)

# Sums of a few terms are computed to within this, relative to the sum of their magnitudes.
_SUM_ERROR = 2.0**-49
# Of exp itself.
_EXP_ERROR = 2.0**-50
# Smaller levels are rounded up to the first and larger ones taken for infinite; a larger epsilon
# counts as the third. All are on the safe side, and nothing between them overflows.
_SMALLEST_LEVEL, _LARGEST_LEVEL, _LARGEST_EPSILON = 1e-100, 1e100, 1e25
_BISECTIONS = 80


def renyi_to_epsilon(orders: npt.ArrayLike, rdp: npt.ArrayLike, delta: float) -> FloatArray:
    """Return the least epsilon over the orders; shape (n,) for `rdp` (n, k), a float for (k,).

    At each order a the better of Mironov, rdp + log(1/delta) / (a - 1), and of
    Canonne-Kamath-Steinke, rdp + log((a - 1)/a) - (log delta + log a) / (a - 1) (Koskela et al.,
    Lemma C.4), which is never the worse one. `orders`: k, finite, > 1; `rdp`: nats, >= 0; infinity
    makes an order unusable, and epsilon infinite if all are; 0, which only equal distributions
    have, makes epsilon 0. 0 < `delta` < 1.
    """
    alphas, divergences = _renyi_curve(orders, rdp)
    overhead, error = _epsilon_overhead(alphas, -math.log(probability("delta", delta)))
    epsilon = divergences * (1.0 + _SUM_ERROR)
    epsilon += overhead + error
    return _nothing_if_zero(divergences, np.maximum(epsilon.min(axis=-1), 0.0))


def renyi_to_delta(orders: npt.ArrayLike, rdp: npt.ArrayLike, epsilon: float) -> FloatArray:
    """Return the least delta over the orders; shape (n,) for `rdp` (n, k), a float for (k,).

    At each order a exp((a - 1) (rdp - epsilon)) / (a - 1) * (1 - 1/a)^a (Canonne-Kamath-Steinke;
    Koskela et al., Lemma C.4), never above Mironov's exp((a - 1) (rdp - epsilon)). Arguments as in
    `renyi_to_epsilon`; `epsilon`: finite, >= 0. Delta is at most 1.
    """
    alphas, divergences = _renyi_curve(orders, rdp)
    eps = min(nonnegative_finite("epsilon", epsilon), _LARGEST_EPSILON)
    log_delta = _log_deltas(alphas, divergences, eps)
    return _nothing_if_zero(divergences, _probability_up(log_delta.min(axis=-1)))


def _epsilon_overhead(
    alphas: FloatArray, log_inverse_delta: float
) -> tuple[FloatArray, FloatArray]:
    """Return what epsilon is above the divergence at each order, and the error of that."""
    a_minus_1 = alphas - 1.0
    gain = np.log1p(1.0 / a_minus_1)  # -log((a - 1) / a)
    tail = (log_inverse_delta - np.log(alphas)) / a_minus_1
    size = gain + (log_inverse_delta + np.log(alphas)) / a_minus_1
    return tail - gain, _SUM_ERROR * size


def _log_deltas(alphas: FloatArray, divergences: FloatArray, eps: float) -> FloatArray:
    """Return an upper bound of log delta at each order."""
    t = alphas - 1.0
    constant = t * np.log1p(1.0 / t) + np.log1p(t)
    # The error is that of t (divergence + epsilon) + constant.
    log_delta = divergences * (t * (1.0 + _SUM_ERROR))
    log_delta -= t * eps * (1.0 - _SUM_ERROR) + constant * (1.0 - _SUM_ERROR)
    return log_delta


@overload
def zcdp_to_epsilon(rho: float, delta: float, *, simple: bool = ...) -> float: ...
@overload
def zcdp_to_epsilon(rho: FloatArray, delta: float, *, simple: bool = ...) -> FloatArray: ...
def zcdp_to_epsilon(
    rho: npt.ArrayLike, delta: float, *, simple: bool = False
) -> float | FloatArray:
    """Return the epsilon that rho-zCDP implies at `delta`, of the shape of `rho`.

    The least over all real orders of Canonne-Kamath-Steinke; `simple`: Mironov at its best order,
    rho + 2 sqrt(rho log(1/delta)). `rho`: nats, >= 0; infinity gives infinity. 0 < `delta` < 1.
    """
    rhos, known = _known_levels("rho", rho)
    log_inverse_delta = -math.log(probability("delta", delta))
    if simple:
        epsilon = rhos + 2.0 * np.sqrt(rhos * log_inverse_delta)
        epsilon *= 1.0 + _SUM_ERROR
    else:
        # With a = t + 1 the best order solves rho t^2 + log(1 + t) = log(1/delta).
        log_t = _rising_root(
            lambda u: rhos * np.exp(2.0 * u) + np.log1p(np.exp(u)) - log_inverse_delta,
            np.full_like(rhos, -50.0),
            np.minimum(0.5 * np.log(log_inverse_delta / rhos), log_inverse_delta),
        )
        t = np.exp(log_t)
        tail, gain = (log_inverse_delta - np.log1p(t)) / t, np.log1p(1.0 / t)
        epsilon = (t + 1.0) * rhos + tail - gain
        epsilon += _SUM_ERROR * ((t + 1.0) * rhos + (log_inverse_delta + np.log1p(t)) / t + gain)
    return _restore(rho, known, np.maximum(epsilon, 0.0), infinite=math.inf)


@overload
def zcdp_to_delta(rho: float, epsilon: float, *, simple: bool = ...) -> float: ...
@overload
def zcdp_to_delta(rho: FloatArray, epsilon: float, *, simple: bool = ...) -> FloatArray: ...
def zcdp_to_delta(
    rho: npt.ArrayLike, epsilon: float, *, simple: bool = False
) -> float | FloatArray:
    """Return the delta that rho-zCDP implies at `epsilon`, of the shape of `rho`.

    The least over all real orders of Canonne-Kamath-Steinke; `simple`: Mironov at its best order,
    exp(-(epsilon - rho)^2 / (4 rho)) above rho, else 1. `rho`: nats, >= 0; `epsilon`: finite, >= 0.
    """
    rhos, known = _known_levels("rho", rho)
    eps = min(nonnegative_finite("epsilon", epsilon), _LARGEST_EPSILON)
    if simple:
        above = np.maximum((eps - rhos) - _SUM_ERROR * (eps + rhos), 0.0)
        log_delta = -0.25 * above * (above / rhos) * (1.0 - _SUM_ERROR)
    else:
        # With a = t + 1 the best order solves (2 t + 1) rho - log(1 + 1/t) = epsilon.
        log_t = _rising_root(
            lambda u: (2.0 * np.exp(u) + 1.0) * rhos - np.log1p(np.exp(-u)) - eps,
            np.full_like(rhos, -100.0),
            np.maximum(np.log((eps + 1.0) / rhos), 0.0),
        )
        t = np.exp(log_t)
        constant = t * np.log1p(1.0 / t) + np.log1p(t)
        log_delta = t * ((t + 1.0) * rhos - eps) - constant
        log_delta += _SUM_ERROR * (t * ((t + 1.0) * rhos + eps) + constant)
    return _restore(rho, known, _probability_up(log_delta), infinite=1.0)


@overload
def gdp_to_epsilon(mu: float, delta: float) -> float: ...
@overload
def gdp_to_epsilon(mu: FloatArray, delta: float) -> FloatArray: ...
def gdp_to_epsilon(mu: npt.ArrayLike, delta: float) -> float | FloatArray:
    """Return the epsilon that mu-GDP implies at `delta`, of the shape of `mu`.

    The inverse of `gdp_to_delta`, approached from above. `mu`: >= 0; infinity gives infinity.
    0 < `delta` < 1.
    """
    mus, known = _known_levels("mu", mu)
    log_delta = math.log(probability("delta", delta))
    return _restore(mu, known, gdp_tail.epsilon(mus, log_delta), infinite=math.inf)


@overload
def gdp_to_delta(mu: float, epsilon: float) -> float: ...
@overload
def gdp_to_delta(mu: FloatArray, epsilon: float) -> FloatArray: ...
def gdp_to_delta(mu: npt.ArrayLike, epsilon: float) -> float | FloatArray:
    """Return the delta that mu-GDP implies at `epsilon`, of the shape of `mu`.

    Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2) (Koskela et al., sec. 2), stable in
    the far tail. `mu`: >= 0; infinity gives 1. `epsilon`: finite, >= 0.
    """
    mus, known = _known_levels("mu", mu)
    eps = np.full_like(mus, min(nonnegative_finite("epsilon", epsilon), _LARGEST_EPSILON))
    delta = _probability_up(gdp_tail.log_delta_up(mus, eps))
    return _restore(mu, known, delta, infinite=1.0)


def zcdp_budget(epsilon: float, delta: float, simple: bool = False) -> float:
    """Return the largest rho, in nats, such that rho-zCDP implies (epsilon, delta), or just below.

    `simple`: (sqrt(log(1/delta) + epsilon) - sqrt(log(1/delta)))^2 (Feldman and Zrnic, Thm 4.9).
    `epsilon`: finite, >= 0; 0 < `delta` < 1. Never above the true budget; 0 if that is what
    remains after rounding down.
    """
    eps = min(nonnegative_finite("epsilon", epsilon), _LARGEST_EPSILON)
    tail = probability("delta", delta)
    log_inverse_delta = -math.log(tail)
    if simple:
        root = eps / (math.sqrt(log_inverse_delta + eps) + math.sqrt(log_inverse_delta))
        rho = root * root
    else:
        rho = _best_zcdp_budget(eps, log_inverse_delta)
    return _shaved(
        rho,
        lambda level: (
            zcdp_to_epsilon(level, tail, simple=simple) <= eps
            and zcdp_to_delta(level, eps, simple=simple) <= tail
        ),
    )


def gdp_budget(epsilon: float, delta: float) -> float:
    """Return the largest mu such that mu-GDP implies (epsilon, delta), or just below.

    `epsilon`: finite, >= 0; 0 < `delta` < 1. Never above the true budget.
    """
    eps = min(nonnegative_finite("epsilon", epsilon), _LARGEST_EPSILON)
    tail = probability("delta", delta)
    target, point = math.log(tail), np.array([eps])
    log_mu = _rising_root(
        lambda u: gdp_tail.log_delta_up(np.exp(u), point) - target,
        np.array([-80.0]),
        # There delta is at least Phi(10), whatever epsilon.
        np.log(np.sqrt(2.0 * point) + 30.0),
    )
    return _shaved(
        math.exp(float(log_mu[0])),
        lambda mu: gdp_to_epsilon(mu, tail) <= eps and gdp_to_delta(mu, eps) <= tail,
    )


def renyi_budgets(epsilon: float, delta: float, orders: npt.ArrayLike) -> FloatArray:
    """Return, for each order, the largest divergence that alone implies (epsilon, delta).

    In nats, shape (k,), rounded down to what `renyi_to_epsilon` and `renyi_to_delta` confirm at
    that order (Canonne-Kamath-Steinke). `epsilon`: finite, >= 0; 0 < `delta` < 1; `orders`: k,
    finite, > 1.

    A `RenyiFilter` of any one order with its budget is (epsilon, delta)-DP, if the order does not
    depend on what the steps release. Several orders in one filter must all hold, so that each
    further one admits less. 0 means that no divergence above 0 at this order implies (epsilon,
    delta): as a budget it lets free steps pass and nothing else.
    """
    alphas = renyi_orders("orders", orders)
    eps = min(nonnegative_finite("epsilon", epsilon), _LARGEST_EPSILON)
    tail = probability("delta", delta)
    overhead, error = _epsilon_overhead(alphas, -math.log(tail))
    margin = error + _SUM_ERROR * (eps + np.abs(overhead))
    budgets, left = np.zeros_like(alphas), np.full(alphas.shape, True)
    for doublings in range(_BISECTIONS):
        tried = np.maximum(eps - overhead - margin * 2.0**doublings, 0.0)
        holds = tried * (1.0 + _SUM_ERROR) + (overhead + error) <= eps
        holds &= _probability_up(_log_deltas(alphas, tried, eps)) <= tail
        budgets = np.where(left & holds, tried, budgets)
        left &= ~holds
        if not left.any():
            break
    return budgets


def _best_zcdp_budget(eps: float, log_inverse_delta: float) -> float:
    """Return the largest rho that implies (eps, delta) by Canonne-Kamath-Steinke, unrounded."""
    # Every order t + 1 gives a rho that implies (epsilon, delta). At the best one,
    # rho t^2 = log(1/delta) - log(1 + t) and epsilon = (2 t + 1) rho - log(1 + 1/t).
    log_t = _rising_root(
        lambda u: (
            eps
            + np.log1p(np.exp(-u))
            - (2.0 + np.exp(-u)) * np.exp(-u) * (log_inverse_delta - np.log1p(np.exp(u)))
        ),
        np.array([-60.0]),
        np.array([log_inverse_delta]),
    )
    t = math.exp(float(log_t[0]))
    gain, tail = math.log1p(1.0 / t), (log_inverse_delta - math.log1p(t)) / t
    return max((eps + gain - tail) / (t + 1.0), 0.0)


def _shaved(budget: float, holds: Callable[[float], bool]) -> float:
    """Return `budget`, reduced by as many powers of two as it takes to hold on conversion back."""
    for bits in range(50, 0, -1):
        smaller = budget * (1.0 - 2.0**-bits)
        if holds(smaller):
            return smaller
    return 0.0


def _renyi_curve(orders: npt.ArrayLike, rdp: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    alphas = renyi_orders("orders", orders)
    divergences = nonnegative_array("rdp", rdp)
    if divergences.ndim not in (1, 2) or divergences.shape[-1] != alphas.size:
        k = alphas.size
        raise InvalidInput("rdp", divergences.shape, f"one column per order: ({k},) or (n, {k})")
    if divergences.size and divergences.max() >= _LARGEST_LEVEL:
        divergences = np.where(divergences < _LARGEST_LEVEL, divergences, np.inf)
    return alphas, divergences


def _nothing_if_zero(divergences: FloatArray, results: FloatArray) -> FloatArray:
    """Return `results`, but 0 where the divergence is 0 at some order: the distributions agree."""
    if divergences.size and divergences.min() == 0.0:
        results = np.where(divergences.min(axis=-1) > 0.0, results, 0.0)
    return _scalar_if_0d(np.asarray(results))


def _known_levels(argument: str, values: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return (the levels that are neither 0 nor infinite, flat; all levels)."""
    levels = nonnegative_array(argument, values)
    usable = levels[(levels > 0.0) & (levels < _LARGEST_LEVEL)]
    return np.maximum(usable, _SMALLEST_LEVEL), levels


def _restore(
    given: npt.ArrayLike, levels: FloatArray, results: FloatArray, infinite: float
) -> float | FloatArray:
    """Return results in the shape of `levels`: 0 costs nothing, infinity gives `infinite`."""
    restored = np.where(levels > 0.0, infinite, 0.0)
    restored[(levels > 0.0) & (levels < _LARGEST_LEVEL)] = results
    return _scalar_if_0d(restored)


def _probability_up(log_delta: FloatArray) -> FloatArray:
    """Return exp(log_delta) rounded up, between the smallest float64 and 1."""
    with np.errstate(under="ignore"):
        delta = np.exp(np.minimum(log_delta, 0.0)) * (1.0 + _EXP_ERROR) + np.nextafter(0.0, 1.0)
    return _scalar_if_0d(np.minimum(delta, 1.0))


def _scalar_if_0d(values: FloatArray) -> FloatArray:
    return values[()]


def _rising_root(
    function: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray
) -> FloatArray:
    """Return where an increasing function crosses 0, from below; `low` if it does not."""
    ends = np.minimum(low, high), np.maximum(low, high)
    with np.errstate(over="ignore", under="ignore"):
        return bisected(lambda middle: function(middle) < 0.0, *ends, _BISECTIONS)[0]
