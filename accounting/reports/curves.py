"""Curves of a user's privacy loss: Rényi divergences over orders, and the trade-off of a test.

The trade-off of a history bounds every test for the user's presence: beta is the least probability
of missing a user who is present, at each alpha, the probability of a false alarm. A
history that is (epsilon, delta)-DP in both directions has (Wasserman and Zhou 2010; Kairouz, Oh and
Viswanath 2015)

    beta(alpha) >= max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)),

and each point of the curve delta(epsilon) gives such a bound; the largest bound counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.exact.errors import InvalidInput
from accounting.exact.validation import FloatArray, as_float_array, probability
from accounting.reports.accountant import Method, ReportAccountant

# From nearly certain tests to far into the tail.
DEFAULT_DELTAS: Final = (
    *(0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
    *(5e-2, 2e-2, 1e-2, 5e-3, 2e-3, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10),
)
_LARGE_DELTAS: Final = (0.1, 0.3)  # for the risk of users who have lost much
_ROUNDING: Final = 2.0**-48


class RenyiCurve(NamedTuple):
    """`orders`, shape (k,), and upper bounds of the divergences at them, nats, shape (n, k)."""

    orders: FloatArray
    divergences: FloatArray


class TradeOff(NamedTuple):
    """False alarms `alpha`, shape (m,), and lower bounds `beta` of misses, shape (n, m)."""

    alpha: FloatArray
    beta: FloatArray


def renyi_curve(accountant: ReportAccountant, counts: npt.ArrayLike) -> RenyiCurve:
    """Return the (order, epsilon) curve of each user: Rényi divergences, rounded up.

    At the orders of the accountant. `counts`: as for `ReportAccountant.epsilon`; (levels,) gives
    divergences of shape (k,).
    """
    orders, divergences = accountant.divergences(counts)
    return RenyiCurve(orders, divergences)


def trade_off(
    accountant: ReportAccountant,
    counts: npt.ArrayLike,
    alpha: npt.ArrayLike,
    deltas: Sequence[float] = DEFAULT_DELTAS,
) -> TradeOff:
    """Return lower bounds of the misses of any test for a user at each rate of false alarms.

    `alpha`: from 0 to 1, shape (m,); `counts`: as for `ReportAccountant.epsilon`; (levels,) gives
    beta of shape (m,). `deltas`: the points of the curve, each in (0, 1), in addition to
    epsilon = 0; more points tighten the bound. Rounded down; 1 - alpha for a user without steps.
    Valid in both directions, whose exact trade-offs are mirror images.
    """
    rates = as_float_array("alpha", alpha)
    if rates.ndim != 1 or not ((rates >= 0.0) & (rates <= 1.0)).all():
        raise InvalidInput("alpha", alpha, "numbers from 0 to 1, of shape (m,)")
    levels = [probability("deltas", delta) for delta in deltas]
    at_zero = np.asarray(accountant.delta(counts, 0.0))
    beta = _below(rates, np.zeros_like(at_zero), at_zero)
    for delta in levels:
        epsilon = np.asarray(accountant.epsilon(counts, delta))
        beta = np.maximum(beta, _below(rates, epsilon, np.full_like(epsilon, delta)))
    return TradeOff(rates, beta)


class MembershipRisk(NamedTuple):
    """Upper bounds on attacks that test whether a user's data was used; arrays of shape (n,).

    `true_positive_rate` is at the given false-positive rate, and `advantage` is the largest
    difference of the two rates over all attacks.
    """

    true_positive_rate: FloatArray
    advantage: FloatArray


def membership_risk(
    accountant: ReportAccountant,
    counts: npt.ArrayLike,
    false_positive_rate: float,
    method: Method = "tightest",
) -> MembershipRisk:
    """Return the risk of each user's history, from five points of its curve.

    `counts`, `method`: as for `ReportAccountant.epsilon`; 0 < `false_positive_rate` < 1. Rounded
    up; from a false-positive rate of 0.01 on, the rate is at most a quarter above the exact one.
    """
    alpha = probability("false_positive_rate", false_positive_rate)
    at_zero = np.asarray(accountant.delta(counts, 0.0, method))
    rates = np.array([alpha])
    beta = _below(rates, np.zeros_like(at_zero), at_zero)
    for delta in {alpha / 5.0, min(2.0 * alpha, 0.99), *_LARGE_DELTAS}:
        epsilon = np.asarray(accountant.epsilon(counts, delta, method))
        beta = np.maximum(beta, _below(rates, epsilon, np.full_like(epsilon, delta)))
    rate = np.clip(np.nextafter(1.0 - beta[..., 0], 2.0), alpha, 1.0)
    return MembershipRisk(np.where(at_zero > 0.0, rate, alpha), at_zero)


def _below(alpha: FloatArray, epsilon: FloatArray, delta: FloatArray) -> FloatArray:
    """Return the bound from one point for each user, rounded down, shape (n, m)."""
    eps, left = epsilon[..., np.newaxis], 1.0 - delta[..., np.newaxis]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        growth = np.exp(np.minimum(eps, 700.0)) * (1.0 + _ROUNDING)
        steep = left - growth * alpha
        flat = np.exp(-eps) * (1.0 - _ROUNDING) * (left - alpha)
    bound = np.maximum(np.where(eps <= 700.0, steep, np.where(alpha > 0.0, 0.0, left)), flat)
    return np.asarray(np.maximum(bound - _ROUNDING, 0.0))
