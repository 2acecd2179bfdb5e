"""A step that is charged ahead is charged once, and what is decided is what was sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.sdk.errors import (
    DecisionTimeout,
    StepContentChanged,
    Unusable,
)
from streams.sdk.run import Run
from tests.unit.sdk.test_run import NORMS, USERS, assert_charged, opened


def ahead(run: Run, norms: Any = NORMS) -> Any:
    return run.charge_ahead(USERS, norms, noise_stddev=4.0)


def test_granted_norms_are_those_that_were_sent() -> None:
    _, run = opened()
    users, norms = np.array(USERS, dtype=object), np.array(NORMS)
    sent = run.charge_ahead(users, norms, noise_stddev=4.0)
    norms *= 2.0  # the caller's array is used for the next step
    assert sent.decision().granted.tolist() == list(NORMS)


def test_run_accepts_no_other_call_until_the_decision() -> None:
    service, run = opened()
    sent = ahead(run)
    assert_charged(service, times=1)
    run.check_attempt()
    for call in (
        lambda: ahead(run),
        lambda: run.charge(USERS, NORMS, noise_stddev=4.0),
        lambda: run.enrol(USERS, clip_norm=1.0),
        run.abandon,
        run.close,
    ):
        with pytest.raises(Unusable):
            call()
    assert run.step == 0
    assert sent.decision() is sent.decision()
    assert run.step == 1
    assert_charged(service, times=1)
    run.close()


@pytest.mark.parametrize("reached", [set(), {0}, {1, 2}, {0, 1, 2}], ids=str)
def test_decision_can_be_repeated_after_a_timeout(reached: set[int]) -> None:
    service, run = opened()
    service.deaf, service.mute = {0, 1, 2} - reached, reached
    sent = ahead(run)
    for _ in range(2):
        with pytest.raises(DecisionTimeout):
            sent.decision()
    service.deaf, service.mute = set(), set()
    assert sent.decision().step == 0
    assert_charged(service, times=1)
    assert service.rejects == []


def test_handed_back_step_is_first_sent_where_it_was_decided() -> None:
    service, run = opened()
    service.deaf = {1, 2}
    with pytest.raises(DecisionTimeout):
        run.charge(USERS, NORMS, noise_stddev=4.0)
    service.deaf = set()
    run = service.open()
    lengths = [len(log) for log in service.logs]
    other = ahead(run, NORMS / 2)
    assert [len(log) for log in service.logs] == lengths
    with pytest.raises(StepContentChanged):
        other.decision()
    assert [len(log) - length for log, length in zip(service.logs, lengths, strict=True)] == [
        1,
        0,
        0,
    ]
    with pytest.raises(Unusable):
        other.decision()
    assert ahead(run).decision().step == 0
    assert_charged(service, times=1)


@pytest.mark.parametrize("reached", [{0}, {1, 2}], ids=str)
def test_half_decided_step_after_an_unreleased_one_is_handed_back(
    reached: set[int],
) -> None:
    service, run = opened()
    ahead(run).decision()
    service.deaf = {0, 1, 2} - reached
    ahead(run)
    service.deaf = set()
    run = service.open(released=-1, charges_ahead=True)
    assert (run.step, run.interrupted) == (1, True)
    assert ahead(run).decision().step == 1
    assert_charged(service, times=2)


LEVELS = 8
MOVES = st.lists(
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, LEVELS)), max_size=4), max_size=6
)


@given(MOVES, st.sets(st.integers(0, 5)), st.sets(st.integers(0, 2)))
def test_levels_set_before_the_decision_apply_to_the_next_step(
    moves: list[list[tuple[int, int]]], timeouts: set[int], lost: set[int]
) -> None:
    service, run = opened()
    roster = run.enrol(USERS, clip_norm=2.0, levels=LEVELS)
    levels = np.full(12, LEVELS)
    for step, moved in enumerate(moves):
        service.mute = lost if step in timeouts else set()
        sent = roster.charge_ahead(noise_stddev=8.0)
        in_force = levels.copy()
        for position, level in moved:
            roster.set_norms([2.0 * level / LEVELS], [position])
            levels[position] = level
        if step in timeouts and lost:
            with pytest.raises(DecisionTimeout):
                sent.decision()
            service.mute = set()
        decision = sent.decision()
        np.testing.assert_array_equal(
            decision.clip_norms, np.where(decision.admitted, in_force, 0) * 2.0 / LEVELS
        )
    spent = service.spent()
    assert max(spent.values(), default=0) <= 1.0
