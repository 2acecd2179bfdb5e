"""How the choice of ``active_windows`` changes the error of a year of daily active users.

    python active_windows.py

It simulates 20,000 users with log-normal activity, a weekly and a yearly season and a peak in
December, always the same ones. For each choice it computes what a query with ``kind = "distinct"``,
``window = "1d"`` and a budget of epsilon 1 at delta 1e-6 gives, without drawing noise. The last
choice is the worst case, in which no user is ever exhausted. To choose ``active_windows`` for a
query of your own, replace ``simulated_year`` by public data, or by past data of other users.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from accounting import gdp_budget, noise_for_norm_budget

CHOICES = (20, 40, 60, 80, 100, 120, 150, 200, 250, 365)
USERS, DAYS, DECEMBER = 20_000, 365, slice(334, 365)
EPSILON, DELTA = 1.0, 1e-6
SEED = 7


class Row(NamedTuple):
    """The result of one choice over the year.

    Attributes:
        active_windows: the days that every user can pay for.
        noise: its standard deviation.
        error: root mean square error of a day, noise and missing users together.
        left_out: users who were left out on some day.
        bias: mean error in December, without noise.
        covered: expected share of days on which the 95 % interval contains the true count.
        covered_in_december: the same for December.
    """

    active_windows: int
    noise: float
    error: float
    left_out: int
    bias: float
    covered: float
    covered_in_december: float


def simulated_year(seed: int = SEED) -> NDArray[np.bool_]:
    """Return which user is active on which day, (users, days)."""
    random = np.random.default_rng(seed)
    day = np.arange(DAYS)
    season = 1.0 + 0.25 * np.isin(day % 7, (4, 5)) + 0.15 * np.sin(2.0 * np.pi * day / DAYS)
    season[DECEMBER] *= 1.5
    events = random.lognormal(math.log(7.0), 1.3, USERS)  # of a user in a year
    rates = np.outer(events, season / season.sum())
    return random.random((USERS, DAYS)) < -np.expm1(-rates)


def compare(active: NDArray[np.bool_]) -> list[Row]:
    """Return a row for each choice."""
    rho = gdp_budget(EPSILON, DELTA) ** 2 / 2.0  # of Gaussian noise
    days_before = active.cumsum(axis=1) - active
    truth = active.sum(axis=0)
    rows = []
    for choice in CHOICES:
        noise = noise_for_norm_budget(float(choice), rho)
        bias = (active & (days_before < choice)).sum(axis=0) - truth
        width = norm.ppf(0.975) * noise
        covered = norm.cdf((width - bias) / noise) - norm.cdf((-width - bias) / noise)
        rows.append(
            Row(
                choice,
                noise,
                math.sqrt(float(np.mean(bias**2)) + noise**2),
                int((active.sum(axis=1) > choice).sum()),
                float(bias[DECEMBER].mean()),
                float(covered.mean()),
                float(covered[DECEMBER].mean()),
            )
        )
    return rows


def main() -> None:
    """Print the table."""
    active = simulated_year()
    days, users = active.sum(axis=1), active.sum(axis=0)
    print(f"{users.mean():,.0f} users a day, {users[DECEMBER].mean():,.0f} in December")
    middle, most = np.quantile(days, 0.5), days.max()
    upper = ", ".join(f"{part:.1%} {np.quantile(days, part):.0f}" for part in (0.99, 0.995))
    print(f"active days of a user: median {middle:.0f}, {upper}, most {most}")
    print("| active_windows | noise | error of a day | users left out | bias in December |", end="")
    print(" days covered | in December |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in compare(active):
        print(
            f"| {row.active_windows} | {row.noise:.1f} | {row.error:.0f} | {row.left_out:,} | "
            f"{row.bias:.0f} | {row.covered:.0%} | {row.covered_in_december:.0%} |"
        )


if __name__ == "__main__":
    main()
