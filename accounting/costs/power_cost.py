"""Costs that are a power of the ratio of norm and noise scale: rational, so charged exactly.

A step of norm c with noise of scale s costs (c / s)^p 2^b units. The charge is its ceiling.

    ZCDP   rho = (c / s)^2 / 2        p = 2, b = 43    Gaussian, Laplace, PureDP
    GDP    mu squared = (c / s)^2     p = 2, b = 44    Gaussian
    PURE   epsilon = c / s            p = 1, b = 44    Laplace, PureDP

A Gaussian step of z units of rho costs ceil(a z) units at Rényi order a, exactly. The inverse
functions, from units to the norm that they pay for and from a budget to the noise, round against
the spender. Neighbouring datasets differ by adding or removing one user.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import (
    UNSAMPLED,
    Gaussian,
    Laplace,
    Mechanism,
    PureDP,
    noise_scale,
)
from accounting.exact.argument_checks import FloatArray, IntArray, norm_vector, positive_finite
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.products import ratio_ceil
from accounting.exact.units import MAX_BUDGET_UNITS, MAX_COST_UNITS, UNIT_BITS

# The norm within a budget is rounded three times at most, each within a relative 2**-53.
# 2**-50 keeps it below the exact norm, and 2**-1000 keeps it out of the subnormal range.
_SHAVE: Final = 1.0 - 2.0**-50
_SMALLEST_NORM: Final = 2.0**-1000
# At rho = 1 this makes room for 2**15 units.
_INFLATION: Final = 2.0**-30


@dataclass(frozen=True)
class PowerCost:
    """A cost of (c / s)^p 2^b units.

    Attributes:
        power: p, 1 or 2.
        bits: b.
        kinds: the mechanisms that have such a cost.
    """

    power: Literal[1, 2]
    bits: int
    kinds: tuple[type[Mechanism], ...]

    def units(self, mechanism: Mechanism, norms: npt.ArrayLike) -> IntArray:
        """Return ceil((c / s)^p 2^b) of each norm, exactly; it saturates at `MAX_COST_UNITS`.

        `norms`: shape (n,), finite, >= 0.
        """
        scale, vector = noise_scale(mechanism, self.kinds), norm_vector("norms", norms)
        return ratio_ceil(vector, scale, self.bits, MAX_COST_UNITS, self.power)

    def norms_within(self, mechanism: Mechanism, units: IntArray) -> FloatArray:
        """Return the largest norms, shape (n,), that cost at most `units` in exact arithmetic.

        They are at most a relative 2**-49 too small, and the same bits on every machine.
        """
        ratios = units.astype(np.float64) * math.ldexp(1.0, -self.bits)
        if self.power == 2:
            np.sqrt(ratios, out=ratios)
        norms = np.asarray(ratios * _SHAVE * noise_scale(mechanism, self.kinds))
        norms[norms < _SMALLEST_NORM] = 0.0
        return norms


ZCDP: Final = PowerCost(2, UNIT_BITS - 1, UNSAMPLED)
GDP: Final = PowerCost(2, UNIT_BITS, (Gaussian,))
PURE: Final = PowerCost(1, UNIT_BITS, (Laplace, PureDP))


def units_at_orders(units: IntArray, orders: FloatArray) -> IntArray:
    """Return min(ceil(order * units), MAX_COST_UNITS), exactly; shape (n, k).

    Args:
        units: charges in zCDP, shape (n,), 0 to `MAX_COST_UNITS`; saturated ones stay saturated.
        orders: shape (k,), above 1, at most 2**40.
    """
    tops, shifts = _binary_fractions(orders)
    if units.size and int(units.max()) * int(tops.max()) < MAX_COST_UNITS:  # usual: short orders
        product = units[:, np.newaxis] * tops
        if shifts.any():
            product += (1 << shifts) - 1
            product >>= shifts
        return product
    estimate = units.astype(np.float64)[:, np.newaxis] * orders
    # The estimate is off by at most 2**10 units. The next float64 above the limit is off by as much
    # from it, so the product is not below the limit there.
    saturated = estimate > float(MAX_COST_UNITS)
    np.minimum(estimate, float(MAX_COST_UNITS), out=estimate)
    whole: IntArray = estimate.astype(np.int64)
    # Elsewhere the rest is below 2**63 although its terms are not: int64 wraps, and their
    # difference is exact. Floating point would need the product's rounding error, and Python's
    # integers above 2**53 units.
    rest = whole * (1 << shifts)
    rest -= np.multiply(units[:, np.newaxis], tops, out=estimate.view(np.int64))  # no new memory
    rest >>= shifts
    whole -= rest
    np.minimum(whole, MAX_COST_UNITS, out=whole)
    np.copyto(whole, MAX_COST_UNITS, where=saturated)
    return whole


def units_within_orders(limits: IntArray, orders: FloatArray) -> IntArray:
    """Return the largest z with ceil(order * z) <= limit, that is floor(limit / order), exactly.

    Args:
        limits: shape (n, k), 0 to `MAX_COST_UNITS`.
        orders: shape (k,), above 1, at most 2**40.

    Returns:
        Units of zCDP, shape (n, k).
    """
    tops, shifts = _binary_fractions(orders)
    whole = (limits / orders).astype(np.int64)
    rest = limits * (1 << shifts) - whole * tops  # wraps: see `units_at_orders`
    return np.asarray(whole + rest // tops)


def _binary_fractions(orders: FloatArray) -> tuple[IntArray, IntArray]:
    """Return (m, s) with order == m / 2**s, m below 2**53, s from 0 to 52."""
    ratios = [order.as_integer_ratio() for order in orders.tolist()]
    tops = np.array([top for top, _ in ratios], dtype=np.int64)
    return tops, np.array([bottom.bit_length() - 1 for _, bottom in ratios], dtype=np.int64)


def noise_for_norm_budget(norm_budget: float, rho: float) -> float:
    """Return the standard deviation s at which a sum of c^2 of `norm_budget` costs `rho`.

    s = sqrt(norm_budget / (2 rho)) (Feldman and Zrnic, Cor. 4.7): any number of linear queries,
    each answered with Gaussian noise of this absolute standard deviation, is rho-zCDP if the
    squared norms that a user contributes sum to at most `norm_budget`.

    Args:
        norm_budget: the budget in squared units of the norms, > 0.
        rho: the cost in nats, from one unit to the largest budget.

    Returns:
        s, inflated by 2**-30 (by 2**-30 / rho if rho < 1): each charge is rounded up to a unit of
        2**-44 nats, and up to 2**15 contributions whose squares sum to exactly `norm_budget`
        still fit.
    """
    budget = positive_finite("norm_budget", norm_budget)
    kappa = positive_finite("rho", rho)
    if not 2.0**-UNIT_BITS <= kappa <= 2.0**-UNIT_BITS * MAX_BUDGET_UNITS:
        raise InvalidInput("rho", rho, "a budget: from 2**-44 to 131072 nats")
    # The root of the quotient would lose a budget among the smallest numbers.
    return math.sqrt(budget) / math.sqrt(2.0 * kappa) * (1.0 + _INFLATION / min(kappa, 1.0))
