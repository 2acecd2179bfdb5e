"""Compares answers about the CDNOW purchase log with the truth.

    python cdnow.py CDNOW_master.txt > events.csv
    turnstile answer queries.toml --input events.csv --json > answers.jsonl
    python errors.py events.csv answers.jsonl

It needs pandas as well.
"""

from __future__ import annotations

import math
import sys

import pandas as pd

ACTIVE_DAYS = 20  # ``active_windows`` of the query of daily buyers
EACH = 100.0  # dollars of one customer in a window
WINDOW = "28D"


def buyers(events: pd.DataFrame, answers: pd.DataFrame) -> None:
    """Print the errors of daily buyers, with individual and with worst-case accounting."""
    answered = answers[answers["query"] == "buyers"].set_index("start").sort_index()
    truth = events.groupby("time")["customer"].nunique().reindex(answered.index, fill_value=0)
    off = answered["value"].astype(float) - truth
    noise = answered["noise_stddev"].astype(float).median()
    mean_of = math.sqrt(2 / math.pi)  # the mean of a standard normal without its sign
    longer = math.sqrt(len(answered) / ACTIVE_DAYS)
    print(f"daily buyers, {truth.mean():.0f} a day")
    print(f"  individual accounting: {len(answered)} days, mean error {off.abs().mean():.1f}")
    print(f"  worst case, the same noise: {ACTIVE_DAYS} days, mean error {noise * mean_of:.1f}")
    print(
        f"  worst case, as many days: {longer:.1f} times the noise, "
        f"mean error {noise * mean_of * longer:.1f}"
    )
    late = off[off.index >= pd.Timestamp("1998-01-01", tz="UTC")]
    if len(late):
        error = noise / math.sqrt(len(late))
        print(f"  in 1998 {late.mean():+.1f} a day on average, standard error {error:.1f}")


def spending(events: pd.DataFrame, answers: pd.DataFrame) -> None:
    """Print the errors of cohorts' spending, against bounded sums and against the true sums."""
    answered = answers[answers["query"] == "spending"].set_index("start")
    first = answered.index.min()
    number = (events["time"] - first) // pd.Timedelta(WINDOW)
    by = events.assign(start=first + number * pd.Timedelta(WINDOW))
    each = by.groupby(["start", "cohort", "customer"])["dollars"].sum()
    bounded = each.clip(upper=EACH).groupby(["start", "cohort"]).sum().unstack(fill_value=0.0)
    spent = each.groupby(["start", "cohort"]).sum().unstack(fill_value=0.0)
    values = pd.DataFrame(answered["value"].tolist(), answered.index, spent.columns).astype(float)
    spent, bounded = spent.loc[values.index], bounded.loc[values.index]
    print(f"spending of cohorts, {spent.to_numpy().mean():,.0f} dollars in {WINDOW}")
    print(f"  against bounded sums: {(values - bounded).abs().to_numpy().mean():,.0f} off")
    print(f"  against what was spent: {(values - spent).abs().to_numpy().mean():,.0f} off")


def main(events_file: str, answers_file: str) -> None:
    """Print the errors of both queries."""
    events = pd.read_csv(events_file)
    events["time"] = pd.to_datetime(events["time"], utc=True)
    answers = pd.read_json(answers_file, lines=True)
    answers["start"] = pd.to_datetime(answers["start"])
    buyers(events, answers)
    spending(events, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
