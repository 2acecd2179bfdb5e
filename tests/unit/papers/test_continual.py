"""The accountings that repeated training compares keep their budgets, and the service agrees."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from accounting import gdp_budget
from bench.papers import continual
from bench.papers.continual import (
    ACCOUNTINGS,
    DELTA,
    Accounting,
    Plan,
    auc,
    by_service,
    held_out_customers,
    in_floats,
    train,
)
from bench.papers.periods import TrainingPeriod, split_periods
from streams.demo.purchases import simulated_purchases

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


def test_contribution_bounding_counts_the_first_periods(periods: list[TrainingPeriod]) -> None:
    plan = plan_of("contribution bounding", periods)
    grant = in_floats(plan, CUSTOMERS, len(SEEDS))
    seen: set[int] = set()
    for period in periods:
        norms = np.ones((len(period.users), len(SEEDS)))
        trained = norms > 0.0
        first = np.array([user not in seen for user in period.users])
        for _ in range(plan.steps):
            assert (grant(period, trained, norms) == first[:, np.newaxis]).all()
        seen |= set(period.users.tolist())


def test_auc_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    scores, bought = random.integers(0, 9, 200) / 9.0, random.random(200) < 0.3
    assert auc(scores, bought) == pytest.approx(roc_auc_score(bought, scores))


def test_the_best_plan_is_chosen_with_other_seeds() -> None:
    assert not set(continual.TUNING_SEEDS) & set(range(1, 101))
