"""Convert guarantees to the risk of a membership attack: how well a test tells a user's presence.

An attacker sees all outputs and tests whether one user's data was used. The attacker may know
everything else. The true-positive rate is the probability that the test says yes about a user whose
data was used, and the false-positive rate that it says yes about one whose data was not. The
advantage is the largest difference of the two over all tests. If presence and absence are equally
likely beforehand, the best guess is right with probability (1 + advantage) / 2.

A guarantee that is (epsilon, delta)-DP in both directions allows, at a false-positive rate alpha
(Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015),

    true-positive rate <= min(e^epsilon alpha + delta, 1 - e^-epsilon (1 - delta - alpha))
    advantage          <= (e^epsilon - 1 + 2 delta) / (e^epsilon + 1).

Each point of a curve of such guarantees gives these bounds, and the least ones count.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from accounting.conversions.gdp import gdp_to_delta
from accounting.exact.argument_checks import FloatArray, nonnegative_array, probability, real_number
from accounting.exact.invalid_input import InvalidInput

# Above the errors of ndtri and of ndtr in the tail, where the density multiplies them by 38 at
# most, and above those of exp.
_ROUNDING: Final = 2.0**-38
_LARGEST_EXPONENT: Final = 700.0
_RATIO: Final = 1.2  # between neighbouring points of a curve
_SMALLEST_DELTA: Final = 1e-15


class Risk(NamedTuple):
    """Upper bounds on every attack that tests whether one user's data was used.

    Attributes:
        false_positive_rate: the attack's rate, as given.
        true_positive_rate: the largest one at this false-positive rate.
        advantage: the largest true-positive rate minus the false-positive rate, over all attacks.
    """

    false_positive_rate: float
    true_positive_rate: float
    advantage: float


def gdp_risk(mu: float, false_positive_rate: float) -> Risk:
    """Return the risk of mu-Gaussian DP, exact but for rounding up.

    The true-positive rate is Phi(Phi^-1(alpha) + mu), and the advantage 2 Phi(mu / 2) - 1 (Dong,
    Roth and Su 2022).

    Args:
        mu: >= 0.
        false_positive_rate: alpha, strictly between 0 and 1.
    """
    alpha = probability("false_positive_rate", false_positive_rate)
    shift = real_number("mu", mu)
    if not shift >= 0.0:
        raise InvalidInput("mu", mu, "at least 0")
    rate = float(scipy.special.ndtr(scipy.special.ndtri(alpha) + shift)) * (1.0 + _ROUNDING)
    at_least = alpha if shift == 0.0 else rate
    return Risk(alpha, min(max(at_least, alpha), 1.0), float(gdp_to_delta(shift, 0.0)))


def curve_risk(epsilon: npt.ArrayLike, delta: npt.ArrayLike, false_positive_rate: float) -> Risk:
    """Return the risk of a guarantee that is (epsilon, delta)-DP at each of several points.

    Args:
        epsilon: nats, >= 0, shape (k,); infinity says nothing.
        delta: the points' deltas, from 0 to 1, shape (k,).
        false_positive_rate: alpha, strictly between 0 and 1.
    """
    alpha = probability("false_positive_rate", false_positive_rate)
    nats, rest = nonnegative_array("epsilon", epsilon), nonnegative_array("delta", delta)
    if nats.ndim != 1 or nats.shape != rest.shape or not nats.size:
        raise InvalidInput("delta", rest.shape, f"one per epsilon, of shape {nats.shape}")
    if rest.max() > 1.0:
        raise InvalidInput("delta", float(rest.max()), "at most 1")
    rates, advantages = risk_bounds(nats, rest, alpha)
    return Risk(alpha, float(rates.min()), float(advantages.min()))


def curve_deltas(false_positive_rate: float) -> FloatArray:
    """Return deltas at which a curve gives nearly its best bounds, shape (k,).

    The best points for a false-positive rate have a delta of about that rate, or of about one minus
    the bound, and the best one for the advantage has the advantage as its delta. So deltas are
    dense near 0 and near 1.
    """
    alpha = probability("false_positive_rate", false_positive_rate)
    least = max(alpha / 100.0, _SMALLEST_DELTA)
    count = int(np.ceil(np.log(1.0 / least) / np.log(_RATIO)))
    rising = np.minimum(least * _RATIO ** np.arange(count), 0.99)
    falling = 1.0 - rising[(rising > 1e-3) & (rising < 0.5)]
    return np.unique(np.concatenate([[_SMALLEST_DELTA], rising, falling]))


def risk_bounds(
    epsilon: FloatArray, delta: FloatArray, alpha: float
) -> tuple[FloatArray, FloatArray]:
    """Return the bounds of rate and advantage of each point, rounded up, in the points' shape."""
    known = epsilon <= _LARGEST_EXPONENT
    nats = np.where(known, epsilon, _LARGEST_EXPONENT)
    growth = np.exp(nats) * (1.0 + _ROUNDING)
    steep = (growth * alpha + delta) * (1.0 + _ROUNDING)
    left = np.maximum(1.0 - delta - alpha - _ROUNDING, 0.0)
    flat = 1.0 - np.exp(-nats) * (1.0 - _ROUNDING) * left
    rates = np.clip(np.minimum(steep, flat), alpha, 1.0)
    # (e^epsilon - 1) / (e^epsilon + 1) is tanh(epsilon / 2).
    advantages = (np.tanh(nats / 2.0) + 2.0 * delta / (np.exp(nats) + 1.0)) * (1.0 + _ROUNDING)
    return np.where(known, rates, 1.0), np.where(known, np.minimum(advantages, 1.0), 1.0)
