"""Runs: resumed, handed back, given up and closed."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

from streams import (
    Fenced,
    InvalidRequest,
    ReleaseUnknown,
    RequestRejected,
    RunIsClosed,
    StepContentChanged,
    Turnstile,
    Unusable,
)
from streams.records import Reason


def charge(run: Any, scale: float = 1.0) -> Any:
    return run.charge(range(10), np.linspace(0.0, 1.0, 10) * scale, noise_stddev=2.0)


def test_a_run_is_resumed_where_it_was(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    first = turnstile.run(name, "r")
    assert (first.attempt, first.step, first.interrupted) == (1, 0, False)
    said = [charge(first) for _ in range(2)]
    with pytest.raises(ReleaseUnknown):
        turnstile.run(name, "r", released=-1)
    second = turnstile.run(name, "r", released=0)
    assert (second.step, second.interrupted) == (1, True)
    with pytest.raises(StepContentChanged):
        charge(second, scale=0.5)
    again = charge(second)
    assert again.step == said[1].step == 1
    np.testing.assert_array_equal(again.granted, said[1].granted)
    third = turnstile.run(name, "r")
    assert (third.step, third.interrupted) == (2, False)
    assert third.attempt > second.attempt > first.attempt
    for older in (first, second):
        with pytest.raises(Fenced):
            charge(older)
        with pytest.raises(Unusable):
            charge(older)
    assert charge(third).step == 2


def test_an_attempt_holds_until_the_next_one_is_opened(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    first = turnstile.run(name, "r")
    charge(first)
    for _ in range(2):
        first.check_attempt()
    second = turnstile.run(name, "r")
    with pytest.raises(Fenced):
        first.check_attempt()
    second.check_attempt()
    assert charge(second).step == 1
    second.close()
    with pytest.raises(RunIsClosed):
        second.check_attempt()


def test_a_step_that_is_handed_back_can_be_given_up(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    charge(turnstile.run(name, "r"))
    run = turnstile.run(name, "r", released=-1)
    assert (run.step, run.interrupted) == (0, True)
    run.abandon()
    assert (run.step, run.interrupted) == (1, False)
    run.abandon()
    assert charge(run).step == 1


def test_closed_run_cannot_be_used(turnstile: Turnstile, name: str) -> None:
    with pytest.raises(RequestRejected) as rejected:
        turnstile.close_run(name, "r")
    assert rejected.value.reason is Reason.UNKNOWN_DATASET
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    assert not turnstile.close_run(name, "never-opened")
    turnstile.withdraw_dataset(name)  # which nobody can once a run of it was opened
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    run = turnstile.run(name, "r")
    charge(run)
    run.close()
    run.close()
    with pytest.raises(RunIsClosed):
        charge(run)
    with pytest.raises(RunIsClosed):
        turnstile.run(name, "r")
    other = turnstile.run(name, "s")
    assert turnstile.close_run(name, "s")
    assert turnstile.close_run(name, "s")
    with pytest.raises(RequestRejected):
        charge(other)
    turnstile.run(name, "resumed")
    later = turnstile.run(name, "resumed")
    assert turnstile.close_run(name, "resumed")
    with pytest.raises(RunIsClosed):
        charge(later)


def test_rejected_charge_changes_nothing(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    run = turnstile.run(name, "r")
    for users, norms, options in (
        ([1, 1], [1.0, 1.0], {}),
        ([1, "a"], [1.0, 1.0], {}),
        ([1], [math.nan], {}),
        ([1], [2.0], {"clip_norm": 1.0}),
        ([1], [1.0], {"timeout": -1.0}),
    ):
        with pytest.raises(InvalidRequest):
            run.charge(users, norms, noise_stddev=4.0, **options)
    assert run.charge([1], [1.0], noise_stddev=4.0).step == 0


def test_closed_turnstile_is_unusable(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    run = turnstile.run(name, "r")
    turnstile.close()
    for call in (
        lambda: charge(run),
        run.close,
        lambda: turnstile.create_dataset(name, measure="zcdp", budget=1.0),
        lambda: turnstile.withdraw_dataset(name),
        lambda: turnstile.run(name, "r"),
        lambda: turnstile.close_run(name, "r"),
        lambda: list(turnstile.halts(follow=False)),
        lambda: list(turnstile.odometer(follow=False)),
    ):
        with pytest.raises(Unusable):
            call()


def test_runs_of_several_threads_spend_one_budget(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0, assume_independent_timing=True)
    runs = [turnstile.run(name, f"r{number}") for number in range(4)]
    admitted = [0] * len(runs)

    def work(number: int) -> None:
        for _ in range(12):
            decision = runs[number].charge(range(6), np.ones(6), noise_stddev=4.0)
            admitted[number] += int(decision.admitted.sum())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sum(admitted) == 6 * 32
