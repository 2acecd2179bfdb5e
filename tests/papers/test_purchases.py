"""All ways of accounting for daily totals keep the same guarantee."""

from __future__ import annotations

import numpy as np
import pytest

from accounting import gdp_budget
from tests.papers.purchases import DELTA, EPSILON, WAYS, Plan, Totals, admitted, charged

CUSTOMERS = 40


def shop(values: float | None = None) -> Totals:
    """Return 30 days of random customers, with random values or always the same one."""
    random = np.random.default_rng(7)
    days = []
    for _ in range(30):
        who = np.flatnonzero(random.random(CUSTOMERS) < 0.4)
        amounts = random.gamma(1.0, 20.0, len(who))
        days.append((who, np.full(len(who), values) if values else amounts))
    return Totals(days, CUSTOMERS)


@pytest.mark.parametrize("way", WAYS)
def test_the_noise_covers_all_contributions_of_every_customer(way: str) -> None:
    totals, squares = shop(), np.zeros(CUSTOMERS)
    plan = Plan(way, 25.0, 30 if way == "worst case" else 4)
    for (who, _), granted in zip(totals.days, admitted(totals, plan), strict=True):
        squares[who] += granted**2
    mu = np.sqrt(squares).max() / plan.noise_stddev
    assert 0.5 < mu / gdp_budget(EPSILON, DELTA) <= 1.0 + 1e-12


def test_with_equal_contributions_individual_accounting_is_contribution_bounding() -> None:
    totals = shop(values=9.0)
    bounded, individual = (
        [day.tolist() for day in admitted(totals, Plan(way, 9.0, 4))] for way in WAYS[1:]
    )
    assert individual == bounded


def test_the_service_admits_what_the_search_on_the_grid_took_for_admitted() -> None:
    totals, plan = shop(), Plan("individual", 25.0, 3)
    sums = [granted.sum() for granted in admitted(totals, plan)]
    assert charged(totals, plan) == pytest.approx(sums, rel=1e-9)
