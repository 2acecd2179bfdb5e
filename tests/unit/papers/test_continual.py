"""Repeated training: each example follows from one customer, and budgets hold."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from accounting import gdp_budget
from bench.papers import continual
from bench.papers.continual import (
    ACCOUNTINGS,
    DELTA,
    Accounting,
    Plan,
    by_service,
    held_out_customers,
    in_floats,
    train,
)
from bench.papers.periods import Features, TrainingPeriod, split_periods
from streams.demo.purchases import Purchases, simulated_purchases

EPSILON, CUSTOMERS, SEEDS = 0.5, 600, (1, 2)


@pytest.fixture(scope="module")
def periods() -> list[TrainingPeriod]:
    return split_periods(simulated_purchases(CUSTOMERS, 300), 30, "summary")


def plan_of(accounting: Accounting, periods: list[TrainingPeriod]) -> Plan:
    active = len(periods) if accounting in ACCOUNTINGS[:2] else 1
    return Plan(accounting, gdp_budget(EPSILON, DELTA), 0.8, active, 2, 5.0)


def recorded(
    periods: list[TrainingPeriod], plan: Plan, granting: continual.Granting
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the squared granted norms of each customer, (customers, seeds), and predictions."""
    spent = np.zeros((CUSTOMERS, len(SEEDS)))

    def grant(period: TrainingPeriod, trained: np.ndarray, norms: np.ndarray) -> np.ndarray:
        granted = granting(period, trained, norms)
        assert (granted <= norms).all()
        spent[period.users] += (granted * trained) ** 2
        return granted

    held_out = held_out_customers(CUSTOMERS, SEEDS)
    predictions = train(periods, held_out, plan, SEEDS, grant)
    assert (spent[held_out] == 0.0).all()
    return spent, predictions


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_no_customer_spends_more_than_the_budget(
    periods: list[TrainingPeriod], accounting: Accounting
) -> None:
    plan = plan_of(accounting, periods)
    spent, _ = recorded(periods, plan, in_floats(plan, CUSTOMERS, len(SEEDS)))
    mu = np.sqrt(spent) / plan.noise_stddev
    assert 0.0 < mu.max() <= plan.mu * (1.0 + 1e-12)


def test_the_service_grants_what_the_simulation_grants(periods: list[TrainingPeriod]) -> None:
    plan = plan_of("individual", periods)
    spent, predictions = recorded(periods, plan, in_floats(plan, CUSTOMERS, len(SEEDS)))
    charged, decided = recorded(periods, plan, by_service(plan, EPSILON, len(SEEDS)))
    np.testing.assert_allclose(charged, spent, atol=1e-6)
    for simulated, real in zip(predictions, decided, strict=True):
        np.testing.assert_allclose(real, simulated, atol=1e-6)
    exhausted = plan.charged_steps * plan.clip_norm**2
    assert np.isclose(spent, exhausted).any()  # so that budgets decide


DAYS = 30
FEATURES = get_args(Features)


@pytest.fixture(scope="module")
def purchases() -> Purchases:
    return simulated_purchases(400, 300)


def without(purchases: Purchases, removed: np.ndarray) -> Purchases:
    kept = ~removed
    columns = {name: getattr(purchases, name)[kept] for name in ("customers", "day", "values")}
    return replace(purchases, **columns)


def same(first: TrainingPeriod, second: TrainingPeriod) -> bool:
    columns = ("users", "rows", "bought")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in columns)


@pytest.mark.parametrize("features", FEATURES)
def test_an_example_depends_on_its_own_customer_alone(
    purchases: Purchases, features: Features
) -> None:
    one = int(purchases.customers[0])
    others = without(purchases, purchases.customers == one)
    periods = split_periods(purchases, DAYS, features)
    for period, fewer in zip(periods, split_periods(others, DAYS, features), strict=True):
        assert same(period.only(period.users != one), fewer)
        assert np.isfinite(period.rows).all()
        assert np.linalg.norm(period.rows, axis=1).max() <= 1.0
