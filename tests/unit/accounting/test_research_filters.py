"""Filters for comparison and for devices: Rogers et al., and a budget kept by its user."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MAX_COST_UNITS,
    BudgetFilter,
    Gaussian,
    GdpFilter,
    InvalidInput,
    PureDP,
    RenyiFilter,
    ZcdpFilter,
    zcdp_budget,
    zcdp_cost,
)
from accounting.research.local_filter import LocalFilter
from accounting.research.rogers import RogersFilter
from tests.unit.accounting import rational_model as exact
from tests.unit.accounting.refusals import refused

DIGITS = 60
epsilons = st.floats(0.01, 100.0)
deltas = st.floats(-300.0, -1.0).map(lambda exponent: 10.0**exponent)
costs = st.one_of(st.floats(0.0, 3.0), st.floats(0.0, 1e-3), st.sampled_from([0.1, 0.2, 0.25]))


def left_side(spread: mpmath.mpf, drift: mpmath.mpf, epsilon: float, delta: float) -> mpmath.mpf:
    """The condition as Feldman and Zrnic print it, at 60 digits."""
    log = mpmath.log(1 / mpmath.mpf(delta))
    c = mpmath.mpf(epsilon) ** 2 / (mpmath.mpf("28.04") * log)
    inner = 2 * (spread + c) * (1 + mpmath.mpf("0.5") * mpmath.log(1 + spread / c)) * log
    return drift + mpmath.sqrt(inner)


def fits(spread: int, drift: int, epsilon: float, delta: float) -> bool:
    with mpmath.workdps(DIGITS):
        unit = mpmath.mpf(2) ** -44
        return bool(left_side(spread * unit, drift * unit, epsilon, delta) <= epsilon)


def exact_units(eps: float) -> list[int]:
    with mpmath.workdps(DIGITS):
        value = mpmath.mpf(eps)
        drift = mpmath.ceil(value * mpmath.expm1(value) / 2 * mpmath.mpf(2) ** 44)
        return [exact.units(Fraction(eps) ** 2), int(drift)]


def steps_admitted(rule: RogersFilter, eps: float) -> int:
    """How many equal steps fit, by bisection over the state."""
    unit = rule.cost_units([eps])
    few, many = 0, 2**53 // int(unit.max())
    while many - few > 1:
        middle = (few + many) // 2
        admitted = rule.admit_units(rule.initial_state(1), unit * middle)[1][0]
        few, many = (middle, many) if admitted else (few, middle)
    return few


@given(st.floats(0.0, 20.0))
def test_charges_are_those_of_spread_and_drift_rounded_up(eps: float) -> None:
    spread, drift = RogersFilter(500.0, 1e-5).cost_units([eps]).tolist()[0]
    expected = exact_units(eps)
    if drift == MAX_COST_UNITS:
        assert expected[1] > 500 * 2**44
    else:
        for found, least in zip((spread, drift), expected, strict=True):
            assert least <= found <= least * (1 + 2.0**-48) + 1


@given(epsilons, deltas, st.floats(0.0, 1.0))
def test_boundary_is_where_60_digits_put_it(epsilon: float, delta: float, part: float) -> None:
    rule = RogersFilter(epsilon, delta)
    spread = int(part * epsilon**2 * 2**44)
    drift, above = -1, math.ceil(epsilon * 2**44) + 1  # none may fit beside so much spread
    while above - drift > 1:
        middle = (drift + above) // 2
        drift, above = (middle, above) if fits(spread, middle, epsilon, delta) else (drift, middle)
    margin = math.ceil(epsilon * 2.0 ** (44 - 44)) + 1
    charges = np.array([[spread, max(drift - margin, 0)], [spread, drift + 1]])
    admitted = rule.admit_units(rule.initial_state(2), charges)[1]
    assert admitted.tolist() == [drift >= margin, False]


@given(st.lists(costs, max_size=15), epsilons, deltas)
def test_what_is_admitted_meets_the_condition_in_real_numbers(
    sequence: list[float], epsilon: float, delta: float
) -> None:
    rule = RogersFilter(epsilon, delta)
    state = rule.initial_state(1)
    with mpmath.workdps(DIGITS):
        spread, drift = mpmath.mpf(0), mpmath.mpf(0)
        for eps in sequence:
            before, (state, admitted) = state, rule.admit(state, [eps])
            value = mpmath.mpf(eps)
            more = spread + value**2, drift + value * mpmath.expm1(value) / 2
            if admitted[0]:
                spread, drift = more
                assert left_side(spread, drift, epsilon, delta) <= epsilon
            else:
                np.testing.assert_array_equal(state, before)
                # No more is denied than rounding up to units explains.
                slack = (len(sequence) + 1) * mpmath.mpf(2) ** -44 + epsilon * mpmath.mpf(2) ** -44
                assert left_side(more[0] + slack, more[1] + slack, epsilon, delta) > epsilon


@given(st.floats(0.1, 10.0), deltas, st.floats(0.001, 1.0))
def test_whatever_is_admitted_here_is_admitted_by_theorem_4_9(
    epsilon: float, delta: float, eps: float
) -> None:
    steps = steps_admitted(RogersFilter(epsilon, delta), eps)
    rho = float(zcdp_cost(PureDP(), [eps])[0])
    tighter = ZcdpFilter(zcdp_budget(epsilon, delta))
    assert tighter.admit(tighter.initial_state(1), [steps * rho * (1 - 1e-12)])[1][0]


@pytest.mark.parametrize(
    ("epsilon", "delta", "eps"), [(1.0, 1e-5, 0.05), (3.0, 1e-3, 0.2), (0.5, 0.3, 0.02)]
)
def test_admitted_randomised_responses_are_epsilon_delta_dp(
    epsilon: float, delta: float, eps: float
) -> None:
    """The exact delta of k responses: the loss is (2 j - k) eps with j true ones."""
    k = steps_admitted(RogersFilter(epsilon, delta), eps)
    assert k >= 1
    with mpmath.workdps(DIGITS):
        truth = 1 / (1 + mpmath.exp(-mpmath.mpf(eps)))
        exceeded = sum(
            mpmath.binomial(k, j)
            * (
                truth**j * (1 - truth) ** (k - j)
                - mpmath.exp(epsilon) * truth ** (k - j) * (1 - truth) ** j
            )
            for j in range(k + 1)
            if (2 * j - k) * eps > epsilon
        )
        assert 0 <= exceeded <= delta


@given(st.lists(st.floats(0.0, 0.3), max_size=30), st.floats(0.1, 20.0), deltas)
def test_remaining_step_is_admitted_and_little_more_is_not(
    sequence: list[float], epsilon: float, delta: float
) -> None:
    rule = RogersFilter(epsilon, delta)
    state = rule.initial_state(1)
    for eps in sequence:
        state, _ = rule.admit(state, [eps])
    left = rule.remaining(state)
    assert rule.admit(state, left)[1][0]
    assert not rule.admit(state, left + epsilon * 2.0**-20)[1][0]


RULES: list[BudgetFilter] = [
    *(ZcdpFilter(0.3), GdpFilter(1.3), RenyiFilter([1.5, 8.0], [0.3, 2.0]), ZcdpFilter(0.0)),
]
STEP = Gaussian(4.0)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@given(requests=st.lists(st.tuples(st.booleans(), exact.usual_norm), max_size=15))
def test_device_decides_and_charges_as_its_rule(
    rule: BudgetFilter, requests: list[tuple[bool, float]]
) -> None:
    device, state = LocalFilter(rule), rule.initial_state(1)
    for clips, norm in requests:
        if clips:
            state, granted = rule.grant(state, STEP, [norm], clip_norm=1.0)
            assert device.grant(STEP, norm, clip_norm=1.0) == granted[0]
        else:
            state, admitted = rule.admit_norms(state, STEP, [norm])
            assert device.admit(STEP, norm) == admitted[0]
        device = LocalFilter(rule, json.loads(json.dumps(device.spent)))  # it restarts
        assert device.spent == state.reshape(-1).tolist()
        assert np.array_equal(device.remaining, rule.remaining(state)[0])
        assert device.exhausted == rule.exhausted(state)[0]


def test_failed_request_leaves_no_trace() -> None:
    device = LocalFilter(ZcdpFilter(1.0))
    assert device.admit_cost(0.25)
    for request in (
        lambda: device.admit(STEP, -1.0),
        lambda: device.admit_cost(math.nan),
        lambda: device.grant(PureDP(), 0.1),
        lambda: device.grant(STEP, 1.0, clip_norm=0.0),
    ):
        with pytest.raises(InvalidInput):
            request()
    assert device.spent == [2**42]
    with refused("rule"):
        LocalFilter(1.0)
