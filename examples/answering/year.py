"""Writes a simulated year of purchases: the events of the tutorial for daily statistics.

    python year.py > year.csv

20,000 users have log-normal activity, a weekly and a yearly season and a peak in December. It is
always the same year. It has no real users, so plans made from it are public.
"""

from __future__ import annotations

import csv
import math
import sys
from datetime import date, timedelta

import numpy as np

FIRST, DAYS, SEED = date(2026, 1, 1), 365, 7


def main(users: int = 20_000) -> None:
    """Write one line for each user and day with a purchase, in the order of days."""
    random, day = np.random.default_rng(SEED), np.arange(DAYS)
    season = 1.0 + 0.25 * np.isin(day % 7, (4, 5)) + 0.15 * np.sin(2.0 * np.pi * day / DAYS)
    season[DAYS - 31 :] *= 1.5
    purchases = random.lognormal(math.log(7.0), 1.3, users)  # of a user in a year
    counts = random.poisson(np.outer(season / season.sum(), purchases))
    days, buyers = np.nonzero(counts)
    amounts = random.lognormal(math.log(20.0), 0.8, len(days)) * counts[days, buyers]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["user", "day", "amount"])
    for number, user, amount in zip(days.tolist(), buyers.tolist(), amounts.tolist(), strict=True):
        out.writerow([user, (FIRST + timedelta(number)).isoformat(), f"{amount:.2f}"])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
