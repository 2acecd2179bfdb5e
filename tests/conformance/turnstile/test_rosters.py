"""Rosters: enrolled, charged by level, gone on with."""

from __future__ import annotations

import numpy as np
import pytest

from streams import (
    Fenced,
    InvalidRequest,
    ReleaseUnknown,
    StepContentChanged,
    Turnstile,
    Unusable,
)


def test_a_roster_is_enrolled_once_and_charged_by_level(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=0.5)
    run = turnstile.run(name, "r")
    users = list(range(100, 150))
    roster = run.enrol(users, clip_norm=1.0, levels=10)
    first = roster.charge(noise_stddev=4.0)
    assert (first.step, run.step) == (0, 1)
    assert first.admitted.all()
    assert (first.clip_norms == 1.0).all()
    roster.set_norms(np.full(2, 0.25), [3, 7])
    second = roster.charge(noise_stddev=4.0)
    assert second.clip_norms[[3, 7]] == pytest.approx(0.3)  # rounded up to a level
    third = roster.charge(noise_stddev=1.0)  # costs half of everybody else's budget
    assert np.flatnonzero(third.admitted).tolist() == [3, 7]
    assert third.halted.tolist() == [i for i in range(50) if i not in (3, 7)]
    assert (third.clip_norms > 0).tolist() == third.admitted.tolist()
    fourth = roster.charge(noise_stddev=4.0, norms=np.full(50, 0.5))
    assert fourth.readmitted.tolist() == third.halted.tolist()
    halts = turnstile.halts(name, follow=False)
    assert {halt.user for halt in halts} == {users[i] for i in third.halted}
    assert (
        not turnstile.run(name, "other", take_over=True)
        .enrol(users, clip_norm=2.0)
        .charge(noise_stddev=2.0)
        .admitted.any()
    )


def test_a_roster_goes_on_after_a_restart_and_grows_at_its_end(
    turnstile: Turnstile, name: str
) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    run = turnstile.run(name, "r")
    users = [f"user {number}" for number in range(20)]
    roster = run.enrol(users[:15], clip_norm=1.0)
    roster.set_norms([0.5], [1])
    roster.charge(noise_stddev=4.0)
    again = turnstile.run(name, "r")
    with pytest.raises(InvalidRequest):
        again.enrol(users[::-1], clip_norm=1.0)
    with pytest.raises(InvalidRequest):
        again.enrol([], clip_norm=1.0)
    grown = again.enrol(users, clip_norm=1.0)
    charged = grown.charge(noise_stddev=4.0).clip_norms
    assert charged[1] == 0.5
    assert (np.delete(charged, 1) == 1.0).all()
    with pytest.raises(Fenced):
        roster.charge(noise_stddev=4.0)


def test_unreleased_step_is_handed_back_as_decided(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    users = list(range(20))
    roster = turnstile.run(name, "r").enrol(users, clip_norm=1.0)
    roster.charge(noise_stddev=4.0)
    roster.set_norms(np.linspace(0, 1, 20))
    lost = roster.charge(noise_stddev=8.0)  # decided, and the trainer dies
    run = turnstile.run(name, "r", released=0)
    assert (run.step, run.interrupted) == (1, True)
    back = run.enrol(users, clip_norm=1.0)
    with pytest.raises(StepContentChanged):
        back.charge(noise_stddev=4.0)
    back.set_norms(np.ones(20))  # of the steps after it
    given = back.charge(noise_stddev=8.0)
    assert (given.step, run.step) == (1, 2)
    np.testing.assert_array_equal(given.clip_norms, lost.clip_norms)
    assert (back.charge(noise_stddev=8.0).clip_norms == 1.0).all()


def test_step_can_be_charged_before_the_last_release(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    users = list(range(20))
    run = turnstile.run(name, "r", released=-1, charges_ahead=True)
    roster = run.enrol(users, clip_norm=1.0)
    first = roster.charge(noise_stddev=4.0)
    ahead = roster.charge_ahead(noise_stddev=4.0)
    roster.set_norms(np.full(20, 0.5))  # of what is seen meanwhile
    with pytest.raises(Unusable):
        roster.charge(noise_stddev=4.0)
    assert (first.step, run.step) == (0, 1)
    second = ahead.decision()
    assert (second.step, run.step, ahead.decision().step) == (1, 2, 1)
    assert (second.clip_norms == 1.0).all()
    assert (roster.charge_ahead(noise_stddev=4.0).decision().clip_norms == 0.5).all()
    # The trainer dies here, and has released step 0 alone.
    with pytest.raises(ReleaseUnknown):
        turnstile.run(name, "r", released=0)
    run = turnstile.run(name, "r", released=0, charges_ahead=True)
    assert (run.step, run.interrupted) == (2, True)
    back = run.enrol(users, clip_norm=1.0)
    assert (back.charge_ahead(noise_stddev=4.0).decision().clip_norms == 0.5).all()
    run.close()
    listed = turnstile.run(name, "listed", charges_ahead=True)
    steps = [listed.charge_ahead([1, 2], [1.0, 1.0], noise_stddev=4.0).decision() for _ in range(2)]
    assert [step.step for step in steps] == [0, 1]
    spent = {
        odometer.user: odometer.bound[0] for odometer in turnstile.odometer(name, follow=False)
    }
    assert spent.keys() <= set(users)
