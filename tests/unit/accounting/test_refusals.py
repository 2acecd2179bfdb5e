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
    square_root_column,
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


def refuses(call: Callable[..., object], /, **arguments: tuple[Any, list[Any]]) -> Refused:
    """Return a row; each argument is a value that is taken, and values that are refused."""
    usual = {name: value for name, (value, _) in arguments.items()}
    return Refused(call, usual, {name: bad for name, (_, bad) in arguments.items() if bad})


NAN, INF = math.nan, math.inf
NO_SIZE = [0.0, -1.0, NAN, INF]
NO_DELTA = [0.0, 1.0, -0.1, NAN, INF]
NO_NORMS = [[-1.0], [NAN], [INF], [[1.0]]]
NO_ORDERS = [[], [1.0], [0.5], [INF], [NAN], [2.0, 2.0]]
NO_RATE = [-0.1, 1.1, NAN, INF]
NO_FRACTION = [0.0, 1.0, -0.1, NAN]
ZERO, ONE = np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64)
GRID = NormGrid(1.0, 10)


def conversions() -> list[Refused]:
    delta, size = (1e-5, NO_DELTA), (1.0, [-1.0, NAN])
    orders = [2.0], [[order] for order in (INF, NAN, 1.0, -2.0, 2.0**41)]
    rdp = [1.0], [[-1.0], [NAN], [1.0, 1.0]]
    return [
        refuses(zcdp_to_epsilon, rho=size, delta=delta),
        refuses(gdp_to_epsilon, mu=size, delta=delta),
        refuses(gdp_to_delta, mu=size, epsilon=(1.0, [])),
        refuses(renyi_to_epsilon, orders=orders, rdp=rdp, delta=(0.5, NO_DELTA)),
        refuses(renyi_to_delta, orders=orders, rdp=rdp, epsilon=(1.0, [])),
        refuses(zcdp_budget, epsilon=size, delta=delta),
        refuses(gdp_budget, epsilon=size, delta=delta),
        refuses(
            curve_risk,
            epsilon=([1.0], [[-1.0]]),
            delta=([1e-5], [[1.5], [-0.1], [0.1, 0.1]]),
            false_positive_rate=(0.1, NO_FRACTION),
        ),
    ]


def costs() -> list[Refused]:
    sampled, norms, orders = PoissonGaussian(1.0, 0.5), ([1.0], NO_NORMS), ([2.0], NO_ORDERS)
    no_column = [[0.0], [], [NAN]]
    no_budget = [-1.0, 2.0**-45, 5e-324, NAN, INF, math.nextafter(2.0**17, 1e9), 1e200]
    no_kind = [np.int32, np.longdouble, np.complex64, "f5", object, 7]
    no_shape = [PoissonGaussian(9.0, 0.11), Gaussian(9.0), Laplace(9.0)]
    return [
        refuses(Gaussian, noise_stddev=(1.0, [*NO_SIZE, 2**70 + 1])),
        refuses(Laplace, scale=(1.0, NO_SIZE)),
        refuses(PoissonGaussian, noise_stddev=(1.0, NO_SIZE), sampling_rate=(0.5, NO_RATE)),
        refuses(partial(PoissonRecords, 1.0, 0.1), records=(1, [0, -1, 1001, 2.0, True])),
        refuses(
            zcdp_cost,
            mechanism=(Gaussian(1.0), ["gaussian", sampled, PoissonRecords(1.0, 0.1, 2)]),
            norms=([1.0], [*NO_NORMS, 1.0]),
        ),
        refuses(
            gdp_cost, mechanism=(Gaussian(1.0), [sampled, Laplace(1.0), PureDP()]), norms=norms
        ),
        *(
            refuses(partial(renyi_cost, PoissonGaussian(1.0, rate)), norms=norms, orders=orders)
            for rate in (0.5, 1.0, 0.0)
        ),
        refuses(
            partial(MEASURES["renyi"].charge_units, sampled),
            norms=norms,
            orders=([2.0], [*NO_ORDERS, None]),
        ),
        refuses(
            partial(MEASURES["zcdp"].charge_units, Gaussian(1.0), [1.0]), orders=(None, [[2.0]])
        ),
        refuses(
            partial(MEASURES["pure-dp"].charge_units, norms=[1.0]),
            mechanism=(PureDP(), [Gaussian(1.0), sampled]),
        ),
        refuses(
            square_root_column,
            bands=(3, [0, 2**14 + 1, 1.5, None]),
            momentum=(0.5, [1.0, -0.1, NAN, "0"]),
        ),
        refuses(banded_step, column=([1.0], no_column), noise_stddev=(1.0, [])),
        refuses(StepShape, sampling_rate=(0.1, [0.0, 1.1]), noise_multiplier=(1.0, [0.0, INF])),
        refuses(
            partial(StepShape(0.1, 2.0).units, norms=[1.0]),
            mechanism=(PoissonGaussian(9.0, 0.1), no_shape),
        ),
        refuses(
            partial(steps_measure(StepShape(0.01, 0.3)).budgets_for, delta=1e-5),
            epsilon=(50.0, [1.0]),
        ),
        refuses(cost_units, cost=([0.5], [[0.5, -1e-300], [NAN], [-INF]])),
        refuses(budget_units, budget=(1.0, no_budget), power=(1, [0, 3, 1.0, "2", None])),
        refuses(partial(round_to, [1.0]), kind=(np.float32, no_kind), toward=("up", ["nearest"])),
    ]


def grids() -> list[Refused]:
    clip_norm, no_norms = (1.0, [*NO_SIZE, 5e-324]), [[0.5, n] for n in (1 + 2**-52, -0.1, NAN)]
    no_table = [
        *([1, 2], [0, 2, 1], [0], [0.0, 1.0], [0, -1], [[0, 0], [2, 1], [1, 2]]),
        *(np.zeros(shape, dtype=np.int64) for shape in (257, (3, 0), (2, 2, 2))),
    ]
    return [
        *(
            refuses(call, clip_norm=clip_norm, levels=(10, [0, 10.0, True, 2**16 + 1]))
            for call in (NormGrid, grid_norms)
        ),
        *(
            refuses(call, clip_norm=clip_norm, levels=(10, [0, 256, True]))
            for call in (
                partial(levels_of, [0.0]),
                partial(MEASURES["zcdp"].cost_table, Gaussian(1.0)),
            )
        ),
        *(
            refuses(call, norms=([0.5], no_norms))
            for call in (GRID.levels_of, lambda norms: levels_of(norms, 1.0, 100))
        ),
        refuses(GRID.counts, norms=([[0.5]], [[[2.0]], [[INF]]])),
        refuses(lambda cost_table: checked_cost_table(cost_table), cost_table=([0, 1], no_table)),
    ]


def filters() -> list[Refused]:
    no_budget = [-1e-30, -1.0, 1e-30, NAN, INF, 1e9, 1e200]
    no_units = [-1, MAX_BUDGET_UNITS + 1, 1.5, True]
    no_spent = [[-1], [2**44 + 1], [2**70], [1.5], [True], ["1"], [], [1, 2], [None]]
    no_costs = [ONE, np.ones((2, 3), dtype=np.int64), -np.ones((2, 2), dtype=np.int64)]
    no_budgets = [None, 1, [], [1, 2], [1.5], [True], {1: 2}, [[1], [1, 2]]]
    found = [
        refuses(ZcdpFilter, rho=(1.0, no_budget)),
        refuses(GdpFilter, mu=(1.0, no_budget)),
        refuses(partial(RenyiFilter, [2.0]), budgets=([1.0], [[b] for b in no_budget])),
        refuses(
            lambda budget_units: ZcdpFilter.from_units(budget_units), budget_units=(1, no_units)
        ),
        refuses(
            lambda budget_units: RenyiFilter.from_units([2.0], [budget_units]),
            budget_units=(1, no_units),
        ),
        refuses(partial(RenyiFilter.from_units, [2.0]), budgets=([1], [[1, 2]])),
        refuses(
            RogersFilter,
            epsilon=(1.0, [-1.0, NAN, INF, 512.1]),
            delta=(1e-5, [*NO_DELTA, 0.5, math.exp(-1.0)]),
        ),
        refuses(partial(LocalFilter, ZcdpFilter(1.0)), spent=([0], no_spent)),
        refuses(
            best_order,
            costs=(np.array([[1, 2]]), no_costs),
            budgets=([1, 2], [[], ZERO[:0], [1, -1], [1.0, 2.0], [1] * 257]),
        ),
        refuses(candidate_orders, epsilon=(1.0, [0.0]), delta=(1e-300, [])),
        refuses(MEASURES["zcdp"].filter_of, budgets=([1], no_budgets)),
        refuses(steps_measure, shape=(StepShape(0.1, 2.0), [None, 0.1, "steps"])),
        refuses(RenyiTracker, order=(2.0, [1.0]), step=(1.0, [*NO_SIZE, 1e9, 10**400, 1e200])),
        refuses(GdpOdometer, step=(1.0, [*NO_SIZE, 1e9, 10**400, 1e200, [0.5, 1.0]])),
        refuses(LecuyerOdometer, orders=([2.0], NO_ORDERS), delta=(1e-5, NO_DELTA)),
    ]
    for rule in (ZcdpFilter(1.0), GdpFilter(1.3), RenyiFilter([1.5, 8.0], [1.0, 5.0])):
        good = rule.initial_state(2)
        cost, over = np.full(good.shape, 0.1), good.copy()
        over[1] = max(rule.budget_units) + 1
        no_state = [over, good - 1, good.astype(float), good[:, np.newaxis, np.newaxis]]
        found += [
            refuses(
                rule.admit,
                state=(good, no_state),
                cost=(cost, [cost - 1.0, cost + NAN, cost[:1]]),
            ),
            refuses(rule.remaining, state=(good, no_state)),
            refuses(
                partial(rule.grant, good, Gaussian(1.0)),
                norms=([1.0, 1.0], [[1.0]]),
                clip_norm=(1.0, [0.0]),
            ),
            refuses(rule.initial_state, n=(2, [-1])),
        ]
    one_order = RenyiFilter.from_units([2.0, 3.0], [10, 100])
    rogers = RogersFilter(1.0, 1e-5)
    start = rogers.initial_state(2)
    no_start = [start[:, 0], start.astype(float), start - 1, start + 2**61 + 1]
    tracker, lecuyer = RenyiTracker(2.0, 1.0), LecuyerOdometer([2.0, 8.0], 1e-5)
    state = lecuyer.initial_state(1)
    no_spend = [state[0], state[:, :1], state.astype(float), state - 1, state + 2**61 + 2]
    return [
        *found,
        refuses(
            one_order.remaining,
            state=(np.array([[1, 0]]), [np.array([[11, 0]]), np.array([1, 0])]),
        ),
        refuses(
            rogers.admit,
            state=(start, no_start),
            cost=([0.1, 0.1], [[-0.1, 0.1], [NAN, 0.1], [0.1], [[0.1, 0.1]]]),
        ),
        refuses(rogers.initial_state, n=(2, [-1])),
        refuses(
            tracker.advance,
            state=(tracker.initial_state(1), [ZERO]),
            cost=([0.1], [[NAN], [0.1, 0.1]]),
        ),
        refuses(
            lecuyer.advance,
            state=(state, no_spend),
            cost=([[0.1, 0.1]], [[0.1, 0.1], [[0.1]], [[-0.1, 0.1]], [[NAN, 0.1]]]),
        ),
    ]


def releases() -> list[Refused]:
    no_stddev = [Fraction(0), Fraction(-1), Fraction(LARGEST_STDDEV) * 2]
    # No float64 is as large as the norm of the fourth.
    no_rows = [[NAN], [[1.0, INF]], [[[1.0]]], [[1.7e308, 1.7e308]], ["1"]]
    return [
        refuses(
            KeySelection,
            universe=(2, [1, 256**65]),
            contribution=(1.0, [0.0, 2.0**-21]),
            noise_stddev=(1.0, [0.0]),
        ),
        refuses(partial(heads, 3), rate=(0.5, [-0.1, 1.1, NAN])),
        refuses(ExactNoise, generator=(None, [7, "os", np.random.PCG64(0)])),
        refuses(ExactNormals, generator=(None, [7, "os", np.random.PCG64(0)])),
        refuses(lambda stddev: ExactNormals().draw(stddev, 3), stddev=(Fraction(1), no_stddev)),
        refuses(
            clip_rows,
            rows=([1.0], no_rows),
            granted=([1.0], [[-1.0], [NAN], [1.0, 1.0], 1.0]),
        ),
        refuses(norm_products, a=([1.0], []), b=([1.0], [[1.0, 2.0]])),
    ]


def reports() -> list[Refused]:
    report = ReportAccountant(Gaussian(2.0), GRID)
    counts = np.zeros((1, 10), dtype=np.int64)
    no_counts = [
        *(np.zeros((2, 9), np.int64), np.zeros((1, 2, 10), np.int64), np.zeros((2, 10))),
        *(np.zeros((2, 10), np.bool_), counts - 1, counts + 2**46 + 1, np.int64(3), []),
    ]
    no_amounts, no_epsilon = [[-1.0], [1.0, 2.0], [NAN]], [-1.0, INF, NAN]
    found = [
        refuses(partial(call, method=method), counts=(counts, no_counts))
        for call in (partial(report.epsilon, delta=1e-5), partial(report.delta, epsilon=1.0))
        for method in METHODS
    ]
    for name in ("gdp", "zcdp", "renyi", "pure-dp"):
        row, orders = MEASURES[name], [2.0] if name == "renyi" else None
        epsilon = partial(row.epsilon, orders=orders)
        found.append(refuses(epsilon, amounts=([1.0], no_amounts), delta=(0.1, [0.0, 1.0, 2.0])))
    for name in ("gdp", "zcdp"):
        row = MEASURES[name]
        found += [
            refuses(partial(row.risk, false_positive_rate=0.1), amounts=([1.0], no_amounts)),
            refuses(
                partial(row.epsilon, when="any time"),
                amounts=([[0.1]], [[[[0.1]]], [[2.02]]]),
                delta=(1e-5, [1.0, 5e-324]),  # a part of it is no float64
                budget=(2**44, [None, -1, 2**61 + 1, 0.5]),
            ),
            refuses(partial(row.epsilon, [1.0], 0.1), when=("fixed", ["later"])),
        ]
    return [
        *found,
        refuses(
            partial(report.epsilon, counts), delta=(1e-5, NO_DELTA), method=("renyi", ["moments"])
        ),
        refuses(
            noise_for_epsilon,
            epsilon=(1.0, no_epsilon),
            delta=(1e-5, NO_DELTA),
            steps=(10, [0, -5, 2.5, True, 10**9 + 1]),
            sampling_rate=(1.0, [0.0, 1.5, -0.1, NAN]),
            clip_norm=(1.0, NO_SIZE),
        ),
        refuses(noise_for_norm_budget, norm_budget=(1.0, NO_SIZE), rho=(1.0, [*NO_SIZE, 1e-14])),
        refuses(partial(report.delta, counts), epsilon=(1.0, no_epsilon)),
        refuses(
            lambda mechanism, grid, orders: ReportAccountant(mechanism, grid, orders=orders),
            mechanism=(Gaussian(1.0), ["gaussian", [Gaussian(1.0), "laplace"]]),
            grid=(GRID, [1.0, [GRID, GRID]]),
            orders=(None, NO_ORDERS),
        ),
        refuses(partial(report.risk, counts), false_positive_rate=(0.1, NO_FRACTION)),
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

OTHERS: list[Any] = [
    *("x", b"x", None, 7, 1.0, [], ["x"], {}, set(), object(), int, Fraction(1, 3), 10**400),
    *(np.array([1.0, 2.0]), np.array(["x", "y"]), np.array(1.0)),
]
"""Instead of texts, mechanisms, shapes and so on."""


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
        else:
            extremes = OTHERS
        for value in extremes:
            with suppress(InvalidInput):
                result = row.call(**{**row.usual, argument: value})
                assert not has_nan(result), (argument, value)
