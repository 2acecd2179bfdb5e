"""An any-time epsilon holds whenever a run ends, and that of a fixed spend does not."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accounting import (
    MEASURES,
    Measure,
    StepShape,
    budget_units,
    gdp_to_epsilon,
    renyi_to_epsilon,
    steps_measure,
)
from tests.unit.accounting.stopping import reached_delta, reached_delta_sampled

DELTA = 1e-5
ORDERS = [3.0, 5.0, 9.0, 17.0]
CASES = [
    ("gdp", None),
    ("zcdp", None),
    ("renyi", [9.0]),
    ("renyi", ORDERS),
]


def amounts(row: Measure, mu_squared: float, orders: list[float] | None) -> list[float]:
    """What Gaussian steps of this mu squared cost in the unit of the measure."""
    if orders:
        return [order * mu_squared / 2.0 for order in orders]
    return [math.sqrt(mu_squared) if row.name == "gdp" else mu_squared / 2.0]


def any_time(row: Measure, spent: Any, budget: Any, delta: float, orders: Any = None) -> np.ndarray:
    return row.epsilon(spent, delta, orders, when="any time", budget=budget)


@pytest.mark.parametrize("steps", [1, 8, 64])
@pytest.mark.parametrize("mu_squared", [0.06, 1.0, 4.0])
@pytest.mark.parametrize(("name", "orders"), CASES)
def test_no_stopping_rule_exceeds_delta(name, orders, mu_squared, steps) -> None:
    row = MEASURES[name]
    # One unit of float64 above what is spent, so that rounding up has room.
    most = [amount * (1 + 1e-12) for amount in amounts(row, mu_squared, orders)]
    budget = budget_units(most[0], row.power)
    spent = [amounts(row, mu_squared * at / steps, orders) for at in range(1, steps + 1)]
    shown = any_time(row, spent, budget, DELTA, orders)
    assert (np.diff(shown) >= 0.0).all()
    assert reached_delta(shown.tolist(), mu_squared) <= DELTA


@pytest.mark.parametrize(
    ("name", "orders", "steps", "factor"),
    [("gdp", None, 8, 4.0), ("gdp", None, 64, 9.0), ("zcdp", None, 64, 2.0)],
)
def test_the_epsilon_of_a_fixed_spend_does_not_hold_at_any_time(
    name, orders, steps, factor
) -> None:
    """The same search finds stopping rules that exceed delta several times."""
    row = MEASURES[name]
    shown = [row.epsilon(amounts(row, at / steps, orders), DELTA) for at in range(1, steps + 1)]
    assert reached_delta(shown, 1.0) > factor * DELTA


@pytest.mark.slow
@pytest.mark.parametrize("is_added", [True, False])
@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.01, 0.6)])
def test_no_stopping_rule_of_counted_steps_exceeds_delta(rate, noise, is_added) -> None:
    row, steps = steps_measure(StepShape(rate, noise)), 64
    spent = [[float(at)] for at in range(1, steps + 1)]
    shown = any_time(row, spent, steps * 2**44, DELTA)
    assert (np.diff(shown) >= 0.0).all()
    assert reached_delta_sampled(shown.tolist(), rate, noise, is_added=is_added) <= DELTA
    if is_added:  # in the other direction a step loses at most -log(1 - rate)
        fixed = row.epsilon(spent, DELTA).tolist()
        one, all_steps = (
            reached_delta_sampled(each, rate, noise, is_added=True) for each in (fixed[:1], fixed)
        )
        assert one == pytest.approx(DELTA, rel=1e-2)
        assert all_steps > 4 * DELTA


def test_one_step_reaches_the_delta_of_gaussian_dp() -> None:
    assert reached_delta([gdp_to_epsilon(1.0, DELTA)], 1.0) == pytest.approx(DELTA, rel=1e-4)


def test_one_order_and_pure_dp_need_no_correction() -> None:
    spent = np.array([[0.0], [0.1], [0.5]])
    found = any_time(MEASURES["renyi"], spent, 2**44, DELTA, [9.0])
    assert (found == renyi_to_epsilon([9.0], spent, DELTA)).all()
    assert any_time(MEASURES["pure-dp"], spent, 2**44, DELTA).tolist() == [0.0, 0.1, 0.5]


BUDGETS = [
    (MEASURES["gdp"], 2**44),  # mu 1
    (MEASURES["zcdp"], 2**43),  # rho 0.5
    (steps_measure(StepShape(0.01, 1.0)), 1000 * 2**44),
]


@pytest.mark.parametrize(("row", "budget"), BUDGETS)
def test_a_spend_is_rounded_up_to_fixed_parts_of_the_budget(row, budget) -> None:
    parts, shares = zip(*row.parts, strict=True)
    halves, eighths = {Fraction(1, 2**at) for at in range(8)}, {Fraction(n, 8) for n in range(1, 7)}
    assert set(parts) == halves | eighths
    assert sum(shares) <= 1
    ends = np.array([int(part * budget) for part in parts])
    below = np.concatenate([[1], ends[:-1] + 1])
    found, first, nothing = (
        any_time(row, row.stated(units)[:, np.newaxis], budget, DELTA)
        for units in (ends, below, np.zeros(1, dtype=np.int64))
    )
    assert (found == first).all()
    assert (np.diff(found) >= 0.0).all()
    assert nothing == [0.0]


@pytest.mark.parametrize(("row", "budget"), BUDGETS)
def test_unequal_shares_gain_at_the_end_and_lose_before_it(row, budget) -> None:
    published = published_parts(2 * [each for each, _ in BUDGETS].index(row))
    for part, *numbers in published:
        spent = [[float(row.stated(int(part * budget)))]]
        (now,) = any_time(row, spent, budget, DELTA)
        fixed, equal = (float(row.epsilon(spent[0], delta)) for delta in (DELTA, DELTA / 12))
        assert numbers == pytest.approx([fixed, now], abs=6e-4)
        assert now > fixed  # at the end of the budget, too: its epsilon holds as well
        assert (now > equal) == (part < Fraction(3, 4)) or part == Fraction(3, 4)
    assert len(published) == 8
    assert now < 0.91 * equal


def published_parts(first: int) -> list[tuple[Fraction, float, float]]:
    """The rows of the page: a part, and two epsilons from this column on."""
    page = Path("docs/research/odometers.md").read_text(encoding="utf-8")
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in cells if row[0].replace("/", "").isdigit()]
    return [(Fraction(row[0]), *map(float, row[1 + first : 3 + first])) for row in rows]
