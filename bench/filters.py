"""Admissions per second of a filter in `accounting`, on one core."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from accounting import ZcdpFilter
from bench.report import section, spread

_DENIED = (0.0, 0.05, 0.5)  # shares of the users who are denied
_USERS_A_MEASUREMENT = 4_000_000


@dataclass
class Admissions:
    """The rates of one chunk size and one share of denials, in users per second."""

    users: int
    denied: float
    rates: list[float] = field(default_factory=list)


def measure(chunks: Sequence[int], rounds: int) -> list[Admissions]:
    """Measure all chunk sizes and shares in turns, after an uncounted round."""
    found = [Admissions(users, denied) for users in chunks for denied in _DENIED]
    for number in range(rounds + 1):
        for one in found:
            rate = _rate(one.users, one.denied)
            one.rates += [rate] * bool(number)
    return found


def _rate(users: int, denied: float) -> float:
    """Return the rate for users of whom some are close to their budgets."""
    random, rule = np.random.default_rng(users), ZcdpFilter(1.0)
    costs = random.uniform(1e-4, 1e-3, users)
    state = random.integers(0, 2**43, users)
    state[random.random(users) < denied] = rule.budget_units[0] - 1
    repeats = max(1, _USERS_A_MEASUREMENT // users)
    began = time.process_time()
    for _ in range(repeats):
        rule.admit(state, costs)
    return repeats * users / (time.process_time() - began)


def lines(results: Sequence[Admissions]) -> list[str]:
    """Return a table for the report."""
    return section(
        "Filters: zCDP, one core",
        "Million admissions per second of CPU time, of costs in float64: median (smallest to "
        "largest).",
        ["users at once", "denied", "admissions"],
        [[f"{r.users:,}", f"{r.denied:.0%}", spread([x / 1e6 for x in r.rates])] for r in results],
    )
