"""Daily totals of the CDNOW purchase log: individual accounting and two baselines.

Each of the 546 days has one answer: the total of the customers' contributions on that day, plus
Gaussian noise. A contribution is at most the cap. The three ways of accounting give every customer
the same (epsilon, delta), as mu-GDP of all answers together:

- worst case: every customer is charged the cap on every day;
- contribution bounding: a customer counts on the first few days with a purchase, and is charged
  the cap on each of them;
- individual: a customer is charged that customer's own contribution, and counts until the sum of
  squares reaches a few squared caps.

With "a few" called days, the noise is sqrt(days) cap / mu. Each way has the cap and the days with
the least expected error on a grid. For all three, that choice looks at the data and is not charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting import gdp_budget
from streams import Turnstile

EPSILON, DELTA = 1.0, 1e-5
WAYS = ("worst case", "contribution bounding", "individual")
CAPS = {
    "revenue": (10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 140, 160, 180, 200),
    "CDs": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12),
    "buyers": (1,),
}
"""The grid of caps for each total: dollars, CDs, and 1 for each buyer."""
DAYS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 25, 30)
"""The grid of days on which a customer counts, or of squared caps that a customer has."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Totals:
    """What customers contribute to the total of each day.

    Attributes:
        days: for each day, the customers (n,) with a purchase and their values (n,).
        customers: how many there are.
    """

    days: list[tuple[NDArray[np.int64], Floats]]
    customers: int

    @property
    def truth(self) -> Floats:
        """The total of every day, without a cap."""
        return np.array([values.sum() for _, values in self.days])


@dataclass(frozen=True)
class Plan:
    """One way of accounting, with its parameters."""

    way: str
    cap: float
    days: int

    @property
    def noise_stddev(self) -> float:
        """Of every answer, for (EPSILON, DELTA) of a customer."""
        return math.sqrt(self.days) * self.cap / gdp_budget(EPSILON, DELTA)


def load(path: Path, total: str) -> Totals:
    """Read ``CDNOW_master.txt`` for one of the totals in CAPS."""
    rows = [line.split() for line in path.read_text(encoding="ascii").splitlines()[1:]]
    by_day: dict[date, dict[int, float]] = {}
    for customer, day, discs, dollars in filter(None, rows):
        value = {"revenue": float(dollars), "CDs": float(discs), "buyers": 0.0}[total]
        of_day = by_day.setdefault(datetime.strptime(day, "%Y%m%d").date(), {})
        of_day[int(customer)] = of_day.get(int(customer), 0.0) + value
    days = [(np.array([*by_day[day]]), np.array([*by_day[day].values()])) for day in sorted(by_day)]
    if total == "buyers":
        days = [(who, np.ones(len(who))) for who, _ in days]
    return Totals(days, 1 + max(int(who.max()) for who, _ in days))


def admitted(totals: Totals, plan: Plan) -> Iterator[Floats]:
    """Yield what customers (n,) contribute to each day."""
    spent = np.zeros(totals.customers)  # squared caps
    for who, values in totals.days:
        capped = np.minimum(values, plan.cap) / plan.cap
        left = np.maximum(plan.days - spent[who], 0.0)
        if plan.way == "individual":
            granted = np.minimum(capped, np.sqrt(left))
            spent[who] += granted**2
        else:
            granted = capped * (left > 0.0)
            spent[who] += 1.0
        yield granted * plan.cap


def expected_error(totals: Totals, plan: Plan) -> float:
    """Return the root mean square error of a day's answer, over days and noise."""
    sums = np.array([granted.sum() for granted in admitted(totals, plan)])
    bias = sums - totals.truth
    return math.sqrt(float(np.mean(bias**2)) + plan.noise_stddev**2)


def best(totals: Totals, way: str, caps: Sequence[float]) -> Plan:
    """Return the plan of least expected error on the grid."""
    days = (len(totals.days),) if way == "worst case" else DAYS
    plans = [Plan(way, cap, number) for cap, number in product(caps, days)]
    return min(plans, key=lambda plan: expected_error(totals, plan))


def charged(totals: Totals, plan: Plan) -> Floats:
    """Return the sum of every day that the service admits under individual accounting."""
    service = Turnstile.in_memory(partitions=1)
    service.create_dataset(
        "cdnow", measure="gdp", epsilon=EPSILON, delta=DELTA, on_exhaustion="clip"
    )
    run = service.run("cdnow", "daily")
    sums = []
    for who, values in totals.days:
        norms = np.minimum(values, plan.cap)
        decision = run.charge(who, norms, noise_stddev=plan.noise_stddev, clip_norm=plan.cap)
        sums.append(float(decision.granted.sum()))
    return np.array(sums)


def errors(totals: Totals, plan: Plan, seeds: int) -> Floats:
    """Return the root mean square error over the days for each noise seed, (seeds,)."""
    if plan.way == "individual":
        sums = charged(totals, plan)
    else:
        sums = np.array([granted.sum() for granted in admitted(totals, plan)])
    bias = sums - totals.truth
    noises = (np.random.default_rng(seed) for seed in range(1, seeds + 1))
    answers = (bias + noise.normal(0.0, plan.noise_stddev, len(bias)) for noise in noises)
    return np.array([math.sqrt(np.mean(answer**2)) for answer in answers])
