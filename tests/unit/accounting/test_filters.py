from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MAX_BUDGET_UNITS,
    MAX_COST_UNITS,
    MEASURES,
    BudgetFilter,
    Gaussian,
    GdpFilter,
    InvalidInput,
    Laplace,
    PureDP,
    RenyiFilter,
    ZcdpFilter,
    gdp_cost,
    renyi_cost,
    zcdp_budget,
    zcdp_cost,
    zcdp_to_epsilon,
)
from accounting.filters.measure_filters import bisected_floats
from tests.unit.accounting import rational_model as exact
from tests.unit.accounting.granting import grant_units
from tests.unit.accounting.refusals import refused

ORDERS = [1.5, 2.0, 8.0, 64.0]
FILTERS: list[BudgetFilter] = [
    ZcdpFilter(1.0),
    GdpFilter(1.3),
    ZcdpFilter(zcdp_budget(1.0, 1e-5)),
    RenyiFilter(ORDERS, [1.0, 1.1, 5.0, 60.0]),
    RenyiFilter([1.1], [0.3]),
]
every_filter = pytest.mark.parametrize("rule", FILTERS, ids=lambda rule: type(rule).__name__)


def like(rule: BudgetFilter, values: list[float]) -> np.ndarray:
    """One value per user, the same at every order."""
    state = rule.initial_state(len(values))
    return np.array(values).reshape(len(values), *[1] * (state.ndim - 1)) * np.ones(state.shape)


def count_admitted(rule: BudgetFilter, cost: np.ndarray, attempts: int) -> int:
    state, count = rule.initial_state(1), 0
    for _ in range(attempts):
        state, admitted = rule.admit(state, cost)
        count += int(admitted[0])
    return count


# ------------------------------------------------------------------------------------ admission


def test_exactly_32_steps_of_one_thirty_second_are_admitted() -> None:
    cost = zcdp_cost(Gaussian(4.0), [1.0])
    assert count_admitted(ZcdpFilter(1.0), cost, 40) == 32
    assert count_admitted(GdpFilter(1.0), gdp_cost(Gaussian(4.0), [1.0]), 40) == 16
    renyi = renyi_cost(Gaussian(4.0), [1.0], ORDERS)
    assert count_admitted(RenyiFilter(ORDERS, ORDERS), renyi, 40) == 32


@every_filter
def test_arguments_are_never_changed(rule: BudgetFilter) -> None:
    state, cost = rule.initial_state(3), like(rule, [0.1, 1e9, 0.0])
    copies = state.copy(), cost.copy()
    rule.admit(state, cost)
    rule.grant(state, Gaussian(4.0), [1.0, 50.0, 0.0])
    np.testing.assert_array_equal(state, copies[0])
    np.testing.assert_array_equal(cost, copies[1])


def test_a_saturated_cost_is_admitted_by_no_budget() -> None:
    rule = ZcdpFilter.from_units(MAX_BUDGET_UNITS)
    full = np.array([0, MAX_BUDGET_UNITS])
    _, admitted = rule.admit_units(full, np.array([MAX_COST_UNITS, MAX_COST_UNITS]))
    assert not admitted.any()


# ------------------------------------------------------------------------- budgets and guarantee


def test_filters_of_the_same_units_are_equal_and_immutable() -> None:
    assert ZcdpFilter.from_units(2**44) == ZcdpFilter(1.0)
    assert GdpFilter.from_units(2**44) == GdpFilter(1.0) != ZcdpFilter(1.0)
    assert RenyiFilter.from_units([2.0], [2**44]) == RenyiFilter([2.0], [1.0])
    assert RenyiFilter.from_units([3.0], [2**44]) != RenyiFilter([2.0], [1.0])
    assert len({ZcdpFilter(1.0), ZcdpFilter(1.0), ZcdpFilter(2.0)}) == 2
    with pytest.raises(AttributeError):
        ZcdpFilter(1.0).budget_units = (5,)


@given(st.floats(0.1, 20.0), st.floats(-12, -2), st.floats(0.001, 2.0))
def test_pure_dp_steps_that_are_admitted_imply_epsilon_and_delta(
    epsilon: float, log10_delta: float, step: float
) -> None:
    delta = 10.0**log10_delta
    rule = ZcdpFilter(zcdp_budget(epsilon, delta))
    assert rule.budget_units[0] * exact.UNIT <= Fraction(zcdp_budget(epsilon, delta))
    state, charge = rule.initial_state(1), MEASURES["zcdp"].charge_units(PureDP(), [step])
    steps = rule.budget_units[0] // int(charge[0])
    state, admitted = rule.admit_units(state, steps * charge)
    assert admitted[0]
    assert not rule.admit(state, zcdp_cost(PureDP(), [step]))[1][0]
    assert zcdp_to_epsilon(steps * step**2 / 2 * (1 - 1e-15), delta) <= epsilon


# ---------------------------------------------------------------------- budget-aware clipping


@given(
    norms=st.lists(exact.usual_norm, min_size=1, max_size=8),
    scale=exact.usual_scale,
    spent=st.floats(0.0, 1.0),
    measure=st.sampled_from(["zcdp", "gdp"]),
)
def test_granted_norm_costs_at_most_the_remainder_and_is_nearly_the_largest(
    norms: list[float], scale: float, spent: float, measure: str
) -> None:
    rule = next(rule for rule in FILTERS if rule.measure == measure)
    budget = rule.budget_units[0]
    state = np.full(len(norms), int(spent * budget))
    new_state, granted, charged = grant_units(rule, state, Gaussian(scale), norms)
    left = budget - int(state[0])
    factor = 2 if measure == "gdp" else 1
    for i, norm in enumerate(norms):
        cost = factor * exact.rho(float(granted[i]), scale)
        assert exact.units(cost) <= charged[i] <= left
        wanted = exact.units(factor * exact.rho(norm, scale))
        if wanted <= left:
            assert (granted[i], charged[i]) == (norm, wanted)
        else:
            assert charged[i] == (left if granted[i] else 0)
            # granted >= (1 - 2**-45) sqrt(left), squared to stay rational.
            assert cost >= left * exact.UNIT * (1 - Fraction(1, 2**45)) ** 2
    np.testing.assert_array_equal(new_state, state + charged)


@given(
    norms=st.lists(exact.usual_norm, min_size=1, max_size=6),
    scale=exact.usual_scale,
    orders=st.lists(exact.order, min_size=1, max_size=4, unique=True),
    data=st.data(),
)
def test_granted_norm_fits_every_order_and_spends_the_tightest(
    norms: list[float], scale: float, orders: list[float], data: st.DataObject
) -> None:
    budgets = data.draw(st.lists(st.integers(1, 2**50), min_size=len(orders), max_size=len(orders)))
    spent = [data.draw(st.integers(0, budget)) for budget in budgets]
    rule = RenyiFilter.from_units(orders, budgets)
    state = np.array([spent] * len(norms))
    new_state, granted, charged = grant_units(rule, state, Gaussian(scale), norms)
    left = [budget - s for budget, s in zip(budgets, spent, strict=True)]
    payable = [math.floor(r / Fraction(a)) for r, a in zip(left, orders, strict=True)]
    tightest = payable.index(min(payable))
    for i, norm in enumerate(norms):
        wanted = [exact.renyi_units(norm, scale, a) for a in orders]
        if all(w <= r for w, r in zip(wanted, left, strict=True)):
            assert granted[i] == norm
            assert charged[i].tolist() == wanted
        elif min(payable) == 0:
            assert granted[i] == 0.0
            assert not charged[i].any()
        else:
            expected = [exact.renyi_units(float(granted[i]), scale, a) for a in orders]
            assert all(e <= r for e, r in zip(expected, left, strict=True))
            expected[tightest] = left[tightest]
            assert charged[i].tolist() == expected
            assert rule.exhausted(new_state[i : i + 1])[0]
            limit = payable[tightest] * exact.UNIT
            assert exact.rho(float(granted[i]), scale) >= limit * (1 - Fraction(1, 2**45)) ** 2
    np.testing.assert_array_equal(new_state, state + charged)


def least_granted(
    rules: list[BudgetFilter], states: list[np.ndarray], scale: float, norms: list[float]
) -> np.ndarray:
    """What several filters grant together."""
    grants = [
        grant_units(rule, state, Gaussian(scale), norms)[1]
        for rule, state in zip(rules, states, strict=True)
    ]
    return np.min(grants, axis=0)


@given(
    norms=st.lists(exact.usual_norm | st.just(0.0), min_size=1, max_size=5),
    scale=exact.usual_scale,
    chosen=st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3),
    data=st.data(),
)
def test_the_least_of_what_several_filters_grant_fits_all_of_them_and_spends_one(
    norms: list[float], scale: float, chosen: list[BudgetFilter], data: st.DataObject
) -> None:
    spent = [
        [data.draw(st.integers(0, end) | st.just(max(0, end - 3))) for end in rule.budget_units]
        for rule in chosen
    ]
    states = [
        np.array(s * len(norms)).reshape(rule.initial_state(len(norms)).shape)
        for rule, s in zip(chosen, spent, strict=True)
    ]
    granted = least_granted(chosen, states, scale, norms)
    charges = [
        rule.charge_granted(state, Gaussian(scale), norms, granted)
        for rule, state in zip(chosen, states, strict=True)
    ]
    ended = np.zeros(len(norms), dtype=np.bool_)
    for rule, state, charge in zip(chosen, states, charges, strict=True):
        assert (state + charge <= rule.budget_units).all()
        assert (charge >= rule.charge_units(Gaussian(scale), granted)).all()
        ended |= rule.exhausted(state + charge)
        assert not charge[granted == 0].any()
        in_full = granted == norms
        full = rule.charge_units(Gaussian(scale), norms)
        np.testing.assert_array_equal(charge[in_full], full[in_full])
    clipped = (granted > 0) & (granted < norms)
    assert ended[clipped].all()
    larger = np.where(clipped, granted * (1 + 2.0**-40), granted)
    for place in np.flatnonzero(clipped & (larger <= norms)):
        assert not all(
            can_pay(rule, state[[place]], scale, norms[place], larger[place])
            for rule, state in zip(chosen, states, strict=True)
        )


def can_pay(
    rule: BudgetFilter, state: np.ndarray, scale: float, norm: float, granted: float
) -> bool:
    try:
        rule.charge_granted(state, Gaussian(scale), [norm], [granted])
    except InvalidInput:
        return False
    return True


@every_filter
def test_a_grant_that_leaves_something_is_charged_its_cost(rule: BudgetFilter) -> None:
    """As if another filter granted the least."""
    charged = rule.charge_granted(rule.initial_state(1), Gaussian(4.0), [1.0], [0.5])
    np.testing.assert_array_equal(charged, rule.charge_units(Gaussian(4.0), [0.5]))


@every_filter
def test_what_no_filter_grants_is_not_charged(rule: BudgetFilter) -> None:
    state, step = rule.initial_state(2), Gaussian(4.0)
    for granted in ([1.5, 0.0], [1e9, 1.0], [1.0], [[1.0, 1.0]], [math.nan, 1.0], [-1.0, 1.0]):
        with pytest.raises(InvalidInput):
            rule.charge_granted(state, step, [1.0, 1.0], granted)
    with refused("granted"):
        rule.charge_granted(state, step, [1e9, 1.0], [1e9, 1.0])


@every_filter
def test_every_user_can_spend_to_the_end_and_no_further(rule: BudgetFilter) -> None:
    norms = np.array([0.0, 0.5, 0.7, 1.0, 5.0])
    state, squares = rule.initial_state(5), [Fraction(0)] * 5
    for _ in range(200):
        state, granted = rule.grant(state, Gaussian(4.0), norms, clip_norm=1.0)
        assert (granted <= np.minimum(norms, 1.0)).all()
        squares = [s + Fraction(g) ** 2 for s, g in zip(squares, granted.tolist(), strict=True)]
    assert rule.exhausted(state).tolist() == [False, True, True, True, True]
    orders = getattr(rule, "orders", (2.0 if rule.measure == "gdp" else 1.0,))
    for square in squares:
        for order, budget in zip(orders, rule.budget_units, strict=True):
            assert Fraction(order) * square / 32 <= budget * exact.UNIT
    # The last unit is worth little: whoever spends to the end spends nearly all.
    if len(orders) == 1:
        assert float(squares[1]) == pytest.approx(float(squares[4]), rel=1e-6)


@given(st.lists(st.tuples(*[st.floats(0.0, 1e300)] * 2), min_size=1, max_size=10))
def test_bisected_floats_are_on_both_sides_of_the_end(pairs: list[tuple[float, float]]) -> None:
    end, above = (np.array([side(pair) for pair in pairs]) for side in (min, max))
    low, high = bisected_floats(lambda values, rows: values < end[rows], above, ulps=16)
    assert ((low < end) | (low == 0.0)).all()
    assert ((high >= end) & (high <= above)).all()
    assert (high.view(np.int64) - low.view(np.int64) <= 16).all()


@pytest.mark.parametrize("scale", [5e-324, 1e-308, 2.0**-1000, 1e-200, 1e200, 1e308])
@pytest.mark.parametrize("left", [1, 2, 2**44, MAX_BUDGET_UNITS])
def test_granted_norm_fits_at_the_ends_of_the_float_range(scale: float, left: int) -> None:
    rule = ZcdpFilter.from_units(left)
    norms = [1e-320, 1e-290, 1.0, 1e300, 1.7e308]
    _, granted, charged = grant_units(rule, rule.initial_state(5), Gaussian(scale), norms)
    for grant, charge in zip(granted.tolist(), charged.tolist(), strict=True):
        assert exact.zcdp_units(grant, scale) <= charge <= left


def test_laplace_norms_can_be_granted_and_pure_dp_has_none() -> None:
    rule = ZcdpFilter(0.3)
    _, granted, charged = grant_units(rule, rule.initial_state(1), Laplace(2.0), [9.0])
    assert charged.tolist() == list(rule.budget_units)
    assert exact.zcdp_units(float(granted[0]), 2.0) <= rule.budget_units[0]
    with refused("mechanism"):
        rule.grant(rule.initial_state(1), PureDP(), [1.0])
    with refused("mechanism"):
        GdpFilter(1.0).grant(GdpFilter(1.0).initial_state(1), Laplace(2.0), [1.0])


def test_granted_bits_are_the_same_everywhere() -> None:
    rule = ZcdpFilter.from_units(ZcdpFilter(0.1).budget_units[0])
    state = np.array([0, 12345, rule.budget_units[0] - 1])
    _, granted, charged = grant_units(rule, state, Gaussian(3.3), [9.0, 9.0, 9.0])
    left = [rule.budget_units[0] - spent for spent in state.tolist()]
    roots = [math.sqrt(units * 2.0**-43) * (1.0 - 2.0**-50) * 3.3 for units in left]
    assert granted.tolist() == roots
    assert granted[0].hex() == "0x1.79ce58ff1862cp+0"
    assert charged.tolist() == [1759218604441, 1759218592096, 1]


# ---------------------------------------------------------------------------------- bad inputs
