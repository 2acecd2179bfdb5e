"""Costs that grow with the square of the norm: those of zCDP and Gaussian DP.

A step of norm c with noise of scale s costs (c / s)^2 2^b units, a rational number. The charge is
its ceiling, and a filter can decide on the last unit exactly.

    ZCDP   rho = (c / s)^2 / 2        b = 43    Gaussian, Laplace, PureDP
    GDP    mu squared = (c / s)^2     b = 44    Gaussian

Neighbouring datasets differ by adding or removing one user. The inverse
functions, from units to the norm that they pay for and from a budget to the noise, round against
the spender.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import Mechanism, gaussian_stddev, noise_scale
from accounting.exact.errors import InvalidInput
from accounting.exact.products import checked_square_ratio_ceil
from accounting.exact.rounding import DOWN, UP
from accounting.exact.units import MAX_BUDGET_UNITS, MAX_COST_UNITS, UNIT_BITS
from accounting.exact.validation import FloatArray, IntArray, norm_vector, positive_finite

# The norm within a budget is a square root rounded three times, each within a relative 2**-53.
# 2**-50 keeps it below the exact root, and 2**-1000 keeps it out of the subnormal range.
_SHAVE: Final = 1.0 - 2.0**-50
_SMALLEST_NORM: Final = 2.0**-1000
# At rho = 1 this makes room for 2**15 units.
_INFLATION: Final = 2.0**-30


@dataclass(frozen=True)
class QuadraticCost:
    """A cost of (c / s)^2 2^b units.

    Attributes:
        bits: b.
        scale_of: returns s of a mechanism, or raises `InvalidInput` if it has none.
    """

    bits: int
    scale_of: Callable[[Mechanism], float]

    def units(self, mechanism: Mechanism, norms: npt.ArrayLike) -> IntArray:
        """Return ceil((c / s)^2 2^b) of each norm, exactly.

        Args:
            mechanism: the step.
            norms: shape (n,), finite, >= 0.

        Returns:
            Shape (n,); saturates at `MAX_COST_UNITS`.
        """
        scale, vector = self.scale_of(mechanism), norm_vector("norms", norms)
        return checked_square_ratio_ceil(vector, scale, self.bits, MAX_COST_UNITS)

    def exact_units(self, mechanism: Mechanism, norm: float) -> Fraction:
        """Return the exact cost, of which `units` is the ceiling unless it saturates."""
        ratio = Fraction(norm) / Fraction(self.scale_of(mechanism))
        return ratio * ratio * Fraction(2**self.bits)

    def norms_within(self, mechanism: Mechanism, units: IntArray) -> FloatArray:
        """Return the largest norms, shape (n,), that cost at most `units` in exact arithmetic.

        They are at most a relative 2**-49 too small, and the same bits on every machine.
        """
        roots = np.sqrt(units.astype(np.float64) * math.ldexp(1.0, -self.bits)) * _SHAVE
        norms = np.asarray(roots * self.scale_of(mechanism))
        norms[norms < _SMALLEST_NORM] = 0.0
        return norms


ZCDP: Final = QuadraticCost(UNIT_BITS - 1, noise_scale)
GDP: Final = QuadraticCost(UNIT_BITS, gaussian_stddev)


def noise_for_norm_budget(norm_budget: float, rho: float) -> float:
    """Return the standard deviation s at which a sum of c^2 of `norm_budget` costs `rho`.

    s = sqrt(norm_budget / (2 rho)) (Feldman and Zrnic, Cor. 4.7): any number of linear queries,
    each answered with Gaussian noise of this absolute standard deviation, is rho-zCDP if the
    squared norms that a user contributes sum to at most `norm_budget`.

    Args:
        norm_budget: in the squared units of the norms, > 0, rounded up.
        rho: in nats, from one unit to the largest budget, rounded down.

    Returns:
        s, inflated by 2**-30 (by 2**-30 / rho if rho < 1): each charge is rounded up to a unit of
        2**-44 nats, and up to 2**15 contributions whose squares sum to exactly `norm_budget`
        still fit.
    """
    budget = positive_finite("norm_budget", norm_budget, UP)
    kappa = positive_finite("rho", rho, DOWN)
    if not 2.0**-UNIT_BITS <= kappa <= 2.0**-UNIT_BITS * MAX_BUDGET_UNITS:
        raise InvalidInput("rho", rho, "a budget: from 2**-44 to 131072 nats")
    # The root of the quotient would lose a budget among the smallest numbers.
    return math.sqrt(budget) / math.sqrt(2.0 * kappa) * (1.0 + _INFLATION / min(kappa, 1.0))
