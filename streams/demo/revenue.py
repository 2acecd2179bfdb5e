"""Answer the revenue of every day of a shop, under four accountings with the same guarantee.

The service answers under individual accounting, exactly as ``turnstile answer --input`` does: the
demo writes a file of purchases and a file with one query, and leaves both for the reader. Charges
do not depend on the noise, so the service runs once, and the error is that of several noise seeds.
The baselines need no service: their sums and noise are drawn here.

A seed makes the figures reproducible and hides nothing. Outside of this demo the noise comes from
the operating system.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streams.answerer.event_file import EventFile
from streams.answerer.event_input import EventInput
from streams.answerer.journal import Journal
from streams.answerer.published_answers import AnswerRecord, PrivateAnswer
from streams.answerer.query_file import read_query_file
from streams.answerer.window_answering import Answering, answer_input
from streams.demo.plots import DailyAnswers, plot_revenue
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

Summary: TypeAlias = dict[str, Any]
"""The figures of the demo, as ``turnstile demo --json`` prints them."""

CAPS: Final = (*range(10, 30, 5), *range(30, 120, 10), *range(120, 201, 20))
"""The grid of caps, in dollars."""

_QUERIES: Final = """\
# The revenue of every day. All answers together give each customer one guarantee.
dataset = "{dataset}"
run = "daily"
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


def compare_accountings(
    turnstile: Turnstile,
    dataset: str,
    journal: Journal,
    purchases: Purchases,
    folder: Path,
    *,
    seeds: int,
) -> Summary:
    """Answer the revenue of every day on a new dataset and under the baselines; draw the plot.

    Args:
        dataset: the name of the dataset to create.
        folder: for the plot and the files of the query and the purchases.
        seeds: number of noise seeds.
    """
    answers: dict[Accounting, DailyAnswers] = {}
    for accounting in ACCOUNTINGS:
        plan = best_plan(purchases, accounting, CAPS)
        if accounting == "individual":
            values, sums, service = _answered(turnstile, dataset, journal, purchases, plan, folder)
        else:
            sums = purchases.sum_by_day(contributions(purchases, plan))
            values = sums + np.random.default_rng(1).normal(0.0, plan.noise_stddev, len(sums))
        found = errors(sums, purchases, plan.noise_stddev, seeds)
        answers[accounting] = DailyAnswers(plan, values, found)
    ours, theirs = answers["individual"], answers["contribution bounding"]
    less = [one - other for one, other in zip(ours.errors, theirs.errors, strict=True)]
    gain = _gain({name: mean(found.errors) for name, found in answers.items()})
    average, *error = mean_and_error("", less).values()
    return {
        "title": f"Revenue per day of {purchases.name}",
        "data": purchases.name,
        "users": purchases.users,
        "steps": purchases.days,
        "revenue_per_day": float(purchases.totals.mean()),
        "epsilon": EPSILON,
        "delta": DELTA,
        "seeds": seeds,
        "results": [
            {
                "accounting": accounting,
                "cap": found.plan.cap,
                "active_days": found.plan.active_days,
                "noise_stddev": found.plan.noise_stddev,
                **mean_and_error("root_mean_square_error", found.errors),
            }
            for accounting, found in answers.items()
        ],
        **mean_and_error("individual_less_contribution_bounding", less),
        "finding": f"With individual accounting:\n{gain}.\n"
        "Individual accounting less contribution bounding, paired by noise seed:\n"
        f"{' ± '.join([f'{average:+,.1f}', *(f'{one:,.1f}' for one in error)])} dollars.",
        "service": service,
        "plot": str(plot_revenue(purchases, answers, gain, folder / "revenue.svg")),
    }


def mean_and_error(name: str, values: Iterable[float]) -> dict[str, float]:
    """Return the mean under a name, and its standard error if there are several values."""
    found = [float(value) for value in values]
    if len(found) == 1:
        return {name: found[0]}
    return {name: mean(found), f"{name}_standard_error": stdev(found) / len(found) ** 0.5}


def _gain(error: dict[Accounting, float]) -> str:
    """Return the changes of the error by individual accounting, in words."""
    bounding, worst, whole = (
        f"{abs(change):.0%} {'less' if change > 0.0 else 'more'}"
        for baseline in ("contribution bounding", "worst case", "whole vector")
        for change in [1.0 - error["individual"] / error[baseline]]
    )
    return (
        f"{bounding} error than contribution bounding and {worst} than the worst case;\n"
        f"{whole} than the whole vector, which needs all days first"
    )


def _answered(
    turnstile: Turnstile,
    dataset: str,
    journal: Journal,
    purchases: Purchases,
    plan: TrainingPlan,
    folder: Path,
) -> tuple[NDArray[np.float64], NDArray[np.float64], Summary]:
    """Answer every day on the service.

    Returns:
        The answers (days,), the sums without noise (days,), and the work of the service:
        ``admitted`` and ``halted`` count contributions, and ``halt_events`` and
        ``odometer_records`` what Kafka has.
    """
    turnstile.create_dataset(
        dataset, epsilon=EPSILON, delta=DELTA, on_exhaustion="clip", user_ids="integer"
    )
    queries, events = _write_input(dataset, purchases, plan, folder)
    query_file = read_query_file(queries)
    given = EventInput([EventFile(events, query_file)])
    values, sums = np.zeros((2, purchases.days))
    admitted = halted = 0

    def record(answer: AnswerRecord) -> None:
        nonlocal admitted, halted
        charge = answering.last_charge
        assert charge is not None
        assert isinstance(answer, PrivateAnswer)
        assert isinstance(answer.value, float)
        # The service computes the noise from the dataset's budget, and the plan from EPSILON.
        assert np.isclose(answer.noise_stddev, plan.noise_stddev, rtol=1e-6)
        values[answer.step] = answer.value
        sums[answer.step] = charge.decision.granted.sum()
        taken = int(np.count_nonzero(charge.decision.admitted))
        admitted, halted = admitted + taken, halted + len(charge.users) - taken

    began = perf_counter()
    answering = Answering(
        query_file,
        given.source,
        lambda released: turnstile.run(dataset, query_file.run, released=released),
        journal,
        record,
        noise=np.random.default_rng(1),
    )
    answer_input(answering, given)
    service = {
        "dataset": dataset,
        "steps": purchases.days,
        "admitted": admitted,
        "halted": halted,
        "halt_events": sum(1 for _ in turnstile.halts(dataset, follow=False)),
        "odometer_records": sum(1 for _ in turnstile.odometer(dataset, follow=False)),
        "seconds": perf_counter() - began,
    }
    return values, sums, service


def _write_input(
    dataset: str, purchases: Purchases, plan: TrainingPlan, folder: Path
) -> tuple[Path, Path]:
    """Write the file of the query, and one with a line for each purchase, in the order of days."""
    days = [purchases.first_day + timedelta(day) for day in range(purchases.days + 1)]
    queries, events = folder / "revenue-queries.toml", folder / "purchases.csv"
    terms = {"cap": plan.cap, "active_days": plan.active_days}
    text = _QUERIES.format(dataset=dataset, start=days[0], end=days[-1], **terms)
    queries.write_text(text, encoding="utf-8")
    with events.open("w", newline="", encoding="ascii") as lines:
        out = csv.writer(lines, lineterminator="\n")
        out.writerow(["customer", "day", "dollars"])
        for at in np.argsort(purchases.day, kind="stable"):
            day = days[purchases.day[at]]
            out.writerow([purchases.customers[at], day, f"{purchases.values[at]:.2f}"])
    return queries, events
