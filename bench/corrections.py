"""``python -m bench.corrections``: errors and coverage of corrected answers.

It simulates years of 20,000 users, and answers a daily count and a daily sum with several
``active_windows``, as ``turnstile answer`` does with ``correct = true``. Errors of sums are against
sums of at most 60 for each user and day, and against the raw sums. Contribution bounding has its
best number of days and, for raw sums, its best cap. With ``--data DIR``, which has
CDNOW_master.txt, it also answers the daily revenue of CDNOW, each accounting with its best
parameters of a grid.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting import noise_for_norm_budget
from bench.years import MONTHS, YEAR, Year, daily, population, year
from streams.answerer.pricing import costs_of
from streams.answerer.query_plans import charge_all, corrected_errors
from streams.demo.purchases import load_purchases
from streams.records import Policy
from streams.sdk.dataset_requests import policy_from

CHOICES = (30, 45, 60, 80, 100, 125, 150)
DAYS = (60, 80, 100, 120, 130, 140, 150, 160, 180, 220, YEAR)
CAPS = (30.0, 45.0, 60.0, 90.0, 120.0)


def policy_of(epsilon: float, delta: float, on_exhaustion: str = "halt") -> Policy:
    """Return a policy in Gaussian DP."""
    return policy_from(
        "d",
        partitions=1,
        measure="gdp",
        epsilon=epsilon,
        delta=delta,
        on_exhaustion=on_exhaustion,  # type: ignore[arg-type]
        user_ids="integer",
    )


def bounded(
    events: Year, values: NDArray[np.float64], truth: NDArray[np.float64], mu: float, cap: float
) -> dict[int, float]:
    """Return the error by the number of days on which a user counts."""
    order = np.lexsort((events.days, events.users))
    first = np.flatnonzero(np.diff(events.users[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    found = {}
    for days in DAYS:
        chosen = order[rank < days]
        sums = np.bincount(events.days[chosen], values[chosen], len(truth))[: len(truth)]
        noise = math.sqrt(days) * cap / mu
        found[days] = math.sqrt(float(np.mean((sums - truth) ** 2)) + noise**2)
    return found


def corrected(
    events: Year, kind: str, choice: float, policy: Policy, seed: int, **settings: object
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the errors against bounded sums, and which intervals hold, (repetitions, days)."""
    query_file = daily(kind, choice, **settings)
    charges = charge_all(query_file, policy, population(events, query_file, YEAR))
    errors = corrected_errors(query_file, 0, charges, costs_of(query_file, [policy]), seed=seed)
    off, lower, upper = (part[:, :, 0] for part in (errors.off, errors.lower, errors.upper))
    return off, (lower <= 0.0) & (upper >= 0.0)


def years(seeds: range, users: int, policy: Policy) -> None:
    """Print a table for counts and one for sums."""
    mu = math.sqrt(2.0 * (policy.row.gaussian_rho(policy.budget[0]) or 0.0))
    squares: defaultdict[tuple[str, object], list[float]] = defaultdict(list)
    covered: defaultdict[tuple[str, int], list[NDArray[np.float64]]] = defaultdict(list)
    for seed in seeds:
        events = year(seed, users)
        of_year = Year(*(column[events.days < YEAR] for column in events))
        capped = np.minimum(of_year.amounts, 60.0)
        truths = {
            "distinct": (np.ones(len(of_year.days)), (1.0,)),
            "sum": (capped, (60.0,)),
            "raw sum": (of_year.amounts, CAPS),
        }
        cut = np.bincount(of_year.days, of_year.amounts - capped, YEAR)
        for kind, (values, caps) in truths.items():
            truth = np.bincount(of_year.days, values, YEAR)
            for cap in caps:
                found = bounded(of_year, np.minimum(values, cap), truth, mu, cap)
                for days, error in found.items():
                    squares[kind, (days, cap)].append(error**2)
        for kind in ("distinct", "sum"):
            for choice in CHOICES:
                off, holds = corrected(events, kind, choice, policy, seed)
                squares[kind, choice].append(float(np.square(off).mean()))
                if kind == "sum":
                    squares["raw sum", choice].append(float(np.square(off - cut).mean()))
                by_month = [holds[:, month == MONTHS].mean() for month in range(12)]
                covered[kind, choice].append(np.array(by_month))
    for kind in ("distinct", "sum", "raw sum"):
        errors = {
            key: math.sqrt(float(np.mean(found)))
            for (one, key), found in squares.items()
            if one == kind
        }
        best = min((one for one in errors if isinstance(one, tuple)), key=errors.__getitem__)
        print(f"\n{kind}: best contribution bounding {errors[best]:.1f} with days, cap = {best}")
        print("| active_windows | error | to bounding | coverage | least in a month | month |")
        print("| --- | --- | --- | --- | --- | --- |")
        for choice in CHOICES:
            months = np.mean(covered[kind.removeprefix("raw "), choice], axis=0)
            change = errors[choice] / errors[best] - 1.0
            print(
                f"| {choice} | {errors[choice]:.1f} | {change:+.1%} | {months @ _LENGTHS:.1%} | "
                f"{months.min():.1%} | {months.argmin() + 1} |"
            )


_LENGTHS = np.bincount(MONTHS) / YEAR


def revenue(folder: Path) -> None:
    """Print the errors of the daily revenue of CDNOW."""
    bought = load_purchases(folder / "CDNOW_master.txt")
    days, policy = bought.days, policy_of(1.0, 1e-5, "clip")
    mu = math.sqrt(2.0 * (policy.row.gaussian_rho(policy.budget[0]) or 0.0))
    customers = np.unique(bought.customers, return_inverse=True)[1]
    events = Year(customers, bought.day, bought.values)
    results: dict[str, tuple[float, object]] = {}

    def note(name: str, error: float, setting: object) -> None:
        results[name] = min(results.get(name, (math.inf, None)), (error, setting))

    for cap in (25.0, 80.0, 100.0, 150.0):
        capped = np.minimum(bought.values, cap)
        note("worst case", math.hypot(
            float(np.sqrt(np.mean((bought.sum_by_day(capped) - bought.totals) ** 2))),
            math.sqrt(days) * cap / mu,
        ), cap)  # fmt: skip
        for active in (1, 2, 4, 12) if cap > 60.0 else ():
            noise = noise_for_norm_budget(active * cap**2, mu**2 / 2.0)
            rank = _rank(bought.customers)
            sums = bought.sum_by_day(np.where(rank < active, capped, 0.0))
            error = math.hypot(float(np.sqrt(np.mean((sums - bought.totals) ** 2))), noise)
            note("contribution bounding", error, (cap, active))
            end = str(np.datetime64("2026-01-01") + days)
            query_file = daily("sum", active, each=cap, end=end, correct=False)
            people = population(events, query_file, days)
            bias = charge_all(query_file, policy, people).admitted[0][:, 0] - bought.totals
            noise = costs_of(query_file, [policy]).noises[0]
            note("individual", math.hypot(float(np.sqrt(np.mean(bias**2))), noise), (cap, active))
    print("\nCDNOW, daily revenue, error against the raw sums, with its setting:")
    for name, (error, setting) in results.items():
        print(f"| {name} | {error:,.0f} | {setting} |")


def _rank(customers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of a customer's earlier rows; rows are sorted by customer."""
    first = np.flatnonzero(np.diff(customers, prepend=-1))
    return np.arange(len(customers)) - np.repeat(first, np.diff(first, append=len(customers)))


def main() -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.corrections")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--data", type=Path, help="the folder with CDNOW_master.txt")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    years(seeds, options.users, policy_of(1.0, 1e-6))
    if options.data is not None:
        revenue(options.data)


if __name__ == "__main__":
    main()
