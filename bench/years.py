"""Simulated years of events: log-normal activity, a weekly and a yearly season, a December peak."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.answerer.query_file import QueryFile, parse_queries
from streams.answerer.query_plans import Part, Population

YEAR = 365
MONTHS = np.repeat(np.arange(12), [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
"""The month of each day of the year."""


class Year(NamedTuple):
    """Purchases by user and day, more than a year of them, so that the last block can close.

    Attributes:
        users, days: (n,) of each pair with a purchase.
        amounts: (n,) the sum of the pair's purchases.
    """

    users: NDArray[np.int64]
    days: NDArray[np.int64]
    amounts: NDArray[np.float64]


def year(seed: int, users: int = 20_000, days: int = YEAR + 100) -> Year:
    """Return a year: the median user buys seven times, on eight days at most."""
    random, day = np.random.default_rng(seed), np.arange(days)
    of_year = day % YEAR
    season = 1.0 + 0.25 * np.isin(day % 7, (4, 5)) + 0.15 * np.sin(2.0 * np.pi * of_year / YEAR)
    season[of_year >= YEAR - 31] *= 1.5
    purchases = random.lognormal(math.log(7.0), 1.3, users)
    counts = random.poisson(np.outer(purchases, season / season[:YEAR].sum()))
    found, when = np.nonzero(counts)
    amounts = random.lognormal(math.log(20.0), 0.8, len(found)) * counts[found, when]
    return Year(found, when, amounts)


def daily(kind: str, active_windows: float, **settings: object) -> QueryFile:
    """Return a file with one daily query; a sum is of the column amount."""
    of_sum = {"column": "amount", "each": 60.0} if kind == "sum" else {}
    return parse_queries(
        {
            "dataset": "d",
            "run": "r",
            "input": {
                "user": "user",
                "users": "integer",
                "time": "time",
                "start": np.datetime64("2026-01-01").item(),
                "end": np.datetime64(settings.pop("end", "2027-01-01")).item(),
                "clock": "events",
            },
            "query": [
                {
                    "name": "q",
                    "kind": kind,
                    "window": "1d",
                    "active_windows": active_windows,
                    "correct": True,
                    **of_sum,
                    **settings,
                }
            ],
        }
    )


def population(events: Year, query_file: QueryFile, days: int) -> Population:
    """Return the contributions of these events to the one query of a file, over so many days."""
    (query,) = query_file.queries
    if query.kind == "sum":
        values = np.clip(events.amounts, -query.each, query.each)
    else:
        values = np.ones(len(events.users))
    order = np.argsort(events.days, kind="stable")
    ends = np.searchsorted(events.days[order], np.arange(days + 1))
    parts = {}
    for day in range(days):
        chosen = order[ends[day] : ends[day + 1]]
        rows = values[chosen][:, np.newaxis]
        parts[0, day] = Part(events.users[chosen], rows, [], np.abs(np.hstack([rows, rows])))
    return Population(int(events.users.max()) + 1, parts)
