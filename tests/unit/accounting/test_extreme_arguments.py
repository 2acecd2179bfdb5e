"""Every public function, every argument, every extreme value: a result or `InvalidInput`.

Never another exception, never a warning, never NaN. The table names each function with arguments
that it takes; each in turn is replaced by everything that its kind of argument may be given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

import accounting
from accounting import (
    AccountTerms,
    BudgetAccount,
    BudgetFilter,
    ContinualCounter,
    Gaussian,
    GdpFilter,
    InvalidInput,
    Laplace,
    Mechanism,
    PerUserOrderFilter,
    PoissonGaussian,
    PoissonRecords,
    PureDP,
    PureDPFilter,
    RecurringCharge,
    RenyiFilter,
    RosterColumns,
    SparseVector,
    StatedCost,
    StepsFilter,
    StepShape,
    ZcdpFilter,
    research,
)
from accounting.research import (
    GdpOdometer,
    LecuyerOdometer,
    LocalFilter,
    RenyiTracker,
    RogersFilter,
)

NUMBERS: list[Any] = [
    *(0, -0.0, 5e-324, 1e-310, 1e-200, 1e-9, 0.3, 1.0 - 2**-53, 1, 1.0 + 2**-52, 100, 1e9, 1e18),
    *(1e100, 1e160, 1e200, 1.7e308, math.inf, -math.inf, math.nan, -1, -5e-324, True, None, "1"),
    *([], [1.0], {}, object(), 1j, 10**400, 10**5000, -(10**400), 2**53 + 1, 2**63),
    *(Fraction(1, 3), np.longdouble(1), np.float32(3.4e38), np.int8(-1), np.uint64(2**64 - 1)),
    *(np.array(1.0), np.array([1.0]), np.timedelta64(3, "s")),
]
ARRAYS: list[Any] = [
    *([], [0.0], [1.0], [5e-324], [1.7e308], [1e200, 1e-200, 0.0, 1.0], [math.inf], [math.nan]),
    *([-1.0], [[1.0]], [[]], 1.0, None, "a", ["1"], [None], [True], [1j], [[1], [1, 2]], {1: 2}),
    *([10**400], [10**5000], [2**63], [Fraction(1, 3)]),
    *(np.array([0]), np.array([1]), np.array([-1]), np.array([2**62]), np.array([2**63 - 1])),
    *(np.array([], dtype=np.int64), np.zeros((1, 1), dtype=np.int64), np.array([[0, 1]])),
    *(np.array([1], dtype=np.float32), np.ma.array([1]), np.array([1.0] * 3)[::2]),
    *(np.array(["2020"], dtype="M8[Y]"), np.zeros((2, 2)), object()),
]


class Case(NamedTuple):
    name: str
    call: Callable[..., object]
    usual: list[Any]


def one(name: str, call: Callable[..., object], *usual: Any) -> Case:
    return Case(name, call, list(usual))


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


ORDERS = [1.5, 2.0, 64.0]
NOTHING = np.zeros(1, dtype=np.int64)
MECHANISMS: list[Mechanism] = [
    *(Gaussian(s) for s in (1.0, 5e-324, 1.7e308)),
    *(Laplace(1.0), PureDP()),
    *(PoissonGaussian(1.0, 0.01), PoissonGaussian(5e-324, 5e-324)),
    PoissonGaussian(1.7e308, 1.0 - 2**-53),
    PoissonRecords(1.0, 0.01, 3),
]
FILTERS: list[BudgetFilter] = [
    *(ZcdpFilter(0.3), GdpFilter(0.3), ZcdpFilter(0.0)),
    RenyiFilter([2.0], [0.3]),
    *(StepsFilter(StepShape(1.0, 2.0), 3), StepsFilter(StepShape(0.1, 2.0), 3)),
]
ODOMETERS = [
    *(RenyiTracker(2.0, 0.3), GdpOdometer(0.3)),
    LecuyerOdometer([2.0], 1e-5),
]


def cases_of_mechanism(m: Mechanism) -> list[Case]:
    return [
        one("zcdp_cost", lambda n: accounting.zcdp_cost(m, n), [1.0]),
        one("gdp_cost", lambda n: accounting.gdp_cost(m, n), [1.0]),
        one("renyi_cost", lambda n, o: accounting.renyi_cost(m, n, o), [1.0], ORDERS),
        one("charge_units", lambda n: accounting.MEASURES["zcdp"].charge_units(m, n), [1.0]),
        one("charge_units", lambda n: accounting.MEASURES["gdp"].charge_units(m, n), [1.0]),
        one(
            "charge_units",
            lambda n, o: accounting.MEASURES["renyi"].charge_units(m, n, o),
            [1.0],
            ORDERS,
        ),
        one(
            "poisson_gaussian_divergence",
            lambda n, o: accounting.poisson_gaussian_divergence(m, n, o),
            *([1.0], ORDERS),
        ),
    ]


def cases_of_filter(rule: BudgetFilter) -> list[Case]:
    start = rule.initial_state(1)
    name, cost = type(rule).__name__, np.full(start.shape, 0.1)
    cases = [
        one(name, rule.initial_state, 1),
        one(name, rule.admit, start, cost),
        one(name, rule.admit_units, start, start),
        one(name, rule.remaining, start),
        one(name, rule.exhausted, start),
        one("LocalFilter", lambda spent: LocalFilter(rule, spent), [0]),
        one("LocalFilter", LocalFilter(rule).admit_cost, 0.1),
        one("LocalFilter", lambda cost: LocalFilter(rule).admit_cost(cost), [0.1]),
    ]
    for m in MECHANISMS:
        cases += [
            one(name, lambda s, n, m=m: rule.admit_norms(s, m, n), start, [1.0]),
            one(name, lambda s, n, c, m=m: rule.grant(s, m, n, c), start, [1.0], 1.0),
            one(name, lambda s, n, m=m: rule.grant_units(s, m, n), start, [1.0]),
            one("LocalFilter", lambda n, m=m: LocalFilter(rule).admit(m, n), 0.1),
            one("LocalFilter", lambda n, c, m=m: LocalFilter(rule).grant(m, n, c), 0.1, 1.0),
        ]
    return cases


def counter(**arguments: Any) -> ContinualCounter:
    given = {"horizon": 8, "generator": generator(), **arguments}
    if "noise_stddev" not in given:
        given.setdefault("rho", 1.0)
    return ContinualCounter(given.pop("horizon"), **given)


def vector(**arguments: Any) -> SparseVector:
    given = {"threshold": 1, "epsilon": 1.0, "generator": generator(), **arguments}
    return SparseVector(given.pop("threshold"), given.pop("epsilon"), **given)


class GaussianDpEvent:
    """As dp_accounting has it."""

    def __init__(self, noise_multiplier: Any) -> None:
        self.noise_multiplier = noise_multiplier


class Rows:
    """Balances of two users."""

    def __init__(self) -> None:
        self.spent = np.zeros(2, dtype=np.int64)
        self.base = np.zeros(2, dtype=np.int64)
        self.ticks = np.ones(2, dtype=np.int64)
        self.order = np.zeros(2, dtype=np.uint8)


def account() -> BudgetAccount:
    return BudgetAccount(AccountTerms((5,), (2,)), Rows())


def recurring(slots: Any = NOTHING, levels: Any = (1,), highest: Any = 3) -> RecurringCharge:
    return RecurringCharge([account()], [slots], levels, highest)


def restored(granted: Any, flags: Any, since: Any, steps: Any) -> RecurringCharge:
    columns = RosterColumns(np.array([1], dtype=np.uint8), granted, flags, since)
    return RecurringCharge.restored([account()], [NOTHING], columns, 3, steps=steps, cost_tables=[])


FIRST = np.zeros(1, dtype=np.uint8)
COST_TABLE = np.array([0, 1, 2, 3])
OWN = PerUserOrderFilter([2.0, 4.0], [0.3, 0.5])
STEPS = accounting.steps_measure(StepShape(1.0, 8.0))
ROGERS = RogersFilter(1.0, 1e-5)
TABLE: list[Case] = [
    *(case for m in MECHANISMS for case in cases_of_mechanism(m)),
    *(case for rule in FILTERS for case in cases_of_filter(rule)),
    one("Gaussian", Gaussian, 1.0),
    one("Laplace", Laplace, 1.0),
    one("PoissonGaussian", PoissonGaussian, 1.0, 0.5),
    one("PoissonRecords", PoissonRecords, 1.0, 0.5, 3),
    one("StepShape", StepShape, 0.1, 2.0),
    one("steps_measure", lambda e, d: STEPS.budgets_for(e, d), 1.0, 1e-5),
    one("steps_measure", lambda n, d: STEPS.epsilon(n, d), [2], 1e-5),
    one("steps_noise_multiplier", accounting.steps_noise_multiplier, 1.0, 1e-5, 1.0, 9),
    one("gdp_risk", accounting.gdp_risk, 0.1, 0.01),
    one("curve_risk", accounting.curve_risk, [1.0], [1e-5], 0.01),
    one("PureDP", lambda n: accounting.zcdp_cost(PureDP(), n), [1.0]),
    one("charge_units", lambda m: accounting.MEASURES[m].charge_units(Gaussian(1.0), [1.0]), 1),
    one("zcdp_cost", lambda m: accounting.zcdp_cost(m, [1.0]), 1),
    one("renyi_to_epsilon", accounting.renyi_to_epsilon, [2.0], [0.1], 1e-5),
    one("renyi_to_delta", accounting.renyi_to_delta, [2.0], [0.1], 1.0),
    one("zcdp_to_epsilon", accounting.zcdp_to_epsilon, 0.1, 1e-5),
    one("zcdp_to_epsilon", accounting.zcdp_to_epsilon, [0.1], 1e-5),
    one("zcdp_to_delta", accounting.zcdp_to_delta, 0.1, 1.0),
    one("zcdp_to_delta", accounting.zcdp_to_delta, [0.1], 1.0),
    one("gdp_to_epsilon", accounting.gdp_to_epsilon, 0.1, 1e-5),
    one("gdp_to_epsilon", accounting.gdp_to_epsilon, [0.1], 1e-5),
    one("gdp_to_delta", accounting.gdp_to_delta, 0.1, 1.0),
    one("gdp_to_delta", accounting.gdp_to_delta, [0.1], 1.0),
    one("renyi_budgets", accounting.renyi_budgets, 1.0, 1e-5, ORDERS),
    one("zcdp_budget", accounting.zcdp_budget, 1.0, 1e-5),
    one("gdp_budget", accounting.gdp_budget, 1.0, 1e-5),
    one("ZcdpFilter", ZcdpFilter, 1.0),
    one("GdpFilter", GdpFilter, 1.0),
    one("RenyiFilter", RenyiFilter, [2.0], [1.0]),
    one("ZcdpFilter", ZcdpFilter.from_units, 1),
    one("RenyiFilter", RenyiFilter.from_units, [2.0], [1]),
    one("RogersFilter", RogersFilter, 1.0, 1e-5),
    one("RogersFilter", ROGERS.admit, ROGERS.initial_state(1), [0.1]),
    one("RogersFilter", ROGERS.admit_units, ROGERS.initial_state(1), ROGERS.initial_state(1)),
    one("RogersFilter", ROGERS.cost_units, [0.1]),
    one("RogersFilter", ROGERS.remaining, ROGERS.initial_state(1)),
    one("RogersFilter", ROGERS.exhausted, ROGERS.initial_state(1)),
    one("LocalFilter", LocalFilter, ZcdpFilter(1.0)),
    one("LocalFilter", lambda spent: LocalFilter(ROGERS, spent), [0, 0]),
    *(
        one("LocalFilter", lambda n, m=m: LocalFilter(ROGERS).admit(m, n), 0.1)
        for m in (PureDP(), Laplace(5e-324), Laplace(1.7e308))
    ),
    one("RenyiTracker", RenyiTracker, 2.0, 1.0),
    one("GdpOdometer", GdpOdometer, 1.0),
    one("LecuyerOdometer", lambda o, d, g: LecuyerOdometer(o, d, growth=g), [2.0], 1e-5, 2.0),
    *(
        one(type(o).__name__, o.advance, o.initial_state(1), c)
        for o, c in zip(ODOMETERS, [[0.1]] * 2 + [[[0.1]]], strict=True)
    ),
    one("advance_units", accounting.advance_units, NOTHING, NOTHING + 1, NOTHING, 1),
    one("advance_units", lambda s: accounting.advance_units(NOTHING, NOTHING, NOTHING, s), [1]),
    one("budget_units", accounting.budget_units, 1.0),
    one("cost_units", accounting.cost_units, [1.0]),
    one("from_units", accounting.from_units, NOTHING),
    one("from_units_down", accounting.from_units_down, NOTHING),
    one("round_to", lambda v, t: accounting.round_to(v, np.float32, t), [1.0], "up"),
    one("noise_for_norm_budget", accounting.noise_for_norm_budget, 1.0, 1.0),
    one(
        "noise_for_epsilon",
        lambda e, d, t, c: accounting.noise_for_epsilon(e, d, t, 1.0, c),
        *(1.0, 1e-5, 10, 1.0),
    ),
    one(
        "epsilon_of",
        lambda s, t, d, c: accounting.epsilon_of(s, 1.0, t, d, c),
        *(1.0, 10, 1e-5, 1.0),
    ),
    one("ContinualCounter", lambda n: counter(noise_stddev=n).add(1), 1.0),
    one("ContinualCounter", lambda rho: counter(rho=rho).add(1), 1.0),
    one("ContinualCounter", lambda m: counter(max_contribution=m).add(1), 1),
    one("ContinualCounter", lambda n: counter().add(n), 1),
    one("ContinualCounter", lambda s: counter().standard_error(s), 1),
    one(
        "release_mean",
        lambda v, u, n: accounting.release_mean(v, u, generator=generator(), noise_stddev=n),
        *([1.0], 1.0, 1.0),
    ),
    one(
        "release_mean",
        lambda u, rho: accounting.release_mean([1.0], u, generator=generator(), rho=rho),
        *(1.0, 1.0),
    ),
    one(
        "release_quantiles",
        lambda v, q, u, n, k: accounting.release_quantiles(
            v, q, u, generator=generator(), noise_stddev=n, levels=k
        ),
        *([1.0], [0.5], 1.0, 1.0, 8),
    ),
    one("SparseVector", lambda t, e: vector(threshold=t, epsilon=e).above(1), 1, 1.0),
    one("SparseVector", lambda p, s: vector(positives=p, sensitivity=s).above(1), 1, 1),
    one("SparseVector", lambda m: vector(monotone=m), False),
    one("SparseVector", lambda n: vector().norms(n), [1.0]),
    one("SparseVector", lambda n: vector().above(n), 1),
    one("StatedCost", lambda n: StatedCost(Gaussian(1.0), n).rho, 1.0),
]
TABLE += [
    *(
        one("cost_table", lambda c, n, m=m: accounting.MEASURES["gdp"].cost_table(m, c, n), 1.0, 3)
        for m in (Gaussian(1.0), Laplace(5e-324), Laplace(1.7e308), PureDP(), PoissonGaussian(1, 1))
    ),
    *(
        one(
            "cost_table",
            lambda c, n, o, m=m: accounting.MEASURES["renyi"].cost_table(m, c, n, o),
            1.0,
            3,
            ORDERS,
        )
        for m in (PoissonGaussian(1.0, 0.1), PoissonGaussian(5e-324, 0.1), Laplace(1.0))
    ),
    one("cost_table", lambda m: accounting.MEASURES[m].cost_table(PureDP(), 1.0, 3), "pure-dp"),
    one(
        "charge_units",
        lambda n: accounting.MEASURES["pure-dp"].charge_units(Laplace(5e-324), n),
        [1.0],
    ),
    one(
        "charge_units",
        lambda n: accounting.MEASURES["pure-dp"].charge_units(Laplace(1.7e308), n),
        [1.0],
    ),
    one("checked_cost_table", accounting.checked_cost_table, np.array([0, 1])),
    one("levels_of", accounting.levels_of, [1.0], 1.0, 3),
    one("norms_of", accounting.norms_of, [1], 1.0, 3),
    one("candidate_orders", accounting.candidate_orders, 1.0, 1e-5),
    one("best_order", accounting.best_order, np.array([[1]]), [1]),
    one("PerUserOrderFilter", PerUserOrderFilter, [2.0], [1.0]),
    one("PerUserOrderFilter", PerUserOrderFilter.from_units, [2.0], [1]),
    one("PerUserOrderFilter", OWN.initial_state, 1),
    one("PerUserOrderFilter", OWN.admit_units, NOTHING, FIRST, NOTHING),
    one("PerUserOrderFilter", OWN.remaining, NOTHING, FIRST),
    one("PerUserOrderFilter", OWN.exhausted, NOTHING, FIRST),
    *(
        one("PerUserOrderFilter", lambda s, n, m=m, f=f: f(s, FIRST, m, n), NOTHING, [0.1])
        for m in MECHANISMS
        for f in (OWN.admit_norms, OWN.grant_units)
    ),
    one("PerUserOrderFilter", lambda n: OWN.bind(Gaussian(1.0), n), [0.1]),
    one("PureDPFilter", PureDPFilter, 1.0),
    *(case for case in cases_of_filter(PureDPFilter(0.3))),
    one("pure_to_gdp", accounting.pure_to_gdp, [1.0]),
    one("pure_to_gdp", accounting.pure_to_gdp, 1.0),
    one("banded_step", accounting.banded_step, [1.0], 1.0),
    one(
        "banded_steps",
        lambda c, s, b, n: accounting.banded_steps(c, s, min_separation=b, steps=n),
        *([1.0, 0.5], 1.0, 2, 3),
    ),
    one("mechanism_from", lambda c: accounting.mechanism_from(GaussianDpEvent(1.0), c), 1.0),
    one("mechanism_from", lambda m: accounting.mechanism_from(GaussianDpEvent(m)), 1.0),
    one("mechanism_from", accounting.mechanism_from, Gaussian(1.0)),
    one("AccountTerms", AccountTerms, [1], [1]),
    one("BudgetAccount", lambda slots: account().settle(slots), NOTHING),
    one("BudgetAccount", lambda slots: account().settle_for_write(slots), NOTHING),
    one(
        "RecurringCharge", lambda s, n, h: recurring(slots=s, levels=n, highest=h), NOTHING, [1], 3
    ),
    one("RecurringCharge", lambda s, n: recurring().enrol([s], n), NOTHING + 1, [1]),
    one("RecurringCharge", lambda t: recurring().step([t]), COST_TABLE),
    one("RecurringCharge", lambda p, n: recurring().step([COST_TABLE], p, n), [0], [1]),
    one("RecurringCharge", lambda n: recurring().step([COST_TABLE], None, n), [1]),
    one("RecurringCharge", lambda n: recurring().step(n), [COST_TABLE]),
    one("RecurringCharge", lambda g, f, c: restored(g, f, c, 0), [1], [0], NOTHING),
    one("RecurringCharge", lambda steps: restored([1], [0], NOTHING, steps), 0),
]
# Reports have tables of their own; the rest are constants, types and results.
ELSEWHERE = {
    *("NormGrid", "ReportAccountant", "Bounds"),
    *(
        "MAX_BUDGET_UNITS",
        "MAX_COST_UNITS",
        "MAX_LEVELS",
        "MEASURES",
        "UNIT_BITS",
        "Measure",
        "MeasureName",
        "Mechanism",
    ),
    *("BudgetFilter", "InvalidInput", "MeanRelease", "QuantilesRelease", "Risk"),
    *(
        "BalanceColumns",
        "CandidateOrders",
        "OdometerRise",
        "RosterColumns",
        "StepOutcome",
    ),
}


def is_array(usual: object) -> bool:
    return isinstance(usual, (list, np.ndarray))


def has_nan(result: object) -> bool:
    if isinstance(result, (tuple, list)):
        return any(map(has_nan, result))
    if is_dataclass(result):  # the estimates of a release are NaN where the noise drowned the users
        parts = [part.name for part in fields(result) if not part.name.startswith("estimate")]
        return any(has_nan(getattr(result, name, None)) for name in parts)
    if isinstance(result, np.ndarray) and result.dtype.kind == "f":
        return bool(np.isnan(result).any())
    return isinstance(result, float) and math.isnan(result)


def outcome(case: Case, arguments: list[Any]) -> InvalidInput | object:
    try:
        return case.call(*arguments)
    except InvalidInput as error:
        return error


SLOW = {
    "gdp_budget",
    "noise_for_epsilon",
    "steps_noise_multiplier",
    "steps_measure",
}  # they search, with every value anew


def points() -> Iterator[Any]:
    """All; in `make check` one of each function that is quick."""
    found = set(SLOW)
    for number, case in enumerate(TABLE):
        marks = [pytest.mark.slow] if case.name in found else []
        found.add(case.name)
        yield pytest.param(case, id=f"{number}-{case.name}", marks=marks)


@pytest.mark.slow
@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
@pytest.mark.parametrize("case", list(points()))
def test_extreme_arguments_give_a_result_or_invalid_input(case: Case) -> None:
    for position, usual in enumerate(case.usual):
        for value in ARRAYS if is_array(usual) else NUMBERS:
            result = outcome(case, [*case.usual[:position], value, *case.usual[position + 1 :]])
            assert not has_nan(result), (position, value)
            assert not isinstance(result, InvalidInput) or len(str(result)) < 600


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
def test_every_public_function_is_in_the_table_with_arguments_that_it_takes() -> None:
    taken = {case.name for case in TABLE if not isinstance(outcome(case, case.usual), InvalidInput)}
    assert taken | ELSEWHERE == {*accounting.__all__, *research.__all__}
