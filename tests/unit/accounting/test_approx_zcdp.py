"""The filter of approximate zCDP, in fractions and against steps that do fail."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import Gaussian, InvalidInput, ZcdpFilter, zcdp_to_epsilon
from accounting.research import ApproxZcdpFilter
from tests.unit.accounting.refusals import refused

rhos, deltas = st.floats(0.0, 0.3), st.one_of(st.just(0.0), st.floats(0.0, 0.2))


@given(st.floats(0.0, 1.0), st.floats(0.0, 0.5), st.lists(st.tuples(rhos, deltas), max_size=30))
def test_sums_of_rho_and_of_delta_never_exceed_their_budgets_in_fractions(
    rho: float, delta: float, steps: list[tuple[float, float]]
) -> None:
    rule = ApproxZcdpFilter(rho, delta)
    state, sums = rule.initial_state(1), [Fraction(0), Fraction(0)]
    for cost in steps:
        before = state
        state, admitted = rule.admit(state, [cost[0]], [cost[1]])
        if admitted[0]:
            sums = [total + Fraction(part) for total, part in zip(sums, cost, strict=True)]
        else:
            assert (state == before).all()
            left = rule.remaining(state)[0]
            slack = [2.0**-44, 2.0**-61]
            assert any(part > rest - one for part, rest, one in zip(cost, left, slack, strict=True))
    assert sums[0] <= Fraction(rho)
    assert sums[1] <= Fraction(delta)


@given(st.lists(st.floats(0.0, 0.5), max_size=30))
def test_steps_that_cannot_fail_are_those_of_the_zcdp_filter(norms: list[float]) -> None:
    rule, plain = ApproxZcdpFilter(0.5, 0.0), ZcdpFilter(0.5)
    state, other = rule.initial_state(1), plain.initial_state(1)
    for norm in norms:
        state, admitted = rule.admit_norms(state, Gaussian(1.0), [norm])
        other, expected = plain.admit_norms(other, Gaussian(1.0), [norm])
        assert admitted.tolist() == expected.tolist()
        assert state[:, 0].tolist() == other.tolist()
    assert rule.exhausted(state).tolist() == plain.exhausted(other).tolist()


def leaky_response(epsilon: float, delta: float) -> list[tuple[float, float]]:
    """(eps, delta)-DP, exactly: probabilities of four answers with and without the user."""
    share = (1.0 - delta) / (1.0 + math.exp(epsilon))
    return [
        (delta, 0.0),
        (share * math.exp(epsilon), share),
        (share, share * math.exp(epsilon)),
        (0.0, delta),
    ]


@pytest.mark.parametrize("epsilons", [(0.5, 0.5, 0.5), (1.0, 0.2, 0.9), (0.1, 1.5, 0.3)])
def test_steps_that_fail_compose_within_epsilon_and_delta(epsilons: tuple[float, ...]) -> None:
    delta = 0.01
    rule = ApproxZcdpFilter(sum(e * e / 2 for e in epsilons) + 2.0**-40, 3 * delta + 1e-15)
    state = rule.initial_state(1)
    for epsilon in epsilons:
        state, admitted = rule.admit(state, [epsilon * epsilon / 2.0], [delta])
        assert admitted.all()
    assert not rule.admit(state, [0.001], [0.0])[1].any()
    steps = [leaky_response(epsilon, delta) for epsilon in epsilons]
    for target in (0.031, 0.05, 0.3):
        bound = math.exp(rule.epsilon(target))
        paths = list(itertools.product(*steps))
        for one, two in ((0, 1), (1, 0)):
            excess = sum(
                max(math.prod(p[one] for p in path) - bound * math.prod(p[two] for p in path), 0.0)
                for path in paths
            )
            assert excess <= target


def test_epsilon_of_the_budget_leaves_room_for_its_delta() -> None:
    rule = ApproxZcdpFilter(0.5, 1e-6)
    assert rule.epsilon(1e-5) == pytest.approx(zcdp_to_epsilon(0.5, 9e-6 / (1 - 1e-6)), rel=1e-12)
    assert ApproxZcdpFilter(0.5, 0.0).epsilon(1e-5) == zcdp_to_epsilon(0.5, 1e-5)
    with refused("delta"):
        rule.epsilon(9e-7)


def test_small_deltas_are_counted_finely() -> None:
    rule = ApproxZcdpFilter(1.0, 1e-12)
    state = rule.initial_state(1)
    admitted = []
    for _ in range(11):
        state, ok = rule.admit(state, [0.0], 9.99e-14)
        admitted.append(bool(ok[0]))
    assert admitted == [True] * 10 + [False]


@pytest.mark.parametrize(
    "call",
    [
        lambda: ApproxZcdpFilter(-1.0, 0.1),
        lambda: ApproxZcdpFilter(1.0, 1.0),
        lambda: ApproxZcdpFilter(1.0, -0.1),
        lambda: ApproxZcdpFilter(1.0, math.nan),
        lambda: ApproxZcdpFilter(1.0, 0.1).admit(np.zeros((1, 2), dtype=np.int64), [0.1], [1.5]),
        lambda: ApproxZcdpFilter(1.0, 0.1).admit(np.zeros((1, 2), dtype=np.int64), [0.1], [-0.1]),
        lambda: ApproxZcdpFilter(1.0, 0.1).admit(np.zeros((1, 2), dtype=np.int64), [0.1], [0, 0]),
        lambda: ApproxZcdpFilter(1.0, 0.1).admit(np.zeros((1, 1), dtype=np.int64), [0.1], 0.0),
        lambda: ApproxZcdpFilter(1.0, 0.1).admit(np.zeros((1, 2), dtype=np.int64), 0.1, 0.0),
    ],
)
def test_what_is_no_budget_or_charge_is_refused(call: object) -> None:
    with pytest.raises(InvalidInput):
        call()
