"""Continual monitoring (Feldman and Zrnic, section 4.2): how many customers bought today?

One query a day, "did this customer buy", answered with noise under one budget for the whole time.
A customer pays on the days on which it buys and on no other, so the queries can go on for ever.
Worst-case accounting charges everyone every day. With the same noise it must stop after
k0 = floor(norm_budget) days; for as many days it needs sqrt(days / norm_budget) times the noise.

The answers have a bias that the noise does not: who has bought on ``norm_budget`` days counts no
more. The best customers are the first to go, so few who have gone are many of a later day's buyers.
How many is itself a function of the data; here, where the data are public, it is told.

As in the training, the noise comes from a seed so that the figures can be reproduced. Answers to
real questions keep the generator that ``QueryAnswerer`` makes for itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from accounting import noise_for_norm_budget, zcdp_cost
from accounting.costs.mechanisms import Gaussian
from streams.demo.purchases import Purchases
from streams.demo.training import Guarantee, Progress, worst_case_steps
from streams.queries.answerer import QueryAnswerer
from streams.sdk.run import Run


@dataclass(frozen=True)
class Settings(Guarantee):
    """On how many days of buying a customer counts."""

    norm_budget: int


CDNOW: Final = Settings(epsilon=1.0, delta=1e-5, norm_budget=20)


@dataclass(frozen=True, eq=False)
class MonitoringResult:
    """The days, as they were and as they were told. All but ``answers`` is sensitive.

    Attributes:
        answers: (days,), the private number of buyers.
        buyers: (days,), the true one.
        admitted: (days,), buyers who were counted.
        active: (days,), customers who could be counted once more after the day.
        spent: (customers,), zCDP that each customer spent.
        noise_stddev: of each answer.
        k0: days that worst-case accounting could have answered with the same noise.
        error_bound: of one answer against ``admitted``, with probability 95 %.
        charge_seconds: spent on charges and answers.
    """

    purchases: Purchases
    settings: Settings
    answers: NDArray[np.float64]
    buyers: NDArray[np.int64]
    admitted: NDArray[np.int64]
    active: NDArray[np.int64]
    spent: NDArray[np.float64]
    noise_stddev: float
    k0: int
    error_bound: float
    charge_seconds: float

    @property
    def mean_error(self) -> float:
        """Mean distance of an answer from the true number of buyers."""
        return float(np.abs(self.answers - self.buyers).mean())

    @property
    def mean_missing(self) -> float:
        """Buyers a day who were not counted because they had run out."""
        return float((self.buyers - self.admitted).mean())

    @property
    def missing_by_year(self) -> dict[int, float]:
        """Of all buyers of a year's days, the share that was not counted."""
        first = self.purchases.first_day
        years = np.array([(first + timedelta(day)).year for day in range(len(self.buyers))])
        return {
            int(year): float(1.0 - self.admitted[years == year].sum() / buyers)
            for year in np.unique(years)
            if (buyers := self.buyers[years == year].sum())
        }

    @property
    def noise_stddev_equal_days(self) -> float:
        """What worst-case accounting needs for as many days under the same budget."""
        return noise_for_norm_budget(len(self.answers), self.settings.rho)

    @property
    def mean_error_equal_days(self) -> float:
        """Mean distance from the truth that such noise makes; nobody would be missing."""
        return self.noise_stddev_equal_days * math.sqrt(2.0 / math.pi)


def monitor_daily(
    run: Run, purchases: Purchases, settings: Settings, *, seed: int, progress: Progress
) -> MonitoringResult:
    """Ask every day, on a run of a fresh dataset with budget ``settings.rho`` that halts."""
    answerer = QueryAnswerer.calibrated(
        run,
        norm_budget=settings.norm_budget,
        rho=settings.rho,
        clip_norm=1.0,
        noise=np.random.default_rng(seed),
    )
    days = len(purchases.buyers)
    answers = np.zeros(days)
    admitted, active = np.zeros((2, days), dtype=np.int64)
    everyone = np.unique(np.concatenate(purchases.buyers))
    days_counted = np.zeros(len(everyone), dtype=np.int64)
    charging = 0.0
    for day, buyers in enumerate(purchases.buyers):
        began = perf_counter()
        release = answerer.answer(buyers, np.ones(len(buyers)))
        charging += perf_counter() - began
        answers[day] = release.value
        charge = answerer.last_charge
        assert charge is not None
        places = np.searchsorted(everyone, np.asarray(charge.users))
        days_counted[places] += charge.decision.admitted
        admitted[day] = np.count_nonzero(charge.decision.admitted)
        active[day] = np.count_nonzero(days_counted < settings.norm_budget)
        progress(day + 1, days)
    return MonitoringResult(
        purchases=purchases,
        settings=settings,
        answers=answers,
        buyers=np.array([len(buyers) for buyers in purchases.buyers]),
        admitted=admitted,
        active=active,
        spent=zcdp_cost(Gaussian(answerer.noise_stddev), np.sqrt(days_counted)),
        noise_stddev=answerer.noise_stddev,
        k0=worst_case_steps(1.0, answerer.noise_stddev, settings.rho),
        error_bound=answerer.error_bound(0.05),
        charge_seconds=charging,
    )
