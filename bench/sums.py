"""Errors of sliding sums and running totals of simulated years, at equal budgets.

    python -m bench.sums [--years N]

Each way of accounting has the noise with the least error, out of a grid. A user is admitted to a
step if the budget pays for it (epsilon 1, delta 1e-6). Errors are against all users.

Rows of a banded matrix: step t asks for C_0 x_t + ... + C_(b-1) x_(t-b+1), where C is the square
root of the matrix of running sums, cut off after b bands. Each row is charged as a step of its own,
by the user's own combined contribution to it, so no separation between participations is needed.
Solving with C gives the sum of each day with correlated noise.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from accounting.release.factorisations import SquareRoot
from bench.corrections import policy_of
from tests.unit.answerer.years import YEAR, year

Floats = NDArray[np.float64]
USERS, DAYS = 20_000, 7


def admitted(rows: Floats, noise: float, budget: float) -> Floats:
    """Return the sum of the admitted contributions to each step, if mu squared is charged."""
    spent, sums = np.zeros(len(rows)), np.zeros(rows.shape[1])
    for step in range(rows.shape[1]):
        cost = np.square(rows[:, step] / noise)
        fits = spent + cost <= budget
        spent += np.where(fits, cost, 0.0)
        sums[step] = rows[fits, step].sum()
    return sums


def mixed(active: Floats, weights: Floats) -> Floats:
    """Return each user's contributions of the last steps, weighted."""
    rows = np.zeros_like(active)
    for back, weight in enumerate(weights):
        rows[:, back:] += weight * active[:, : YEAR - back]
    return rows


def least(active: Floats, weights: Floats, wanted: Floats, budget: float) -> float:
    """Return the least error of the wanted sums over a grid of noises.

    Args:
        active: (users, steps).
        weights: (b,), of the rows that are asked for.
        wanted: (steps, steps), the sums of the steps that are published.
        budget: in mu squared.
    """
    rows, column = mixed(active, weights), np.zeros(YEAR)
    column[: len(weights)] = weights
    asked = sum(column[back] * np.eye(YEAR, k=-back) for back in range(len(weights)))
    decode = wanted @ np.linalg.inv(asked)
    truth, spread = wanted @ active.sum(axis=0), np.square(decode).sum(axis=1)
    errors = []
    for noise in np.geomspace(15.0, 1500.0, 30):
        bias = decode @ admitted(rows, noise, budget) - truth
        errors.append(np.sqrt(np.mean(np.square(bias) + noise**2 * spread)))
    return float(min(errors))


def main() -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--years", type=int, default=2)
    years = parser.parse_args().years
    policy = policy_of(1.0, 1e-6)
    rho = policy.row.gaussian_rho(policy.budget[0])
    assert rho is not None
    ones = np.tril(np.ones((YEAR, YEAR)))
    sliding, root = ones - np.tril(ones, -DAYS), SquareRoot(YEAR)
    cases = {
        "7 days, new noise for each sum": (np.ones(DAYS), sliding),
        "7 days, sums of answers": (np.ones(1), sliding),
        "running total, sums of answers": (np.ones(1), ones),
        **{
            f"running total, rows with {bands} bands": (root.row(bands)[::-1], ones)
            for bands in (4, 7, 16)
        },
    }
    for name, (weights, wanted) in cases.items():
        errors = []
        for seed in range(1, years + 1):
            events, active = year(seed, USERS), np.zeros((USERS, YEAR))
            is_in = events.days < YEAR
            active[events.users[is_in], events.days[is_in]] = 1.0
            errors.append(least(active, weights, wanted, 2.0 * rho))
        print(f"{name:36} {np.mean(errors):8.1f}", flush=True)


if __name__ == "__main__":
    main()
