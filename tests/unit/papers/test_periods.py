"""The examples of repeated training: each follows from one customer's earlier purchases."""

from __future__ import annotations

import runpy
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from bench.papers.periods import Features, TrainingPeriod, split_periods
from streams.demo.purchases import Purchases, simulated_purchases
from tests.readme import TOP

DAYS = 30
FEATURES = get_args(Features)


@pytest.fixture(scope="module")
def purchases() -> Purchases:
    return simulated_purchases(400, 300)


def without(purchases: Purchases, removed: np.ndarray) -> Purchases:
    kept = ~removed
    return replace(
        purchases,
        customers=purchases.customers[kept],
        day=purchases.day[kept],
        values=purchases.values[kept],
    )


def same(first: TrainingPeriod, second: TrainingPeriod) -> bool:
    return all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("users", "rows", "bought")
    )


@pytest.mark.parametrize("features", FEATURES)
def test_no_row_is_longer_than_1(purchases: Purchases, features: Features) -> None:
    for period in split_periods(purchases, DAYS, features):
        assert np.linalg.norm(period.rows, axis=1).max() <= 1.0
        assert np.isfinite(period.rows).all()


@pytest.mark.parametrize("features", FEATURES)
def test_an_example_depends_on_its_own_customer_alone(
    purchases: Purchases, features: Features
) -> None:
    one = int(purchases.customers[0])
    others = without(purchases, purchases.customers == one)
    periods = split_periods(purchases, DAYS, features)
    for period, fewer in zip(periods, split_periods(others, DAYS, features), strict=True):
        assert same(period.only(period.users != one), fewer)


@pytest.mark.parametrize("features", FEATURES)
def test_features_do_not_look_ahead(purchases: Purchases, features: Features) -> None:
    periods = split_periods(purchases, DAYS, features)
    for number, period in enumerate(periods, start=1):
        past = without(purchases, purchases.day >= number * DAYS)
        known = split_periods(past, DAYS, features)[number - 1]
        assert same(replace(period, bought=known.bought), known)
        assert not known.bought.any()


def test_a_customer_has_examples_for_13_weeks_after_a_purchase(purchases: Purchases) -> None:
    for number, period in enumerate(split_periods(purchases, DAYS), start=1):
        start = number * DAYS
        recent = (purchases.day < start) & (purchases.day >= start - 91)
        assert set(period.users) == set(purchases.customers[recent])
        within = (purchases.day >= start) & (purchases.day < start + DAYS)
        assert set(period.users[period.bought]) == (
            set(period.users) & set(purchases.customers[within])
        )


def test_the_example_has_the_same_features(purchases: Purchases) -> None:
    path = TOP / "examples" / "continual_training.py"
    months = runpy.run_path(str(path), run_name="example")["months_of"](purchases)
    for month, period in zip(months, split_periods(purchases, DAYS, "summary"), strict=True):
        assert np.array_equal(month.users, period.users)
        assert np.array_equal(month.bought, period.bought)
        np.testing.assert_allclose(month.rows, period.rows, rtol=1e-12)
        assert np.linalg.norm(month.rows, axis=1).max() <= 1.0
