"""A roster's step is charged once and comes back as it was decided, whatever is lost on the way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from accounting import InvalidInput, Laplace, PoissonGaussian
from accounting.costs.norm_levels import grid_norms
from streams import Turnstile
from streams.records import (
    ChargeRoster,
    Enrol,
    Enrolled,
    RosterDecision,
    decode_answer,
    decode_request,
    encode,
)
from streams.records.packing import pack_positions
from streams.sdk import roster as roster_module
from streams.sdk.errors import (
    ConflictingDecisions,
    DecisionTimeout,
    InvalidRequest,
    StepContentChanged,
    Unusable,
)
from streams.sdk.roster import Roster
from streams.sdk.run import Run
from streams.trainers import PrivateSteps
from tests.unit.sdk.partitions import Partitions

USERS = list(range(12))
NORMS = np.linspace(0.1, 1.0, 12)


def enrolled(run: Run, users: Any = USERS) -> Roster:
    return run.enrol(users, clip_norm=1.0, levels=10)


def begun(**policy: Any) -> tuple[Partitions, Run, Roster]:
    service = Partitions(3)
    service.create(**policy)
    run = service.open()
    return service, run, enrolled(run)


def records(service: Partitions, kind: type) -> list[Any]:
    sent = [decode_request(value) for log in service.logs for value in log]
    return [record for record in sent if isinstance(record, kind)]


# --- what is sent ---------------------------------------------------------------------------------


def test_ids_go_once_and_a_step_sends_what_changed() -> None:
    service = Partitions(3)
    service.create()
    roster = enrolled(service.open(), range(120))
    roster.charge(noise_stddev=4.0)
    roster.charge(noise_stddev=4.0)
    roster.set_norms([0.5], [3])
    roster.charge(noise_stddev=4.0)
    roster.charge(noise_stddev=8.0)
    roster.charge(noise_stddev=8.0, norms=np.full(120, 0.7))
    assert sum(len(r.users) // 8 for r in records(service, Enrol)) == 120
    by_step = [[r for r in records(service, ChargeRoster) if r.step == step] for step in range(5)]
    assert [sum(bool(r.units) for r in step) for step in by_step] == [3, 0, 0, 3, 0]
    assert [sum(len(r.levels) for r in step) for step in by_step[:4]] == [0, 0, 1, 0]
    assert sum(len(r.levels) for r in by_step[4]) == 120


def test_levels_that_were_set_twice_go_once_in_order() -> None:
    service = Partitions(1)
    service.create()
    roster = enrolled(service.open(), range(120))
    roster.set_norms([0.5, 0.3, 0.2], [90, 7, 90])
    roster.set_norms([0.4, 1.0], [7, 30])
    assert roster.charge(noise_stddev=4.0).clip_norms_at(np.array([7, 90])).tolist() == [0.4, 0.2]
    (sent,) = records(service, ChargeRoster)
    assert np.frombuffer(sent.positions, dtype="<u4").tolist() == [7, 90]


# --- a step that was interrupted ------------------------------------------------------------------

PLACES = [{0}, {1, 2}, {0, 1, 2}]


@pytest.mark.parametrize("reached", PLACES, ids=str)
def test_handed_back_step_is_charged_once(reached: set[int]) -> None:
    service, run, roster = begun()
    roster.charge(noise_stddev=4.0)
    roster.set_norms(NORMS)
    service.deaf, service.mute = {0, 1, 2} - reached, reached
    with pytest.raises(DecisionTimeout):
        roster.charge(noise_stddev=4.0)
    service.deaf, service.mute = set(), set()
    run = service.open(released=0)
    assert (run.step, run.interrupted) == (1, True)
    again = enrolled(run)
    again.set_norms(NORMS)
    step = again.charge(noise_stddev=4.0)
    assert (step.step, run.step) == (1, 2)
    assert (step.clip_norms >= NORMS).all()
    spent = service.spent()
    expected = (1.0 + step.clip_norms**2) / 32
    np.testing.assert_allclose([spent[user] for user in USERS], expected, rtol=1e-9)
    assert service.rejects == []


@pytest.mark.parametrize("place", range(3))
def test_step_that_timed_out_is_charged_once_unchanged(place: int) -> None:
    service, _, roster = begun()
    roster.set_norms(NORMS)
    service.mute = {place}
    with pytest.raises(DecisionTimeout):
        roster.charge(noise_stddev=4.0)
    service.mute = set()
    with pytest.raises(InvalidRequest):
        roster.charge(noise_stddev=5.0)
    step = roster.charge(noise_stddev=4.0)
    spent = service.spent()
    np.testing.assert_allclose([spent[user] for user in USERS], step.clip_norms**2 / 32, rtol=1e-9)


def test_step_is_not_charged_by_norms_and_by_roster() -> None:
    service, run, roster = begun()
    roster.charge(noise_stddev=4.0)
    with pytest.raises(StepContentChanged):
        service.open(released=-1).charge(USERS, NORMS, noise_stddev=4.0)
    service, run, roster = begun()
    run.charge(USERS, NORMS, noise_stddev=4.0)
    run = service.open(released=-1)
    roster = enrolled(run)
    with pytest.raises(StepContentChanged):
        roster.charge(noise_stddev=4.0)
    assert run.charge(USERS, NORMS, noise_stddev=4.0).step == 0
    assert roster.charge(noise_stddev=4.0).step == 1


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"noise_stddev": 0.0},
        {"noise_stddev": float("nan")},
        {"noise_stddev": 4.0, "sampling_rate": 0.5},  # zcdp cannot charge sampled steps
        {"noise_stddev": 4.0, "sampling_rate": 0.0},
        {"noise_stddev": 4.0, "sampling_rate": 1.5},
        {"noise_stddev": 4.0, "mechanism": Laplace(1.0)},
        {"mechanism": PoissonGaussian(4.0, 0.5), "sampling_rate": 0.5},
        {"mechanism": "gaussian"},
        {"noise_stddev": 4.0, "norms": NORMS[:3]},
        {"noise_stddev": 4.0, "norms": -NORMS},
        {"noise_stddev": 4.0, "norms": np.full(12, np.nan)},
    ],
    ids=str,
)
def test_invalid_step_changes_nothing(arguments: Any) -> None:
    service, run, roster = begun()
    sent = [len(log) for log in service.logs]
    with pytest.raises((InvalidRequest, InvalidInput)):
        roster.charge(**arguments)
    assert [len(log) for log in service.logs] == sent
    assert (roster.charge(noise_stddev=4.0).clip_norms == 1.0).all()
    assert run.step == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"clip_norm": 0.0},
        {"clip_norm": float("inf")},
        {"clip_norm": 1.0, "levels": 0},
        {"clip_norm": 1.0, "levels": 256},
        {"clip_norm": 1.0, "users": [1, 1]},
        {"clip_norm": 1.0, "users": [1.5]},
        {"clip_norm": 1.0, "users": {1, 2}},
        {"clip_norm": 5e-324, "levels": 100},
    ],
    ids=str,
)
def test_invalid_roster_is_rejected(arguments: Any) -> None:
    service = Partitions(3)
    service.create()
    run = service.open()
    sent = [len(log) for log in service.logs]
    with pytest.raises(InvalidRequest):
        run.enrol(**{"users": USERS, **arguments})
    assert [len(log) for log in service.logs] == sent


@pytest.mark.parametrize("positions", [[12], [-1], [0.5], [[1]]], ids=str)
def test_invalid_positions_are_rejected(positions: Any) -> None:
    _, _, roster = begun()
    with pytest.raises(InvalidRequest):
        roster.observe(positions, [0.5])


@pytest.mark.parametrize("stated", ["outer", "d"])
def test_levels_follow_no_coins_if_one_of_the_budgets_states_so(stated: str) -> None:
    budget: dict[str, Any] = {"measure": "renyi", "epsilon": 2.0, "delta": 1e-5}
    with Turnstile.in_memory() as turnstile:
        for name, parents in (("outer", None), ("d", "outer")):
            levels = False if name == stated else None
            turnstile.create_dataset(name, parents=parents, sampled_levels=levels, **budget)
        run = turnstile.run("d", "r")
        arguments: dict[str, Any] = {
            "clip_norm": 1.0,
            "noise_multiplier": 9.0,
            "sampling_rate": 0.5,
            "expected_batch": 6.0,
        }
        with pytest.raises(InvalidRequest):
            PrivateSteps(run, USERS, levels="own", **arguments)
        steps = PrivateSteps(run, USERS, **arguments)
        step = steps.begin()
        step.add(np.full((len(step.positions), 1), 0.25))
        step.release(1)
        with pytest.raises(InvalidRequest):
            steps.roster.observe([0], [0.5])


@pytest.mark.parametrize(
    "changes",
    [
        {"members": 1},
        {"halted": b"\2"},
        {"halted": b"\1"},
        {"readmitted": pack_positions(np.array([99]), 10_000)},
        {"regranted": pack_positions(np.array([0]), 10_000)},
        {"regranted": pack_positions(np.array([0]), 10_000), "granted": b"\x0b"},
        {"digest": bytes(16)},
    ],
    ids=str,
)
def test_impossible_decision_ends_the_run(changes: dict[str, Any]) -> None:
    service, _, roster = begun()
    service.heard = lambda decision: (
        [replace(decision, **changes)] if isinstance(decision, RosterDecision) else [decision]
    )
    with pytest.raises(ConflictingDecisions):
        roster.charge(noise_stddev=4.0)


def test_readmitted_user_is_clipped_to_the_granted_level() -> None:
    """With most levels a step sends all of them: of those that stay the grant is anew, too."""
    service = Partitions(1)
    service.create(budget=0.6, on_exhaustion="clip")
    roster = enrolled(service.open(), [0, 1, 2, 3])
    assert roster.charge(noise_stddev=1.0).clip_norms.tolist() == [1.0] * 4
    less = roster.charge(noise_stddev=1.0).clip_norms
    assert (less < 0.5).all()
    roster.set_norms([0.1, 0.1], [2, 3])
    again = roster.charge(noise_stddev=100.0)
    assert again.clip_norms.tolist() == [1.0, 1.0, 0.1, 0.1]


# --- what was sent is what was charged ------------------------------------------------------------


def charged_levels(service: Partitions) -> dict[int, float]:
    """The norm that each user of the run was charged for by the last step; 0: halted."""
    found: dict[int, float] = {}
    for ledger in service.ledgers:
        members = ledger.state.rosters.members["d", "r"]
        users = ledger.state.policies.budgets("d").own.users_at(
            members.slots_of(np.arange(len(members)))[0]
        )
        levels = grid_norms(1.0, 10)[members.granted]
        levels[members.halted] = 0.0
        found |= dict(zip(users.tolist(), levels.tolist(), strict=True))
    return found


def assert_as_charged(service: Partitions, step: Any, users: list[int] = USERS) -> None:
    charged = charged_levels(service)
    assert step.clip_norms.tolist() == [charged[user] for user in users]


def test_a_run_has_one_roster() -> None:
    service, run, first = begun()
    first.set_norms(np.full(12, 0.1))
    step = first.charge(noise_stddev=4.0)
    second = enrolled(run)
    for charge in (first.charge, first.charge_ahead):
        with pytest.raises(Unusable):
            charge(noise_stddev=4.0)
    assert step.clip_norms.tolist() == [0.1] * 12
    assert_as_charged(service, second.charge(noise_stddev=4.0))


@pytest.mark.slow
def test_interrupted_update_is_repeated() -> None:
    """At every line of it."""
    interrupted = 0
    while True:
        interrupted += 1
        service, _, roster = begun(budget=0.5)
        roster.charge(noise_stddev=2.0, norms=NORMS)
        ahead = roster.charge_ahead(noise_stddev=2.0, norms=np.full(12, 0.2))
        roster.observe(range(12), np.full(12, 0.9))
        with interruption(at=interrupted) as ended:
            ahead.decision()
        if not ended:
            break
        assert_as_charged(service, ahead.decision())
        assert_as_charged(service, roster.charge(noise_stddev=2.0))
    assert interrupted > 30


@contextmanager
def interruption(at: int) -> Iterator[list[bool]]:
    """Ctrl-C at a line of those that take in what was decided; whether it came."""
    lines, ended = 0, []

    def look(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != roster_module.__file__:
            return None if event == "call" and "/sdk/" not in frame.f_code.co_filename else look
        lines += event == "line"
        if event == "line" and lines == at:
            sys.settrace(None)
            ended.append(True)
            raise KeyboardInterrupt
        return look

    sys.settrace(look)
    try:
        yield ended
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)


def test_handed_back_step_excludes_new_members() -> None:
    service, _, roster = begun()
    service.deaf, service.mute = {2}, {0, 1}
    with pytest.raises(DecisionTimeout):
        roster.charge(noise_stddev=4.0)
    service.deaf, service.mute = set(), set()
    more = [*USERS, *range(12, 40)]
    run = service.open()
    roster = enrolled(run, more)
    step = roster.charge(noise_stddev=4.0)
    assert (step.step, run.step) == (0, 1)
    assert step.admitted[:12].all()
    spent = service.spent()
    assert [user for user in more if step.admitted[user]] == sorted(u for u in spent if spent[u])
    assert roster.charge(noise_stddev=4.0).admitted.all()
    assert service.rejects == []


def test_handed_back_decision_about_too_many_members_is_rejected() -> None:
    service, _, roster = begun()
    service.deaf, service.mute = {2}, {0, 1}
    with pytest.raises(DecisionTimeout):
        roster.charge(noise_stddev=4.0)
    service.deaf, service.mute = set(), set()

    def heard(answer: Any) -> list[Any]:
        if not isinstance(answer, Enrolled) or not answer.decision:
            return [answer]
        decision = replace(decode_answer(answer.decision), members=99)
        return [replace(answer, decision=encode(decision))]

    service.heard = heard
    again = enrolled(service.open())
    with pytest.raises(ConflictingDecisions):
        again.charge(noise_stddev=4.0)
