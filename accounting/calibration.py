"""Noise for a given guarantee."""

from __future__ import annotations

import math
from typing import Final

from accounting.errors import InvalidInput
from accounting.units import MAX_BUDGET_UNITS, UNIT_BITS
from accounting.validation import positive_finite

# At rho = 1 this makes room for 2**15 units.
_INFLATION: Final = 2.0**-30


def noise_for_norm_budget(norm_budget: float, rho: float) -> float:
    """Return the standard deviation s at which a sum of c^2 of `norm_budget` costs `rho`.

    s = sqrt(norm_budget / (2 rho)) (Feldman and Zrnic, Cor. 4.7): any number of linear queries,
    each answered with Gaussian noise of this absolute standard deviation, is rho-zCDP if the
    squared norms that a user contributes sum to at most `norm_budget`. `norm_budget`: in the
    squared units of the norms, > 0; `rho`: in nats, from one unit to the largest budget. Raises
    `InvalidInput` outside.

    s is inflated by 2**-30 (by 2**-30 / rho if rho < 1): each charge is rounded up to a unit of
    2**-44 nats, and up to 2**15 contributions whose squares sum to exactly `norm_budget` still fit.
    """
    budget = positive_finite("norm_budget", norm_budget)
    kappa = positive_finite("rho", rho)
    if not 2.0**-UNIT_BITS <= kappa <= 2.0**-UNIT_BITS * MAX_BUDGET_UNITS:
        raise InvalidInput("rho", rho, "a budget: from 2**-44 to 131072 nats")
    return math.sqrt(budget / (2.0 * kappa)) * (1.0 + _INFLATION / min(kappa, 1.0))
