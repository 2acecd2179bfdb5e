"""A device that keeps its own budget decides as the filter does for many users."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
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
