"""Daily totals of the CDNOW purchase log, for the accountings of ``streams.demo.revenue_plans``.

Each of the 546 days has one answer: the total of the customers' contributions on that day, plus
Gaussian noise. For individual accounting the sums are those that the service admits.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from streams import Turnstile
from streams.demo.purchases import Purchases, load_purchases
from streams.demo.revenue import CAPS as DOLLARS
from streams.demo.revenue_plans import DELTA, EPSILON, TrainingPlan, contributions

CAPS = {"revenue": DOLLARS, "CDs": (*range(1, 11), 12), "buyers": (1,)}
"""The grid of caps for each total: dollars, CDs, and 1 for each buyer."""


def load(path: Path, total: str) -> Purchases:
    """Read ``CDNOW_master.txt`` for one of the totals in CAPS."""
    purchases = load_purchases(path, "CDs" if total == "CDs" else "dollars")
    if total == "buyers":
        return replace(purchases, values=np.ones(len(purchases.values)))
    return purchases


def sums(purchases: Purchases, plan: TrainingPlan) -> np.ndarray:
    """Return the sum of the contributions to every day."""
    if plan.accounting != "individual":
        return purchases.sum_by_day(contributions(purchases, plan))
    service = Turnstile.in_memory(partitions=1)
    service.create_dataset(
        "cdnow", measure="gdp", epsilon=EPSILON, delta=DELTA, on_exhaustion="clip"
    )
    run = service.run("cdnow", "daily")
    capped = np.minimum(purchases.values, plan.cap)
    charged = []
    for day in range(purchases.days):
        rows = purchases.day == day
        decision = run.charge(
            purchases.customers[rows],
            capped[rows],
            noise_stddev=plan.noise_stddev,
            clip_norm=plan.cap,
        )
        charged.append(float(decision.granted.sum()))
    return np.array(charged)
