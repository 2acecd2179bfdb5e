"""The risk that a test for the user's presence succeeds, for a realised history.

`accounting.conversions.risk` has the bounds that follow from one point of the curve of (epsilon,
delta). The least bound over several points counts. The bounds hold in both directions.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.conversions.risk import risk_bounds
from accounting.exact.argument_checks import FloatArray, probability
from accounting.reports.accountant import Method, ReportAccountant

_LARGE_DELTAS: Final = (0.1, 0.3)  # for the risk of users who have lost much


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
    rate, _ = risk_bounds(np.zeros_like(at_zero), at_zero, alpha)
    for delta in {alpha / 5.0, min(2.0 * alpha, 0.99), *_LARGE_DELTAS}:
        epsilon = np.asarray(accountant.epsilon(counts, delta, method))
        found, _ = risk_bounds(epsilon, np.full_like(epsilon, delta), alpha)
        rate = np.minimum(rate, found)
    return MembershipRisk(np.where(at_zero > 0.0, rate, alpha), at_zero)
