"""Steps of banded matrix mechanisms: what they cost, and participations that are kept apart."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    GdpFilter,
    InvalidInput,
    RenyiFilter,
    SeparationFilter,
    SeparationState,
    ZcdpFilter,
    banded_step,
    charge_units,
)

entries = st.floats(-4.0, 4.0).filter(lambda entry: entry == 0.0 or abs(entry) > 1e-3)


@given(
    st.lists(entries, min_size=1, max_size=6).filter(any),
    st.floats(0.1, 1e3),
    st.floats(0.0, 4.0),
)
def test_a_participation_is_charged_its_norm_times_that_of_the_column(
    column: list[float], noise: float, norm: float
) -> None:
    step = banded_step(column, noise)
    square = sum(Fraction(entry) ** 2 for entry in column)
    exact = Fraction(norm) ** 2 * square / (2 * Fraction(noise) ** 2)
    assert Fraction(step.noise_stddev) ** 2 * square <= Fraction(noise) ** 2
    above = Fraction(math.nextafter(step.noise_stddev, math.inf))
    assert above**2 * square > Fraction(noise) ** 2
    charge = int(charge_units("zcdp", step, [norm])[0])
    assert exact * 2**44 <= charge <= exact * 2**44 * (1 + Fraction(1, 2**50)) + 1


@pytest.mark.parametrize("column", [[1e-200, 1e-200], [1e200, 3e200], [5e-324]])
def test_columns_of_any_size_have_a_norm(column: list[float]) -> None:
    noise = column[0] * 1.5
    step = banded_step(column, noise)
    exact = Fraction(noise) ** 2 / sum(Fraction(entry) ** 2 for entry in column)
    assert Fraction(step.noise_stddev) ** 2 <= exact
    assert Fraction(math.nextafter(step.noise_stddev, math.inf)) ** 2 > exact


@pytest.mark.parametrize(
    ("column", "noise"),
    [([0.0], 1.0), ([], 1.0), ([math.nan], 1.0), ([1.0], 0.0), ([1e300], 1e-300)],
)
def test_what_is_no_column_is_refused(column: list[float], noise: float) -> None:
    with pytest.raises(InvalidInput):
        banded_step(column, noise)


@given(st.data())
def test_what_a_run_moves_is_at_most_what_was_charged_for_it(data: st.DataObject) -> None:
    """With the noise of one standard deviation: the squared distance of all rows, both worlds."""
    bands, steps = data.draw(st.integers(1, 4)), 12
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    factor = np.tril(rng.normal(size=(steps + bands, steps)))
    factor = np.where(np.arange(steps + bands)[:, None] - np.arange(steps) < bands, factor, 0.0)
    rule = SeparationFilter(ZcdpFilter(6.0), bands)
    state, norms = rule.initial_state(1), np.zeros(steps)
    for step in range(steps):
        norm = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
        mechanism = banded_step(factor[step : step + bands, step], 1.0)
        state, admitted = rule.admit_norms(state, step, mechanism, [norm])
        norms[step] = norm if admitted[0] else 0.0
    signs = rng.choice([-1.0, 1.0], steps)
    moved = float(np.square(factor @ (norms * signs)).sum())
    assert moved / 2.0 <= float(state.spent[0]) * 2.0**-44 * (1 + 1e-12) + 1e-12
    taken = np.flatnonzero(norms)
    assert (np.diff(taken) >= bands).all()


def test_participations_that_overlap_would_cost_more_than_their_sum() -> None:
    factor = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    moved = factor @ np.ones(2)
    apart = sum(float(column @ column) for column in factor.T)
    assert float(moved @ moved) > apart


@given(
    st.integers(1, 5),
    st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=25),
)
def test_who_is_admitted_can_pay_and_is_far_enough_from_the_last_time(
    bands: int, steps: list[list[int]]
) -> None:
    rule = SeparationFilter(ZcdpFilter.from_units(100), bands)
    state = rule.initial_state(3)
    spent, last = [0, 0, 0], [-(10**9)] * 3
    for step, costs in enumerate(steps):
        state, admitted = rule.admit_units(state, step, np.array(costs))
        for user, cost in enumerate(costs):
            apart = cost == 0 or step - last[user] >= bands
            expected = apart and spent[user] + cost <= 100
            assert admitted[user] == expected
            if expected:
                spent[user] += cost
                last[user] = step if cost else last[user]
    assert state.spent.tolist() == spent


@pytest.mark.parametrize("rule", [GdpFilter(1.0), RenyiFilter([2.0, 8.0], [1.0, 2.0])], ids=repr)
def test_every_filter_of_gaussian_steps_keeps_participations_apart(
    rule: GdpFilter | RenyiFilter,
) -> None:
    apart = SeparationFilter(rule, 3)
    state, seen = apart.initial_state(1), []
    for step in range(9):
        state, admitted = apart.admit_norms(state, step, banded_step([1.0, 0.5, 0.25], 4.0), [1.0])
        seen.append(bool(admitted[0]))
    assert seen == [True, False, False] * 3


def test_a_step_that_is_over_admits_nobody_who_took_part_later() -> None:
    rule = SeparationFilter(ZcdpFilter(1.0), 1)
    state, _ = rule.admit_units(rule.initial_state(2), 5, np.array([1, 0]))
    _, admitted = rule.admit_units(state, 5, np.array([1, 1]))
    assert admitted.tolist() == [False, True]
    _, admitted = rule.admit_units(state, 3, np.array([1, 1]))
    assert admitted.tolist() == [False, True]


def test_separations_and_states_that_are_none_are_refused() -> None:
    for arguments in [(ZcdpFilter(1.0), 0), (ZcdpFilter(1.0), 1.5), (1.0, 3)]:
        with pytest.raises(InvalidInput):
            SeparationFilter(*arguments)  # type: ignore[arg-type]
    rule = SeparationFilter(ZcdpFilter(1.0), 2)
    state = rule.initial_state(2)
    cost = np.array([1, 1])
    with pytest.raises(InvalidInput, match="step"):
        rule.admit_units(state, -1, cost)
    with pytest.raises(InvalidInput, match="users"):
        rule.admit_units(state, 0, cost[:1])
    with pytest.raises(InvalidInput, match="next_step"):
        rule.admit_units(SeparationState(state.spent, -cost), 0, cost)
