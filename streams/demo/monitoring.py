"""Continual monitoring (Feldman and Zrnic, section 4.2): how many customers bought today?

The answerer answers, as ``turnstile answer --input`` does: the demo writes the events and the file
of one query, and leaves both there. One query a day, "did this customer buy", answered with noise
under one budget for the whole time. A customer pays on the days on which it buys and on no other,
so the queries can go on for ever. Worst-case accounting charges everyone every day. With the same
noise it must stop after k0 = floor(norm_budget) days; for as many days it needs
sqrt(days / norm_budget) times the noise. Not compared is contribution bounding, which counts each
customer on the first ``norm_budget`` days of buying. For a count its answers are the same.

The answers have a bias that the noise does not: who has bought on ``norm_budget`` days counts no
more. The best customers are the first to go, so few who have gone are many of a later day's buyers.
How many is itself a function of the data; here, where the data are public, it is told.

As in the training, the noise comes from a seed so that the figures can be reproduced. Answers to
real questions keep the generator that ``QueryAnswerer`` makes for itself.
"""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import NormalDist
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from accounting import noise_for_norm_budget, zcdp_cost
from accounting.costs.mechanisms import Gaussian
from streams.answerer.answering import Answering, Open
from streams.answerer.files import EventFile, answer_file
from streams.answerer.journal import Journal
from streams.answerer.questions import Questions, questions_of
from streams.answerer.records import PrivateAnswer
from streams.demo.purchases import Purchases
from streams.demo.training import Guarantee, Progress, worst_case_steps


@dataclass(frozen=True)
class Settings(Guarantee):
    """On how many days of buying a customer counts."""

    norm_budget: int


CDNOW: Final = Settings(epsilon=1.0, delta=1e-5, norm_budget=20)
RUN: Final = "daily"
_CONFIDENCE: Final = 0.95
_QUERIES: Final = """\
# How many customers bought today? Asked of every day, under one guarantee a customer.
dataset = "{dataset}"
run = "{run}"
confidence = {confidence}

[input]
user = "customer"
users = "integer"
time = "day"
start = {start}
clock = "events"

[[query]]
name = "buyers"
kind = "distinct"
window = "1d"
active_windows = {norm_budget}    # a customer counts on so many days of buying
"""


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
        same_noise: (k0,), what it would have answered.
        equal_days: (days,), what it answers to as many days, with ``noise_stddev_equal_days``.
        error_bound: of one answer against ``admitted``, with probability 95 %.
        seconds: spent on all of it.
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
    same_noise: NDArray[np.float64]
    equal_days: NDArray[np.float64]
    error_bound: float
    seconds: float

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
    def mean_error_same_noise(self) -> float:
        """Mean distance from the truth of the worst case, on the days before it stops."""
        return float(np.abs(self.same_noise - self.buyers[: self.k0]).mean())

    @property
    def mean_error_equal_days(self) -> float:
        """Mean distance from the truth of the worst case of as many days; nobody is missing."""
        return float(np.abs(self.equal_days - self.buyers).mean())


def write_queries(dataset: str, purchases: Purchases, settings: Settings, path: Path) -> Questions:
    """Write what is asked, as ``turnstile answer`` reads it."""
    text = _QUERIES.format(
        dataset=dataset,
        run=RUN,
        confidence=_CONFIDENCE,
        start=purchases.first_day.isoformat(),
        norm_budget=settings.norm_budget,
    )
    path.write_text(text, encoding="utf-8")
    return questions_of(tomllib.loads(text))


def write_events(purchases: Purchases, path: Path) -> None:
    """Write a line for each customer and day, in the order of days."""
    with path.open("w", newline="", encoding="ascii") as lines:
        out = csv.writer(lines, lineterminator="\n")
        out.writerow(["customer", "day"])
        for day, buyers in enumerate(purchases.buyers):
            when = (purchases.first_day + timedelta(day)).isoformat()
            out.writerows((buyer, when) for buyer in buyers.tolist())


def monitor_daily(
    open_run: Open,
    journal: Journal,
    questions: Questions,
    events: Path,
    purchases: Purchases,
    settings: Settings,
    *,
    seed: int,
    progress: Progress,
) -> MonitoringResult:
    """Have every day answered, on a fresh dataset with budget ``settings.rho`` that halts.

    Args:
        open_run: opens the run.
        journal: of it.
        questions: as ``write_queries`` wrote them.
        events: the same, by ``write_events``.
        purchases: what is in them.
        settings: the guarantee.
        seed: of the noise.
        progress: told how many days are answered, of how many.
    """
    days = len(purchases.buyers)
    answers = np.zeros(days)
    admitted, active = np.zeros((2, days), dtype=np.int64)
    everyone = np.unique(np.concatenate(purchases.buyers))
    days_counted = np.zeros(len(everyone), dtype=np.int64)
    noise_stddev = 0.0

    def answered(answer: PrivateAnswer) -> None:
        nonlocal noise_stddev
        charge, day = answering.last_charge, answer.step
        assert charge is not None
        assert isinstance(answer.value, float)
        answers[day], noise_stddev = answer.value, answer.noise_stddev
        places = np.searchsorted(everyone, np.asarray(charge.users, dtype=np.int64))
        days_counted[places] += charge.decision.admitted
        admitted[day] = np.count_nonzero(charge.decision.admitted)
        active[day] = np.count_nonzero(days_counted < settings.norm_budget)
        progress(day + 1, days)

    began, file = perf_counter(), EventFile(events, questions)
    noise = np.random.default_rng(seed)
    answering = Answering(
        questions, file.source, open_run, journal, answered, text=file.text, noise=noise
    )
    answer_file(answering, file)
    buyers = np.array([len(buyers) for buyers in purchases.buyers])
    k0 = min(worst_case_steps(1.0, noise_stddev, settings.rho), days)
    of_worst_case = np.random.default_rng([seed, 1])
    more = noise_for_norm_budget(days, settings.rho)
    return MonitoringResult(
        purchases=purchases,
        settings=settings,
        answers=answers,
        buyers=buyers,
        admitted=admitted,
        active=active,
        spent=zcdp_cost(Gaussian(noise_stddev), np.sqrt(days_counted)),
        noise_stddev=noise_stddev,
        k0=k0,
        same_noise=buyers[:k0] + of_worst_case.normal(0.0, noise_stddev, k0),
        equal_days=buyers + of_worst_case.normal(0.0, more, days),
        error_bound=noise_stddev * NormalDist().inv_cdf((1.0 + _CONFIDENCE) / 2.0),
        seconds=perf_counter() - began,
    )
