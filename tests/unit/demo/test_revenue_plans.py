"""All accountings of daily totals keep the same guarantee."""

from __future__ import annotations

from datetime import date

import numpy as np
import pytest

from accounting import gdp_budget
from streams.demo.purchases import Purchases
from streams.demo.revenue_plans import (
    ACCOUNTINGS,
    DELTA,
    EPSILON,
    Accounting,
    TrainingPlan,
    best_plan,
    contributions,
    errors,
    expected_error,
)

USERS, DAYS = 40, 30


@pytest.fixture(scope="module")
def shop() -> Purchases:
    random = np.random.default_rng(7)
    customers, day = np.nonzero(random.random((USERS, DAYS)) < 0.4)
    values = random.gamma(1.0, 20.0, len(day))
    return Purchases("a shop", date(1997, 1, 1), DAYS, customers, day, values)


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_the_noise_covers_all_contributions_of_every_customer(
    shop: Purchases, accounting: Accounting
) -> None:
    plan = TrainingPlan(accounting, 25.0, DAYS if accounting == "worst case" else 4)
    squares = np.bincount(shop.customers, contributions(shop, plan) ** 2)
    mu = np.sqrt(squares.max()) / plan.noise_stddev
    assert 0.5 < mu / gdp_budget(EPSILON, DELTA) <= 1.0 + 1e-12


def test_each_accounting_counts_what_its_definition_says() -> None:
    """Customer 1 buys for 3, 10 and 2 dollars, customer 2 for 1 dollar on four days."""
    customers, day = np.array([1, 1, 1, 2, 2, 2, 2]), np.array([0, 1, 2, 0, 1, 2, 3])
    values = np.array([3.0, 10.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    shop = Purchases("a shop", date(1997, 1, 1), 4, customers, day, values)
    found = {name: contributions(shop, TrainingPlan(name, 4.0, 1)).tolist() for name in ACCOUNTINGS}
    assert found["worst case"] == [3, 4, 2, 1, 1, 1, 1]
    assert found["contribution bounding"] == [3, 0, 0, 1, 0, 0, 0]
    # The norms are the root of 29 and 2, and the longest is 4.
    scaled = [16 / 29**0.5 * part / 4 for part in (3, 4, 2)]
    assert found["whole vector"] == pytest.approx([*scaled, 1, 1, 1, 1])
    # The budget is 16 dollars squared: 9 for the first day leave 7, the root of which is granted.
    assert found["individual"] == pytest.approx([3, 7**0.5, 0, 1, 1, 1, 1])


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_the_best_plan_has_the_least_expected_error(
    shop: Purchases, accounting: Accounting
) -> None:
    best = best_plan(shop, accounting, (5.0, 20.0, 50.0))
    least = expected_error(shop, best)
    for cap in (5.0, 20.0, 50.0):
        days = DAYS if accounting == "worst case" else 3
        assert least <= expected_error(shop, TrainingPlan(accounting, cap, days))


def test_the_error_consists_of_bias_and_noise(shop: Purchases) -> None:
    assert errors(shop.totals - 3.0, shop, 0.0, 2) == pytest.approx([3.0, 3.0])
    first, second = errors(shop.totals, shop, 10.0, 2)
    assert first != second
    noise = np.random.default_rng(2).normal(0.0, 10.0, DAYS)
    assert second == pytest.approx(np.sqrt(np.mean(noise**2)))
