"""Four ways to answer a daily total with noise, each giving every customer the same guarantee.

Every answer is the total of the customers' contributions to a day, plus Gaussian noise. A
contribution is at most the cap. Under each accounting, all answers together are mu-Gaussian DP:

- worst case: every customer is charged the cap on every day;
- contribution bounding: a customer counts on the first few days with a purchase, and is charged the
  cap on each of them;
- whole vector: the contributions of a customer to all days are scaled together to the L2 norm of a
  few caps, and released once. It needs all days first, so it is for a file and not for a stream;
- individual: a customer is charged the square of that customer's own contributions, until their sum
  reaches a few squared caps; the last contribution is cut to what is left.

The noise has the standard deviation sqrt(active_days) cap / mu, where ``active_days`` is "a few".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting import gdp_budget
from streams.demo.purchases import Purchases

EPSILON, DELTA = 1.0, 1e-5

Accounting: TypeAlias = Literal["worst case", "contribution bounding", "whole vector", "individual"]
ACCOUNTINGS: Final[tuple[Accounting, ...]] = (
    "worst case",
    "contribution bounding",
    "whole vector",
    "individual",
)

_ACTIVE_DAYS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 25, 30)


@dataclass(frozen=True)
class TrainingPlan:
    """One accounting with its parameters.

    Attributes:
        cap: the largest contribution of a customer to a day.
        active_days: the number of days on which a customer can contribute the cap.
    """

    accounting: Accounting
    cap: float
    active_days: int

    @property
    def noise_stddev(self) -> float:
        """The standard deviation of the noise in every answer, for (EPSILON, DELTA)."""
        return math.sqrt(self.active_days) * self.cap / _mu()


def contributions(purchases: Purchases, plan: TrainingPlan) -> NDArray[np.float64]:
    """Return what the plan lets each purchase contribute, (n,)."""
    capped = np.minimum(purchases.values, plan.cap)
    if plan.accounting == "worst case":
        return capped
    if plan.accounting == "contribution bounding":
        earlier_days = _earlier(purchases.customers, np.ones(len(capped)))
        return np.where(earlier_days < plan.active_days, capped, 0.0)
    if plan.accounting == "whole vector":
        customers = np.unique(purchases.customers, return_inverse=True)[1]
        norms = np.sqrt(np.bincount(customers, capped**2))[customers]
        longest = math.sqrt(plan.active_days) * plan.cap
        return capped * (longest / np.maximum(norms, longest))
    left = plan.active_days - _earlier(purchases.customers, (capped / plan.cap) ** 2)
    return np.minimum(capped, plan.cap * np.sqrt(np.maximum(left, 0.0)))


def best_plan(purchases: Purchases, accounting: Accounting, caps: Sequence[float]) -> TrainingPlan:
    """Return the plan of least expected error on a grid of caps and active days.

    The choice looks at the data and is not charged, under any of the accountings.
    """
    days = (purchases.days,) if accounting == "worst case" else _ACTIVE_DAYS
    plans = [TrainingPlan(accounting, cap, number) for cap in caps for number in days]
    return min(plans, key=lambda plan: expected_error(purchases, plan))


def expected_error(purchases: Purchases, plan: TrainingPlan) -> float:
    """Return the expected root mean square error of a day's answer, over days and noise."""
    bias = purchases.sum_by_day(contributions(purchases, plan)) - purchases.totals
    return math.sqrt(float(np.mean(bias**2)) + plan.noise_stddev**2)


def errors(
    sums: NDArray[np.float64], purchases: Purchases, noise_stddev: float, seeds: int
) -> list[float]:
    """Return the root mean square error of noisy daily sums, for each of the seeds 1, 2, ..."""
    bias = sums - purchases.totals
    noise = (np.random.default_rng(seed) for seed in range(1, seeds + 1))
    return [
        float(np.sqrt(np.mean((bias + one.normal(0.0, noise_stddev, len(bias))) ** 2)))
        for one in noise
    ]


@cache
def _mu() -> float:
    """Return the mu of Gaussian DP that is (EPSILON, DELTA); a search that takes milliseconds."""
    return gdp_budget(EPSILON, DELTA)


def _earlier(customers: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each purchase, the sum of the same customer's earlier values, (n,)."""
    before = np.cumsum(values) - values
    first = np.flatnonzero(np.diff(customers, prepend=-1))
    return before - np.repeat(before[first], np.diff(first, append=len(customers)))
