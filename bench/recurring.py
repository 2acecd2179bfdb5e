"""Recurring charges: the time of a step in `accounting`, with per-user orders."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from accounting import (
    MEASURES,
    PoissonGaussian,
    RenyiFilter,
    best_order,
    candidate_orders,
)
from accounting.filters.account_terms import AccountCostTable, AccountTerms
from accounting.filters.recurring import BudgetAccount, RecurringCharge
from accounting.filters.roster_columns import SlotMap
from bench.servers import spread

_LEVELS = 100
_CHANGES = 10_000
_QUIET_STEPS = 2_000


_Seconds: TypeAlias = tuple[float, float]


@dataclass
class Times:
    """Seconds of one number of users, (by the clock, of the processor).

    `quiet`: single steps that settle no user.
    """

    users: int
    placed: list[_Seconds] = field(default_factory=list)
    quiet: list[_Seconds] = field(default_factory=list)
    changed: list[_Seconds] = field(default_factory=list)
    cost_table: list[_Seconds] = field(default_factory=list)
    dense: list[_Seconds] = field(default_factory=list)


@dataclass
class _Balances:
    spent: np.ndarray
    base: np.ndarray
    ticks: np.ndarray
    order: np.ndarray


class _Roster:
    """The columns of a roster."""

    def __init__(self, levels: np.ndarray) -> None:
        self.level, self.granted = levels.copy(), levels.copy()
        self.flags = np.zeros_like(levels)
        self.since = np.zeros(levels.size, dtype=np.uint32)


def measure(users: int, rounds: int) -> Times:
    """DP-SGD at (8, 1e-5), rate 0.001, noise 1.1 C; who has spent what, and levels, at random."""
    times = Times(users)
    rng = np.random.default_rng(users)
    rule = RenyiFilter(*candidate_orders(8.0, 1e-5))
    charges, others = (
        MEASURES["renyi"].cost_table(PoissonGaussian(noise, 1e-3), 1.0, _LEVELS, rule.orders)
        for noise in (1.1, 1.2)
    )
    tick_sizes = tuple(budget // 10 for budget in rule.budget_units)
    levels = rng.integers(0, _LEVELS + 1, users).astype(np.uint8)
    for _ in range(rounds):
        spent = rng.integers(0, 2**40, users)
        order = best_order(charges, rule.budget_units)[levels]
        balances = _Balances(spent, spent.copy(), np.ones(users, dtype=np.int64), order)
        account = BudgetAccount(AccountTerms(rule.budget_units, tick_sizes, "per-user"), balances)

        tables = [[AccountCostTable(account.terms, units)] for units in (charges, others)]
        elapsed, recurring = _timed(_put_in_place, account, levels, tables[0])
        times.placed.append(elapsed)
        for _ in range(_QUIET_STEPS):
            elapsed, outcome = _timed(recurring.step)
            if not isinstance(outcome.settled, slice) and not outcome.settled.size:
                times.quiet.append(elapsed)
        for _ in range(20):
            positions = np.sort(rng.choice(users, min(_CHANGES, users), replace=False))
            news = levels[positions[::-1]]
            times.changed.append(_timed(recurring.step, None, positions, news)[0])
        times.cost_table.append(_timed(recurring.step, tables[1])[0])
        every = slice(0, users)
        times.dense.append(_timed(recurring.step, None, every, levels[::-1].copy())[0])
    return times


def _timed(call: Callable, *arguments: object) -> tuple[_Seconds, Any]:
    began, worked = time.perf_counter(), time.process_time()
    result = call(*arguments)
    return (time.perf_counter() - began, time.process_time() - worked), result


def _put_in_place(
    account: BudgetAccount, levels: np.ndarray, tables: list[AccountCostTable]
) -> RecurringCharge:
    slots = SlotMap()
    slots.extend(np.arange(levels.size))
    recurring = RecurringCharge([account], [slots], _Roster(levels))
    recurring.step(tables)
    return recurring


def lines(results: list[Times]) -> list[str]:
    """Medians, smallest to largest."""
    table = [
        "## Recurring charges: Rényi, per-user orders, one core",
        "",
        "In `accounting` alone; median (smallest to largest). Put in place: roster, first step and "
        "schedule. Quiet: a step at which nothing happens to any user, median and 99th percentile. "
        "CPU: processor time.",
        "",
        "| users | | put in place, ms | quiet step, µs | 99th | 10,000 other levels, ms "
        "| another cost table, ms | explicit dense step, ms |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for times in results:
        for clock, name in enumerate(("clock", "CPU")):
            quiet = sorted(seconds[clock] for seconds in times.quiet)
            placed, *others = (
                spread([seconds[clock] * 1e3 for seconds in kind])
                for kind in (times.placed, times.changed, times.cost_table, times.dense)
            )
            cells = [
                f"{times.users:,}",
                name,
                placed,
                f"{statistics.median(quiet) * 1e6:.1f}" if quiet else "none",
                f"{quiet[len(quiet) * 99 // 100] * 1e6:.1f}" if quiet else "none",
                *others,
            ]
            table.append(f"| {' | '.join(cells)} |")
    return [*table, ""]
