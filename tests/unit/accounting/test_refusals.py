"""One table of bad requests: each argument of each function, and values that it refuses.

Every number and array of a row is also replaced by every extreme value: a function ends with a
result or `InvalidInput`, never with another exception, a warning or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from accounting import (
    MAX_BUDGET_UNITS,
    MEASURES,
    BudgetFilter,
    Gaussian,
    GdpFilter,
    InvalidInput,
    Laplace,
    Mechanism,
    NormGrid,
    PoissonGaussian,
    PoissonRecords,
    PureDP,
    PureDPFilter,
    RenyiFilter,
    ReportAccountant,
    StepsFilter,
    StepShape,
    ZcdpFilter,
    advance_units,
    banded_step,
    banded_steps,
    best_order,
    budget_units,
    candidate_orders,
    checked_cost_table,
    cost_units,
    curve_risk,
    from_units,
    from_units_down,
    gdp_budget,
    gdp_cost,
    gdp_risk,
    gdp_to_delta,
    gdp_to_epsilon,
    grid_norms,
    levels_of,
    mechanism_from,
    noise_for_epsilon,
    noise_for_norm_budget,
    pure_to_gdp,
    renyi_budgets,
    renyi_cost,
    renyi_to_delta,
    renyi_to_epsilon,
    round_to,
    steps_measure,
    steps_noise_multiplier,
    zcdp_budget,
    zcdp_cost,
    zcdp_to_delta,
    zcdp_to_epsilon,
)
from accounting.release import (
    ExactNoise,
    KeySelection,
    clip_rows,
)
from accounting.release.clipping import norm_products
from accounting.release.exact_coins import heads
from accounting.release.exact_normals import LARGEST_STDDEV, ExactNormals
from accounting.reports import METHODS
from accounting.reports.renyi_report import RenyiReport
from accounting.research import (
    GdpOdometer,
    LecuyerOdometer,
    LocalFilter,
    RenyiTracker,
    RogersFilter,
)
from tests.unit.accounting.refusals import refused


class Refused(NamedTuple):
    """A function, arguments that it takes, and for each argument values that it refuses."""

    call: Callable[..., object]
    usual: dict[str, Any]
    bad: dict[str, list[Any]]


NAN, INF = math.nan, math.inf
NO_SIZE = [0.0, -1.0, NAN, INF]
NO_DELTA = [0.0, 1.0, -0.1, NAN, INF]
NO_NORMS = [[-1.0], [NAN], [INF], [[1.0]]]
NO_ORDERS = [[], [1.0], [0.5], [INF], [NAN], [2.0, 2.0]]
ZERO, ONE = np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64)
FIRST = np.array([0, 1], dtype=np.uint8)
GRID = NormGrid(1.0, 10)


def conversions() -> list[Refused]:
    renyi = {"orders": [2.0], "rdp": [1.0]}
    no_curve = {"orders": [[order] for order in (INF, NAN, 1.0, -2.0, 2.0**41)]}
    no_curve["rdp"] = [[-1.0], [NAN], [1.0, 1.0]]
    no_target = {"epsilon": [-1.0, NAN], "delta": NO_DELTA}
    return [
        Refused(
            zcdp_to_epsilon, {"rho": 1.0, "delta": 1e-5}, {"rho": [-1.0, NAN], "delta": NO_DELTA}
        ),
        Refused(gdp_to_epsilon, {"mu": 1.0, "delta": 1e-5}, {"mu": [-1.0, NAN], "delta": NO_DELTA}),
        Refused(gdp_to_delta, {"mu": 1.0, "epsilon": 1.0}, {"mu": [-1.0, NAN]}),
        Refused(renyi_to_epsilon, {**renyi, "delta": 0.5}, {**no_curve, "delta": NO_DELTA}),
        Refused(renyi_to_delta, {**renyi, "epsilon": 1.0}, no_curve),
        Refused(zcdp_budget, {"epsilon": 1.0, "delta": 1e-5}, no_target),
        Refused(gdp_budget, {"epsilon": 1.0, "delta": 1e-5}, no_target),
        Refused(
            curve_risk,
            {"epsilon": [1.0], "delta": [1e-5], "false_positive_rate": 0.1},
            {
                "epsilon": [[-1.0]],
                "delta": [[1.5], [-0.1], [0.1, 0.1]],
                "false_positive_rate": [0.0, 1.0, NAN],
            },
        ),
    ]


def costs() -> list[Refused]:
    sampled = PoissonGaussian(1.0, 0.5)
    step = {"mechanism": Gaussian(1.0), "norms": [1.0]}
    at_orders = {"mechanism": sampled, "norms": [1.0], "orders": [2.0]}
    no_step = {"norms": NO_NORMS, "orders": NO_ORDERS}
    return [
        Refused(Gaussian, {"noise_stddev": 1.0}, {"noise_stddev": [*NO_SIZE, 2**70 + 1]}),
        Refused(Laplace, {"scale": 1.0}, {"scale": NO_SIZE}),
        Refused(
            PoissonGaussian,
            {"noise_stddev": 1.0, "sampling_rate": 0.5},
            {"noise_stddev": NO_SIZE, "sampling_rate": [-0.1, 1.1, NAN, INF]},
        ),
        Refused(
            partial(PoissonRecords, 1.0, 0.1), {"records": 1}, {"records": [0, -1, 1001, 2.0, True]}
        ),
        Refused(
            zcdp_cost,
            step,
            {
                "mechanism": ["gaussian", sampled, PoissonRecords(1.0, 0.1, 2)],
                "norms": [*NO_NORMS, 1.0],
            },
        ),
        Refused(gdp_cost, step, {"mechanism": [sampled, Laplace(1.0)], "norms": NO_NORMS}),
        Refused(renyi_cost, at_orders, no_step),
        Refused(renyi_cost, {**at_orders, "mechanism": PoissonGaussian(1.0, 1.0)}, no_step),
        Refused(renyi_cost, {**at_orders, "mechanism": PoissonGaussian(1.0, 0.0)}, no_step),
        Refused(
            MEASURES["renyi"].charge_units,
            at_orders,
            {**no_step, "orders": [*NO_ORDERS, None]},
        ),
        Refused(MEASURES["zcdp"].charge_units, {**step, "orders": None}, {"orders": [[2.0]]}),
        Refused(
            partial(MEASURES["pure-dp"].charge_units, norms=[1.0]),
            {"mechanism": PureDP()},
            {"mechanism": [Gaussian(1.0), sampled]},
        ),
        Refused(
            banded_step, {"column": [1.0], "noise_stddev": 1.0}, {"column": [[0.0], [], [NAN]]}
        ),
        Refused(
            StepShape,
            {"sampling_rate": 0.1, "noise_multiplier": 1.0},
            {"sampling_rate": [0.0, 1.1], "noise_multiplier": [0.0, INF]},
        ),
        Refused(
            partial(StepShape(0.1, 2.0).units, norms=[1.0]),
            {"mechanism": PoissonGaussian(9.0, 0.1)},
            {"mechanism": [PoissonGaussian(9.0, 0.11), Gaussian(9.0), Laplace(9.0)]},
        ),
        Refused(
            partial(steps_measure(StepShape(0.01, 0.3)).budgets_for, delta=1e-5),
            {"epsilon": 50.0},
            {"epsilon": [1.0]},
        ),
        Refused(cost_units, {"cost": [0.5]}, {"cost": [[0.5, -1e-300], [NAN], [-INF]]}),
        Refused(
            budget_units,
            {"budget": 1.0},
            {"budget": [-1.0, 2.0**-45, 5e-324, NAN, INF, math.nextafter(2.0**17, 1e9), 1e200]},
        ),
        Refused(
            partial(round_to, [1.0]),
            {"kind": np.float32, "toward": "up"},
            {
                "kind": [np.int32, np.longdouble, np.complex64, "f5", object, 7],
                "toward": ["nearest"],
            },
        ),
    ]


def grids() -> list[Refused]:
    grid = {"clip_norm": 1.0, "levels": 10}
    no_grid = {"clip_norm": [*NO_SIZE, 5e-324], "levels": [0, 10.0, True]}
    return [
        Refused(NormGrid, grid, {**no_grid, "levels": [*no_grid["levels"], 2**16 + 1]}),
        *(
            Refused(
                call, {"norms": [0.5]}, {"norms": [[0.5, n] for n in (1.0 + 2**-52, -0.1, NAN)]}
            )
            for call in (GRID.levels_of, lambda norms: levels_of(norms, 1.0, 100))
        ),
        Refused(grid_norms, grid, {**no_grid, "levels": [*no_grid["levels"], 2**16 + 1]}),
        Refused(GRID.counts, {"norms": [[0.5]]}, {"norms": [[[2.0]], [[INF]]]}),
        *(
            Refused(call, grid, {**no_grid, "levels": [0, 256, True]})
            for call in (
                partial(levels_of, [0.0]),
                partial(MEASURES["zcdp"].cost_table, Gaussian(1.0)),
            )
        ),
        Refused(
            lambda cost_table: checked_cost_table(cost_table),
            {"cost_table": [0, 1]},
            {
                "cost_table": [
                    *([1, 2], [0, 2, 1], [0], [0.0, 1.0], [0, -1], [[0, 0], [2, 1], [1, 2]]),
                    *(np.zeros(shape, dtype=np.int64) for shape in (257, (3, 0), (2, 2, 2))),
                ]
            },
        ),
    ]


def filters() -> list[Refused]:
    no_budget = [-1e-30, -1.0, 1e-30, NAN, INF, 1e9, 1e200]
    no_units = [-1, MAX_BUDGET_UNITS + 1, 1.5, True]
    found = [
        Refused(ZcdpFilter, {"rho": 1.0}, {"rho": no_budget}),
        Refused(GdpFilter, {"mu": 1.0}, {"mu": no_budget}),
        Refused(
            partial(RenyiFilter, [2.0]), {"budgets": [1.0]}, {"budgets": [[b] for b in no_budget]}
        ),
        Refused(
            lambda budget_units: ZcdpFilter.from_units(budget_units),
            {"budget_units": 1},
            {"budget_units": no_units},
        ),
        Refused(
            lambda budget_units: RenyiFilter.from_units([2.0], [budget_units]),
            {"budget_units": 1},
            {"budget_units": no_units},
        ),
        Refused(partial(RenyiFilter.from_units, [2.0]), {"budgets": [1]}, {"budgets": [[1, 2]]}),
        Refused(
            RogersFilter,
            {"epsilon": 1.0, "delta": 1e-5},
            {
                "epsilon": [-1.0, NAN, INF, 512.1],
                "delta": [*NO_DELTA, 0.5, math.exp(-1.0)],
            },
        ),
        Refused(
            partial(LocalFilter, ZcdpFilter(1.0)),
            {"spent": [0]},
            {"spent": [[-1], [2**44 + 1], [2**70], [1.5], [True], ["1"], [], [1, 2], [None]]},
        ),
        Refused(
            best_order,
            {"costs": np.array([[1, 2]]), "budgets": [1, 2]},
            {
                "costs": [ONE, np.ones((2, 3), dtype=np.int64), -np.ones((2, 2), dtype=np.int64)],
                "budgets": [[], ZERO[:0], [1, -1], [1.0, 2.0], [1] * 257],
            },
        ),
        Refused(candidate_orders, {"epsilon": 1.0, "delta": 1e-300}, {"epsilon": [0.0]}),
        Refused(
            MEASURES["zcdp"].filter_of,
            {"budgets": [1]},
            {"budgets": [None, 1, [], [1, 2], [1.5], [True], {1: 2}, [[1], [1, 2]]]},
        ),
        Refused(steps_measure, {"shape": StepShape(0.1, 2.0)}, {"shape": [None, 0.1, "steps"]}),
        Refused(
            lambda tick_size, ticks=ONE, used=ZERO: advance_units(used, ticks, ZERO, tick_size),
            {"tick_size": 1},
            {
                "tick_size": [0, -1, MAX_BUDGET_UNITS + 1],
                "ticks": [ONE[:1], -ONE],
                "used": [-ONE, ZERO[:, np.newaxis, np.newaxis]],
            },
        ),
        Refused(
            RenyiTracker, {"order": 2.0, "step": 1.0}, {"order": [1.0], "step": [*NO_SIZE, 1e9]}
        ),
        Refused(GdpOdometer, {"step": 1.0}, {"step": [*NO_SIZE, 1e9, 10**400, 1e200]}),
        Refused(
            LecuyerOdometer,
            {"orders": [2.0], "delta": 1e-5, "growth": 2.0},
            {"orders": NO_ORDERS, "delta": NO_DELTA, "growth": [1.0, 0.0, INF, NAN, True]},
        ),
    ]
    for rule in (ZcdpFilter(1.0), GdpFilter(1.3), RenyiFilter([1.5, 8.0], [1.0, 5.0])):
        good = rule.initial_state(2)
        cost, over = np.full(good.shape, 0.1), good.copy()
        over[1] = max(rule.budget_units) + 1
        no_state = {"state": [over, good - 1, good.astype(float), good[:, np.newaxis, np.newaxis]]}
        no_cost = {"cost": [cost - 1.0, cost + NAN, cost[:1]]}
        found += [
            Refused(rule.admit, {"state": good, "cost": cost}, {**no_state, **no_cost}),
            Refused(rule.remaining, {"state": good}, no_state),
            Refused(
                partial(rule.grant, good, Gaussian(1.0)),
                {"norms": [1.0, 1.0], "clip_norm": 1.0},
                {"norms": [[1.0]], "clip_norm": [0.0]},
            ),
            Refused(rule.initial_state, {"n": 2}, {"n": [-1]}),
        ]
    one_order = RenyiFilter.from_units([2.0, 3.0], [10, 100])
    rogers = RogersFilter(1.0, 1e-5)
    start = rogers.initial_state(2)
    no_start = {"state": [start[:, 0], start.astype(float), start - 1, start + 2**61 + 1]}
    tracker, lecuyer = RenyiTracker(2.0, 1.0), LecuyerOdometer([2.0, 8.0], 1e-5)
    state = lecuyer.initial_state(1)
    no_spend = [state[0], state[:, :1], state.astype(float), state - 1, state + 2**61 + 2]
    return [
        *found,
        Refused(
            one_order.remaining,
            {"state": np.array([[1, 0]])},
            {"state": [np.array([[11, 0]]), np.array([1, 0])]},
        ),
        Refused(
            rogers.admit,
            {"state": start, "cost": [0.1, 0.1]},
            {**no_start, "cost": [[-0.1, 0.1], [NAN, 0.1], [0.1], [[0.1, 0.1]]]},
        ),
        Refused(rogers.initial_state, {"n": 2}, {"n": [-1]}),
        Refused(
            tracker.advance,
            {"state": tracker.initial_state(1), "cost": [0.1]},
            {"state": [ZERO], "cost": [[NAN], [0.1, 0.1]]},
        ),
        Refused(
            lecuyer.advance,
            {"state": state, "cost": [[0.1, 0.1]]},
            {"state": no_spend, "cost": [[0.1, 0.1], [[0.1]], [[-0.1, 0.1]], [[NAN, 0.1]]]},
        ),
    ]


def releases() -> list[Refused]:
    return [
        Refused(
            KeySelection,
            {"universe": 2, "contribution": 1.0, "noise_stddev": 1.0},
            {"universe": [1, 256**65], "contribution": [0.0, 2.0**-21], "noise_stddev": [0.0]},
        ),
        Refused(partial(heads, 3), {"rate": 0.5}, {"rate": [-0.1, 1.1, NAN]}),
        Refused(ExactNoise, {"generator": None}, {"generator": [7, "os", np.random.PCG64(0)]}),
        Refused(
            lambda stddev: ExactNormals().draw(stddev, 3),
            {"stddev": Fraction(1)},
            {"stddev": [Fraction(0), Fraction(-1), Fraction(LARGEST_STDDEV) * 2]},
        ),
        Refused(
            clip_rows,
            {"rows": [1.0], "granted": [1.0]},
            {
                # No float64 is as large as the norm of the fourth.
                "rows": [[NAN], [[1.0, INF]], [[[1.0]]], [[1.7e308, 1.7e308]], ["1"]],
                "granted": [[-1.0], [NAN], [1.0, 1.0], 1.0],
            },
        ),
        Refused(norm_products, {"a": [1.0], "b": [1.0]}, {"b": [[1.0, 2.0]]}),
    ]


def reports() -> list[Refused]:
    report = ReportAccountant(Gaussian(2.0), GRID)
    counts = np.zeros((1, 10), dtype=np.int64)
    noise = {"epsilon": 1.0, "delta": 1e-5, "steps": 10, "sampling_rate": 1.0, "clip_norm": 1.0}
    no_noise = {"epsilon": [-1.0, INF, NAN], "delta": NO_DELTA, "clip_norm": NO_SIZE}
    no_noise["steps"] = [0, -5, 2.5, True, 10**9 + 1]
    no_noise["sampling_rate"] = [0.0, 1.5, -0.1, NAN]
    no_counts = [
        *(np.zeros((2, 9), np.int64), np.zeros((1, 2, 10), np.int64), np.zeros((2, 10))),
        *(np.zeros((2, 10), np.bool_), counts - 1, counts + 2**46 + 1, np.int64(3), []),
    ]
    return [
        *(
            Refused(call, {"counts": counts, "method": method}, {"counts": no_counts})
            for call in (partial(report.epsilon, delta=1e-5), partial(report.delta, epsilon=1.0))
            for method in METHODS
        ),
        Refused(
            partial(report.epsilon, counts),
            {"delta": 1e-5, "method": "renyi"},
            {"delta": NO_DELTA, "method": ["moments"]},
        ),
        Refused(noise_for_epsilon, noise, no_noise),
        Refused(partial(report.delta, counts), {"epsilon": 1.0}, {"epsilon": [-1.0, NAN, INF]}),
        Refused(
            lambda mechanism, grid, orders=None: ReportAccountant(mechanism, grid, orders=orders),
            {"mechanism": Gaussian(1.0), "grid": GRID},
            {
                "mechanism": ["gaussian", [Gaussian(1.0), "laplace"]],
                "grid": [1.0, [GRID, GRID]],
                "orders": [[1.0]],
            },
        ),
        Refused(
            partial(RenyiReport, Gaussian(1.0), GRID.norms),
            {"orders": [2.0]},
            {"orders": NO_ORDERS},
        ),
        Refused(
            partial(report.risk, counts),
            {"false_positive_rate": 0.1},
            {"false_positive_rate": [0.0, 1.0, -0.1, NAN]},
        ),
    ]


def takes(call: Callable[..., object], *usual: Any) -> Refused:
    """Return a row without bad values of its own."""
    named = {str(at): value for at, value in enumerate(usual)}
    return Refused(lambda **given: call(*given.values()), named, {})


ORDERS = [1.5, 2.0, 64.0]
MECHANISMS: list[Mechanism] = [
    *(Gaussian(s) for s in (1.0, 5e-324, 1.7e308)),
    *(Laplace(s) for s in (1.0, 5e-324, 1.7e308)),
    *(PureDP(), PoissonGaussian(1.0, 0.01), PoissonGaussian(5e-324, 5e-324)),
    *(PoissonGaussian(1.7e308, 1.0 - 2**-53), PoissonGaussian(1.0, 1.0)),
    PoissonRecords(1.0, 0.01, 3),
]
RULES: list[BudgetFilter] = [
    *(ZcdpFilter(0.3), GdpFilter(0.3), ZcdpFilter(0.0), RenyiFilter([2.0], [0.3])),
    *(PureDPFilter(0.3), StepsFilter(StepShape(1.0, 2.0), 3), StepsFilter(StepShape(0.1, 2.0), 3)),
]


def of_mechanisms() -> Iterator[Refused]:
    for m in MECHANISMS:
        for call in (zcdp_cost, gdp_cost):
            yield takes(partial(call, m), [1.0])
        for cost in (renyi_cost, MEASURES["renyi"].charge_units):
            yield takes(partial(cost, m), [1.0], ORDERS)
        for name in ("zcdp", "gdp", "pure-dp"):
            yield takes(partial(MEASURES[name].charge_units, m), [1.0])
            yield takes(partial(MEASURES[name].cost_table, m), 1.0, 3)
        yield takes(partial(MEASURES["renyi"].cost_table, m), 1.0, 3, ORDERS)
        for rule in RULES:
            first = rule.initial_state(1)
            yield takes(lambda s, n, rule=rule, m=m: rule.admit_norms(s, m, n), first, [1.0])
            yield takes(lambda s, n, c, rule=rule, m=m: rule.grant(s, m, n, c), first, [1.0], 1.0)
            yield takes(lambda n, rule=rule, m=m: LocalFilter(rule).admit(m, n), 0.1)
            yield takes(lambda n, c, rule=rule, m=m: LocalFilter(rule).grant(m, n, c), 0.1, 1.0)


def of_filters() -> Iterator[Refused]:
    rogers = RogersFilter(1.0, 1e-5)
    for rule in RULES:
        state = rule.initial_state(1)
        yield takes(rule.admit, state, np.full(state.shape, 0.1))
        yield takes(rule.admit_units, state, state)
        yield takes(rule.exhausted, state)
        yield takes(lambda spent, rule=rule: LocalFilter(rule, spent), [0])
        yield takes(lambda cost, rule=rule: LocalFilter(rule).admit_cost(cost), 0.1)
    yield takes(rogers.admit_units, rogers.initial_state(1), rogers.initial_state(1))
    yield takes(PureDPFilter, 1.0)


class GaussianDpEvent:
    """An event of dp_accounting."""

    def __init__(self, noise_multiplier: Any) -> None:
        self.noise_multiplier = noise_multiplier


def of_numbers() -> Iterator[Refused]:
    steps = steps_measure(StepShape(1.0, 8.0))
    units = np.zeros(1, dtype=np.int64)
    yield takes(steps.budgets_for, 1.0, 1e-5)
    yield takes(steps.epsilon, [2], 1e-5)
    yield takes(lambda n, b: steps.epsilon(n, 1e-5, when="any time", budget=b), [2], 3 * 2**44)
    yield takes(steps_noise_multiplier, 1.0, 1e-5, 1.0, 9)
    yield takes(noise_for_norm_budget, 1.0, 1.0)
    yield takes(lambda epsilon: noise_for_epsilon(epsilon, 1e-5, 10, 0.5), 1.0)
    yield takes(gdp_risk, 0.1, 0.01)
    yield takes(MEASURES["zcdp"].risk, [1.0], 0.01)
    yield takes(renyi_budgets, 1.0, 1e-5, ORDERS)
    yield takes(candidate_orders, 1.0, 1e-5)
    yield takes(pure_to_gdp, [1.0])
    yield takes(zcdp_to_delta, [0.1], 1.0)
    yield takes(from_units, units)
    yield takes(from_units_down, units)
    yield takes(lambda c, s, b, n: banded_steps(c, s, min_separation=b, steps=n), [1.0], 1.0, 2, 3)
    yield takes(lambda m, c: mechanism_from(GaussianDpEvent(m), c), 1.0, 1.0)


TABLE = [*conversions(), *costs(), *grids(), *filters(), *releases(), *reports()]
EXTENDED = [*TABLE, *of_mechanisms(), *of_filters(), *of_numbers()]
ROWS = [
    pytest.param(row, argument, id=f"{number}-{argument}")
    for number, row in enumerate(TABLE)
    for argument in row.bad
]


@pytest.mark.parametrize(("row", "argument"), ROWS)
def test_each_bad_argument_is_refused_by_name(row: Refused, argument: str) -> None:
    row.call(**row.usual)
    for value in row.bad[argument]:
        with refused(argument):
            row.call(**{**row.usual, argument: value})


NUMBERS: list[Any] = [
    *(0, -0.0, 5e-324, 1e-310, 1e-200, 1e-9, 0.3, 1.0 - 2**-53, 1, 1.0 + 2**-52, 100, 1e9, 1e18),
    *(1e100, 1e160, 1e200, 1.7e308, INF, -INF, NAN, -1, -5e-324, True, None, "1", [], [1.0], {}),
    *(object(), 1j, 10**400, 10**5000, -(10**400), 2**53 + 1, 2**63, Fraction(1, 3)),
    *(np.longdouble(1), np.float32(3.4e38), np.int8(-1), np.uint64(2**64 - 1), np.array(1.0)),
]
ARRAYS: list[Any] = [
    *([], [0.0], [1.0], [5e-324], [1.7e308], [1e200, 1e-200, 0.0, 1.0], [INF], [NAN], [-1.0]),
    *([[1.0]], [[]], 1.0, None, "a", ["1"], [None], [True], [1j], [[1], [1, 2]], {1: 2}, object()),
    *([10**400], [10**5000], [2**63], [Fraction(1, 3)], np.zeros((2, 2)), np.array([[0, 1]])),
    *(np.array([0]), np.array([1]), np.array([-1]), np.array([2**62]), np.array([2**63 - 1])),
    *(np.array([], dtype=np.int64), np.zeros((1, 1), dtype=np.int64), np.array([1.0] * 3)[::2]),
    *(np.array([1], dtype=np.float32), np.ma.array([1]), np.array(["2020"], dtype="M8[Y]")),
]


def has_nan(result: object) -> bool:
    if isinstance(result, tuple | list):
        return any(map(has_nan, result))
    if is_dataclass(result):
        return any(has_nan(getattr(result, part.name, None)) for part in fields(result))
    if isinstance(result, np.ndarray) and result.dtype.kind == "f":
        return bool(np.isnan(result).any())
    return isinstance(result, float) and math.isnan(result)


@pytest.mark.slow
@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
@pytest.mark.parametrize("row", EXTENDED, ids=range(len(EXTENDED)))
def test_extreme_arguments_give_a_result_or_invalid_input(row: Refused) -> None:
    for argument, usual in row.usual.items():
        extremes: list[Any] = []
        if isinstance(usual, list | np.ndarray):
            extremes = ARRAYS
        elif isinstance(usual, int | float):
            extremes = NUMBERS
        for value in extremes:
            with suppress(InvalidInput):
                result = row.call(**{**row.usual, argument: value})
                assert not has_nan(result), (argument, value)
