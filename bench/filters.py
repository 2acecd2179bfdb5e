"""Admissions per second of the filters in `accounting`, on one core, against one plain addition."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from accounting import ZcdpFilter, cost_units
from bench.servers import spread

_DENIED = (0.0, 0.05, 0.5)  # shares of the users who are denied
_USERS_A_MEASUREMENT = 4_000_000


@dataclass
class Admissions:
    """The rates of one chunk size and one share of denials, in users per second."""

    users: int
    denied: float
    costs: list[float] = field(default_factory=list)  # ZcdpFilter.admit, float64 costs
    units: list[float] = field(default_factory=list)  # ZcdpFilter.admit_units, costs in units
    addition: list[float] = field(default_factory=list)  # state + cost only


class Contest:
    """One chunk of users and their costs; some users are close to their budgets and are denied."""

    def __init__(self, users: int, denied: float) -> None:
        rng = np.random.default_rng(users)
        self._rule = ZcdpFilter(1.0)
        self._costs = rng.uniform(1e-4, 1e-3, users)
        self._units = cost_units(self._costs)
        self._state = rng.integers(0, 2**43, users)
        self._state[rng.random(users) < denied] = self._rule.budget_units[0] - 1
        self._repeats = max(1, _USERS_A_MEASUREMENT // users)
        self.result = Admissions(users, denied)

    def round(self) -> None:
        """Measure the three in turns."""
        rule, state, costs, units = self._rule, self._state, self._costs, self._units
        self.result.costs.append(self._rate(lambda: rule.admit(state, costs)))
        self.result.units.append(self._rate(lambda: rule.admit_units(state, units)))
        self.result.addition.append(self._rate(lambda: state + units))

    def _rate(self, call: Callable[[], object]) -> float:
        began = time.process_time()
        for _ in range(self._repeats):
            call()
        return self._repeats * self.result.users / (time.process_time() - began)


def measure(chunks: Sequence[int], rounds: int) -> list[Admissions]:
    """Measure all chunk sizes and shares in turns, after an uncounted round."""
    contests = [Contest(users, denied) for users in chunks for denied in _DENIED]
    for contest in contests:
        contest.round()
        contest.result = Admissions(contest.result.users, contest.result.denied)
    for _ in range(rounds):
        for contest in contests:
            contest.round()
    return [contest.result for contest in contests]


def lines(results: Sequence[Admissions]) -> list[str]:
    """Format million admissions per second: median (smallest to largest)."""
    if not results:
        return []
    table = [
        "## Filters: zCDP, one core",
        "",
        "Million admissions per second of processor time, median of "
        f"{len(results[0].costs)} rounds (smallest to largest), in `accounting` alone. The plain "
        "addition is `state + cost`, without a check.",
        "",
        "| users at once | denied | costs in float64 | costs in units | plain addition "
        "| units / addition |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        columns = [result.costs, result.units, result.addition]
        cells = [spread([rate / 1e6 for rate in rates]) for rates in columns]
        ratio = statistics.median(result.units) / statistics.median(result.addition)
        table.append(
            f"| {result.users:,} | {result.denied:.0%} | {' | '.join(cells)} | {ratio:.2f} |"
        )
    return [*table, ""]
