"""The table of measures: each row agrees with the functions and filters that it names."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import get_args

import numpy as np
import pytest

from accounting import (
    MAX_BUDGET_UNITS,
    MAX_COST_UNITS,
    MEASURES,
    Gaussian,
    Laplace,
    Measure,
    MeasureName,
    Mechanism,
    PoissonGaussian,
    PoissonRecords,
    PureDP,
    StepShape,
    steps_measure,
)
from streams import records
from tests.unit.accounting.refusals import refused

ORDERS = [1.5, 2.0, 8.0]
MECHANISMS: list[Mechanism] = [
    *(Gaussian(2.0), PoissonGaussian(2.0, 0.1), PoissonGaussian(2.0, 1.0)),
    PoissonRecords(2.0, 0.1, 3),
    *(Laplace(2.0), PureDP()),
]
ROWS = pytest.mark.parametrize("row", MEASURES.values(), ids=MEASURES)


def orders_of(row: Measure) -> list[float] | None:
    return ORDERS if row.per_order else None


def columns_of(row: Measure) -> int:
    return len(ORDERS) if row.per_order else 1


def test_records_name_measures_of_the_table() -> None:
    assert [*MEASURES, "steps"] == list(get_args(MeasureName))
    assert set(get_args(records.Measure)) <= set(get_args(MeasureName))
    assert [row.name for row in MEASURES.values()] == list(MEASURES)
    assert len({*MEASURES.values()}) == len(MEASURES)  # `Policy.risk` caches by row


@ROWS
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: type(mechanism).__name__)
def test_a_row_covers_exactly_the_steps_that_it_can_charge(
    row: Measure, mechanism: Mechanism
) -> None:
    if row.covers(mechanism):
        charged = row.charge_units(mechanism, [0.0, 1.0, 1e300], orders_of(row))
        assert not charged[0].any()
        assert (charged[1] > 0).all()
        assert (charged[2] == MAX_COST_UNITS).all()
    else:
        with refused("mechanism"):
            row.charge_units(mechanism, [1.0], orders_of(row))


@ROWS
def test_the_filter_of_a_row_decides_on_its_own_units(row: Measure) -> None:
    step = Laplace(1.0) if row.name == "pure-dp" else Gaussian(1.0)
    charge = row.charge_units(step, [1.0], orders_of(row))
    budgets = np.atleast_1d(charge[0]).tolist()
    rule = row.filter_of(budgets, orders_of(row))
    assert rule.measure == row.name
    state, admitted = rule.admit_norms(rule.initial_state(1), step, [1.0])
    assert admitted.all()
    assert rule.exhausted(state).all()
    less = row.filter_of([number - 1 for number in budgets], orders_of(row))
    assert not less.admit_norms(less.initial_state(1), step, [1.0])[1].any()


@ROWS
def test_epsilon_of_the_budgets_is_the_one_they_were_made_for(row: Measure) -> None:
    orders = [64.0, 256.0] if row.per_order else None
    budgets = row.budgets_for(1.0, 1e-6, orders)
    epsilon = row.epsilon(budgets, 1e-6, orders)
    assert 1.0 - 1e-6 <= epsilon <= 1.0
    assert row.epsilon(budgets * 1.01, 1e-6, orders) > epsilon
    assert row.epsilon(np.zeros(len(budgets)), 1e-6, orders) == 0.0
    assert row.epsilon(budgets * math.inf, 1e-6, orders) == math.inf


def test_an_unknown_order_has_the_largest_epsilon() -> None:
    row, spent = MEASURES["renyi"], [0.5, 0.1, 2.0]
    each = [row.epsilon([one], 1e-6, [order]) for order, one in zip(ORDERS, spent, strict=True)]
    assert row.epsilon(spent, 1e-6, ORDERS) == min(each)
    assert row.epsilon(spent, 1e-6, ORDERS, any_order=True) == max(each)


@ROWS
def test_what_is_stated_of_units_is_never_less_than_they_are(row: Measure) -> None:
    units = np.array([0, 1, 2, 2**44, 2**53 + 1, 3**30, MAX_BUDGET_UNITS - 1, MAX_BUDGET_UNITS])
    stated = row.stated(units)
    assert stated[0] == 0.0
    for whole, number in zip(units.tolist(), stated.tolist(), strict=True):
        exact = Fraction(whole, 2**44)
        assert Fraction(number) ** row.power >= exact
        assert Fraction(number) ** row.power <= exact * (1 + Fraction(1, 2**50))


@ROWS
def test_orders_belong_to_measures_that_have_them(row: Measure) -> None:
    wrong = None if row.per_order else ORDERS
    for call in (
        lambda: row.charge_units(Gaussian(1.0), [1.0], wrong),
        lambda: row.filter_of([1], wrong),
        lambda: row.budgets_for(1.0, 1e-6, wrong),
        lambda: row.epsilon([1.0], 1e-6, wrong),
    ):
        with refused("orders"):
            call()
    with refused("budgets"):
        row.filter_of([1] * (columns_of(row) + 1), orders_of(row))


@ROWS
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: type(mechanism).__name__)
def test_charges_that_depend_on_the_machine_need_cost_tables(
    row: Measure, mechanism: Mechanism
) -> None:
    inexact = {
        *product(("renyi",), (PoissonGaussian, PoissonRecords)),
        *product(("renyi", "gdp"), (Laplace, PureDP)),
    }
    if mechanism == PoissonGaussian(2.0, 1.0):  # every user is sampled
        assert not row.needs_table(mechanism)
        assert row.covers_by_table(mechanism) == row.covers(Gaussian(2.0))
        return
    assert row.needs_table(mechanism) == ((row.name, type(mechanism)) in inexact)
    assert row.covers_by_table(mechanism) == (row.covers(mechanism) or row.needs_table(mechanism))


@ROWS
@pytest.mark.parametrize("budget", [1, 3, 2**41 + 7, 2**44, MAX_BUDGET_UNITS])
def test_gaussian_rho_is_the_sum_of_gaussian_steps_in_the_budget(row: Measure, budget: int) -> None:
    rho = row.gaussian_rho(budget)
    if row.name in ("renyi", "pure-dp"):
        assert rho is None
        assert steps_measure(StepShape(1.0, 1.0)).gaussian_rho(budget) is None
        return
    assert rho is not None
    exact = Fraction(budget, 2**44) / row.power  # mu squared is twice rho
    assert Fraction(rho) <= exact <= Fraction(np.nextafter(rho, np.inf))
