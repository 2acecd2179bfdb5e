"""The parts that all conversions share: the range of amounts, the direction of rounding, a root.

An amount is the number that measures a spend: rho, mu, or a Rényi divergence at an order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import FloatArray, nonnegative_array, nonnegative_finite

# Sums of a few terms are computed to within this, relative to the sum of their magnitudes.
SUM_ERROR: Final = 2.0**-49
_EXP_ERROR: Final = 2.0**-50  # of exp itself
# Smaller amounts are rounded up to the first limit, larger ones than the second count as infinite,
# and a larger epsilon counts as the third. All are on the safe side; nothing in between overflows.
_SMALLEST_AMOUNT: Final = 1e-100
LARGEST_AMOUNT: Final = 1e100
_LARGEST_EPSILON: Final = 1e25
BISECTIONS: Final = 80


def target_epsilon(epsilon: float) -> float:
    """Return a checked epsilon, at most `_LARGEST_EPSILON`."""
    return min(nonnegative_finite("epsilon", epsilon), _LARGEST_EPSILON)


def known_amounts(argument: str, values: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return (the amounts other than 0 and infinity, flat; all amounts)."""
    amounts = nonnegative_array(argument, values)
    usable = amounts[(amounts > 0.0) & (amounts < LARGEST_AMOUNT)]
    return np.maximum(usable, _SMALLEST_AMOUNT), amounts


def restored(amounts: FloatArray, results: FloatArray, infinite: float) -> FloatArray:
    """Return results in the shape of `amounts`: 0 gives 0, infinity gives `infinite`."""
    everywhere = np.where(amounts > 0.0, infinite, 0.0)
    everywhere[(amounts > 0.0) & (amounts < LARGEST_AMOUNT)] = results
    return everywhere[()]


def probability_up(log_delta: FloatArray) -> FloatArray:
    """Return exp(log_delta) rounded up, between the smallest float64 and 1."""
    with np.errstate(under="ignore"):
        delta = np.exp(np.minimum(log_delta, 0.0)) * (1.0 + _EXP_ERROR) + np.nextafter(0.0, 1.0)
    return np.asarray(np.minimum(delta, 1.0))[()]


def rising_root(
    function: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray
) -> FloatArray:
    """Return the point where an increasing function crosses 0, from below; `low` if none.

    The function need not be monotone up to the last digits: it is negative at the result.
    """
    low, high = np.minimum(low, high), np.maximum(low, high)
    with np.errstate(over="ignore", under="ignore"):
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            below = function(middle) < 0.0
            low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


def confirmed(
    budget: float,
    epsilon: float,
    delta: float,
    to_epsilon: Callable[[float, float], FloatArray],
    to_delta: Callable[[float, float], FloatArray],
) -> float:
    """Return `budget`, reduced by the smallest relative 2**-k for which both conversions hold."""
    for bits in range(50, 0, -1):
        smaller = budget * (1.0 - 2.0**-bits)
        if to_epsilon(smaller, delta) <= epsilon and to_delta(smaller, epsilon) <= delta:
            return smaller
    return 0.0
