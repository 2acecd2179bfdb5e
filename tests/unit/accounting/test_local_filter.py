from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    MEASURES,
    BudgetFilter,
    Gaussian,
    GdpFilter,
    InvalidInput,
    PureDP,
    RenyiFilter,
    ZcdpFilter,
)
from accounting.research.local_filter import LocalFilter
from tests.unit.accounting import rational_model as exact
from tests.unit.accounting.refusals import refused

RULES: list[BudgetFilter] = [
    ZcdpFilter(0.3),
    GdpFilter(1.3),
    RenyiFilter([1.5, 8.0], [0.3, 2.0]),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
norms = st.lists(exact.usual_norm, max_size=15)


@every_rule
@given(norms=norms, noise=st.sampled_from([0.7, 4.0]))
def test_a_device_decides_and_charges_as_the_rule_does_for_many_users(
    rule: BudgetFilter, norms: list[float], noise: float
) -> None:
    device, state = LocalFilter(rule), rule.initial_state(1)
    orders = getattr(rule, "orders", None)
    for norm in norms:
        before, charge = state, MEASURES[rule.measure].charge_units(Gaussian(noise), [norm], orders)
        state, admitted = rule.admit_norms(state, Gaussian(noise), [norm])
        np.testing.assert_array_equal(state, before + charge if admitted[0] else before)
        assert device.admit(Gaussian(noise), norm) == admitted[0]
        assert device.spent == state.reshape(-1).tolist()
        assert np.array_equal(device.remaining, rule.remaining(state)[0])
        assert device.exhausted == rule.exhausted(state)[0]


@every_rule
@given(norms=norms)
def test_a_device_grants_as_the_rule_does_for_many_users(
    rule: BudgetFilter, norms: list[float]
) -> None:
    device, state = LocalFilter(rule), rule.initial_state(1)
    for norm in norms:
        state, granted = rule.grant(state, Gaussian(4.0), [norm], clip_norm=1.0)
        assert device.grant(Gaussian(4.0), norm, clip_norm=1.0) == granted[0]
        assert device.spent == state.reshape(-1).tolist()


@every_rule
def test_a_device_restarted_from_what_it_stored_goes_on_as_if_it_had_not(
    rule: BudgetFilter,
) -> None:
    steady = restarted = LocalFilter(rule)
    decisions = []
    for step in range(80):
        norm = 0.3 + 0.01 * (step % 7)
        decisions.append(steady.admit(Gaussian(4.0), norm))
        if restarted is not steady:
            assert restarted.admit(Gaussian(4.0), norm) == decisions[-1]
        restarted = LocalFilter(rule, json.loads(json.dumps(restarted.spent)))
        assert restarted.spent == steady.spent
    assert True in decisions
    assert repr(restarted) == f"LocalFilter({rule!r}, spent={steady.spent})"


@pytest.mark.parametrize("rule", [ZcdpFilter(0.0), RenyiFilter([2.0], [0.0])])
def test_a_device_without_a_budget_answers_what_is_free(rule: BudgetFilter) -> None:
    device = LocalFilter(rule)
    assert not device.admit(PureDP(), 1e-300)
    assert device.admit(PureDP(), 0.0)
    assert device.exhausted
    assert LocalFilter(rule, device.spent).spent == device.spent


def test_a_failed_request_leaves_no_trace() -> None:
    device = LocalFilter(ZcdpFilter(1.0))
    device.admit_cost(0.25)
    for request in (
        lambda: device.admit(Gaussian(4.0), -1.0),
        lambda: device.admit(Gaussian(4.0), math.nan),
        lambda: device.admit_cost(math.nan),
        lambda: device.admit_cost(-0.1),
        lambda: device.grant(PureDP(), 0.1),
        lambda: device.grant(Gaussian(4.0), 1.0, clip_norm=0.0),
    ):
        with pytest.raises(InvalidInput):
            request()
    assert device.spent == [2**42]
    with refused("rule"):
        LocalFilter(1.0)
