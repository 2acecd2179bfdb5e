"""Answer the revenue of every day of a shop, under three accountings with the same guarantee.

The service answers under individual accounting, exactly as ``turnstile answer --input`` does: the
demo writes a file of purchases and a file with one query, and leaves both for the reader. Charges
do not depend on the noise, so the service runs once, and the error is that of several noise seeds.
The baselines need no service: their sums and noise are drawn here.

A seed makes the figures reproducible and hides nothing. Outside of this demo the noise comes from
the operating system.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streams.answerer.event_file import EventFile
from streams.answerer.journal import Journal
from streams.answerer.published_answers import AnswerRecord, PrivateAnswer
from streams.answerer.query_file import QueryFile, read_query_file
from streams.answerer.window_answering import Answering, answer_file
from streams.demo.purchases import Purchases
from streams.demo.revenue_plans import (
    ACCOUNTINGS,
    DELTA,
    EPSILON,
    Accounting,
    TrainingPlan,
    best_plan,
    contributions,
    errors,
)
from streams.sdk.client import Turnstile

Progress: TypeAlias = Callable[[], object]
"""Called after each day that the service has decided."""

RUN: Final = "daily"
CAPS: Final = (*range(10, 30, 5), *range(30, 120, 10), *range(120, 201, 20))
"""The grid of caps, in dollars."""

_QUERIES: Final = """\
# The revenue of every day. All answers together give each customer one guarantee.
dataset = "{dataset}"
run = "{run}"
confidence = 0.95

[input]
user = "customer"
users = "integer"
time = "day"
start = {start}
end = {end}
clock = "events"

[[query]]
name = "revenue"
kind = "sum"
column = "dollars"
window = "1d"
each = {cap}  # dollars: the largest contribution of a customer to a day
active_windows = {active_days}  # on this many days a customer can contribute that much
"""


@dataclass(frozen=True, eq=False)
class DailyAnswers:
    """The answers under one accounting.

    Attributes:
        plan: the accounting and its parameters.
        noise_stddev: the standard deviation of the noise in every answer.
        values: (days,), the answers with the noise of the first seed.
        errors: the root mean square error for each noise seed.
    """

    plan: TrainingPlan
    noise_stddev: float
    values: NDArray[np.float64]
    errors: list[float]


@dataclass(frozen=True, eq=False)
class RevenueResult:
    """The daily revenue of a shop: the truth, and the answers under each of ACCOUNTINGS.

    Attributes:
        purchases: the data.
        answers: by accounting.
        charged: the work of the service under individual accounting. ``admitted`` and ``halted``
            count contributions, and ``halt_events`` and ``odometer_records`` what Kafka has.
        queries: the file with the query.
        events: the file with the purchases.
    """

    purchases: Purchases
    answers: dict[Accounting, DailyAnswers]
    charged: dict[str, Any]
    queries: Path
    events: Path

    @property
    def gain(self) -> str:
        """The change of the error by individual accounting, in words."""
        error = {name: mean(answers.errors) for name, answers in self.answers.items()}
        bounding, worst, whole = (
            f"{abs(change):.0%} {'less' if change > 0.0 else 'more'}"
            for baseline in ("contribution bounding", "worst case", "whole vector")
            for change in [1.0 - error["individual"] / error[baseline]]
        )
        return (
            f"{bounding} error than contribution bounding and {worst} than the worst case;\n"
            f"{whole} than the whole vector, which needs all days first"
        )

    @property
    def less_than_bounding(self) -> list[float]:
        """The error of individual accounting less that of contribution bounding, by noise seed."""
        ours, theirs = self.answers["individual"], self.answers["contribution bounding"]
        return [one - other for one, other in zip(ours.errors, theirs.errors, strict=True)]

    @property
    def dates(self) -> list[date]:
        """The date of each day."""
        first = self.purchases.first_day
        return [first + timedelta(day) for day in range(self.purchases.days)]


def answer_revenue(
    turnstile: Turnstile,
    dataset: str,
    open_journal: Callable[[str], Journal],
    purchases: Purchases,
    folder: Path,
    *,
    seeds: int,
    progress: Progress,
) -> RevenueResult:
    """Answer the revenue of every day on a new dataset.

    Args:
        turnstile: the service.
        dataset: the name of the dataset to create.
        open_journal: opens the journal of a dataset.
        purchases: the data.
        folder: for the files of the query and the purchases.
        seeds: number of noise seeds.
        progress: called after every day.
    """
    plans = {accounting: best_plan(purchases, accounting, CAPS) for accounting in ACCOUNTINGS}
    answers = {name: _baseline(purchases, plan, seeds) for name, plan in plans.items()}
    plan = plans["individual"]
    turnstile.create_dataset(
        dataset,
        measure="gdp",
        epsilon=EPSILON,
        delta=DELTA,
        on_exhaustion="clip",
        user_ids="integer",
    )
    queries, events = folder / "revenue-queries.toml", folder / "purchases.csv"
    query_file = write_queries(dataset, purchases, plan, queries)
    write_events(purchases, events)
    file = EventFile(events, query_file)
    values, sums = np.zeros((2, purchases.days))
    admitted = halted = 0
    noise_stddev = 0.0

    def record(answer: AnswerRecord) -> None:
        nonlocal admitted, halted, noise_stddev
        charge = answering.last_charge
        assert charge is not None
        assert isinstance(answer, PrivateAnswer)
        assert isinstance(answer.value, float)
        values[answer.step], noise_stddev = answer.value, answer.noise_stddev
        sums[answer.step] = charge.decision.granted.sum()
        taken = int(np.count_nonzero(charge.decision.admitted))
        admitted, halted = admitted + taken, halted + len(charge.users) - taken
        progress()

    began = perf_counter()
    with closing(open_journal(dataset)) as journal:
        answering = Answering(
            query_file,
            file.source,
            lambda released: turnstile.run(dataset, RUN, released=released),
            journal,
            record,
            noise=np.random.default_rng(1),
        )
        answer_file(answering, file)
    seconds = perf_counter() - began
    answers["individual"] = DailyAnswers(
        plan, noise_stddev, values, errors(sums, purchases, noise_stddev, seeds)
    )
    charged = {
        "dataset": dataset,
        "steps": purchases.days,
        "admitted": admitted,
        "halted": halted,
        "halt_events": sum(1 for _ in turnstile.halts(dataset, follow=False)),
        "odometer_records": sum(1 for _ in turnstile.odometer(dataset, follow=False)),
        "seconds": seconds,
    }
    return RevenueResult(purchases, answers, charged, queries, events)


def write_queries(dataset: str, purchases: Purchases, plan: TrainingPlan, path: Path) -> QueryFile:
    """Write the file with the query and read it, as ``turnstile answer`` does."""
    text = _QUERIES.format(
        dataset=dataset,
        run=RUN,
        start=purchases.first_day.isoformat(),
        end=(purchases.first_day + timedelta(purchases.days)).isoformat(),
        cap=plan.cap,
        active_days=plan.active_days,
    )
    path.write_text(text, encoding="utf-8")
    return read_query_file(path)


def write_events(purchases: Purchases, path: Path) -> None:
    """Write a line for each purchase, in the order of days."""
    first, order = purchases.first_day, np.argsort(purchases.day, kind="stable")
    columns = (purchases.customers, purchases.day, purchases.values)
    with path.open("w", newline="", encoding="ascii") as lines:
        out = csv.writer(lines, lineterminator="\n")
        out.writerow(["customer", "day", "dollars"])
        for customer, day, dollars in zip(*(c[order].tolist() for c in columns), strict=True):
            out.writerow([customer, (first + timedelta(day)).isoformat(), f"{dollars:.2f}"])


def _baseline(purchases: Purchases, plan: TrainingPlan, seeds: int) -> DailyAnswers:
    sums = purchases.sum_by_day(contributions(purchases, plan))
    noise = np.random.default_rng(1).normal(0.0, plan.noise_stddev, len(sums))
    found = errors(sums, purchases, plan.noise_stddev, seeds)
    return DailyAnswers(plan, plan.noise_stddev, sums + noise, found)
