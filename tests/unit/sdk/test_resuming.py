"""An attempt is continued by any process that knows it, and each of its steps is charged once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streams.records import Reason
from streams.sdk.errors import (
    BudgetHeld,
    DecisionTimeout,
    Fenced,
    InvalidRequest,
    RequestRejected,
    RunIsClosed,
    StepContentChanged,
)
from streams.sdk.run import Run
from tests.unit.sdk.partitions import Partitions

USERS = list(range(9))
COST = 1 / 32  # of one step, in zCDP


def opened(**policy: Any) -> tuple[Partitions, Run]:
    service = Partitions()
    service.create(**policy)
    return service, service.open()


def resumed(service: Partitions, run: Run, step: int | None = None) -> Run:
    return service.turnstile.resume(run.dataset, run.name, run.attempt, run.token, step=step)


def charge(run: Run, norm: float = 1.0) -> Any:
    return run.charge(USERS, np.full(9, norm), noise_stddev=4.0)


def test_repeated_step_returns_the_same_decision_and_charges_once() -> None:
    service, run = opened(budget=1.5 * COST)
    decisions = [charge(resumed(service, run, step)) for step in (0, 0, 1, 1, 1)]
    assert [decision.step for decision in decisions] == [0, 0, 1, 1, 1]
    assert [decision.admitted.all() for decision in decisions] == [True, True, False, False, False]
    assert set(service.spent().values()) == {COST}


@pytest.mark.parametrize("step", [0, 3, 4])
def test_only_the_last_and_the_next_step_can_be_charged(step: int) -> None:
    service, run = opened()
    for each in (0, 1):
        charge(resumed(service, run, each))
    with pytest.raises(RequestRejected) as rejected:
        resumed(service, run, step)
    assert rejected.value.reason is Reason.STEP_OUT_OF_ORDER
    assert set(service.spent().values()) == {2 * COST}


@pytest.mark.parametrize("unreached", [{0}, {1, 2}])
def test_partial_step_is_completed_with_its_content_only(
    unreached: set[int],
) -> None:
    service, run = opened()
    for lost in ("deaf", "mute"):
        step = resumed(service, run).step
        due = resumed(service, run, step)  # before the fault: its question is answered
        setattr(service, lost, unreached)
        with pytest.raises(DecisionTimeout):
            charge(due)
        setattr(service, lost, set())
        with pytest.raises(StepContentChanged):
            charge(resumed(service, run, step), norm=0.5)
        if lost == "deaf":
            with pytest.raises(RequestRejected) as rejected:
                resumed(service, run, step + 1)
            assert rejected.value.reason is Reason.STEP_OUT_OF_ORDER
        assert charge(resumed(service, run, step)).admitted.all()
    assert set(service.spent().values()) == {2 * COST}


def test_step_with_two_contents_is_given_up() -> None:
    """Neither content is decided everywhere, so neither is released."""
    service, run = opened()
    one, two = resumed(service, run, 0), resumed(service, run, 0)
    service.deaf = {1, 2}
    with pytest.raises(DecisionTimeout):
        charge(one)
    service.deaf = {0}
    with pytest.raises((DecisionTimeout, StepContentChanged)):
        charge(two, norm=0.5)
    service.deaf = set()
    for norm in (1.0, 0.5):
        with pytest.raises(StepContentChanged):
            charge(resumed(service, run, 0), norm)
    resumed(service, run, 0).abandon()
    assert charge(resumed(service, run, 1)).step == 1


def test_only_the_newest_attempt_with_its_token_is_resumed() -> None:
    service, run = opened()
    other = service.open("other", take_over=True)
    with pytest.raises(BudgetHeld):
        resumed(service, run)
    other.close()
    again = service.open()
    for attempt, token in ((run.attempt, run.token), (again.attempt, run.token)):
        with pytest.raises(Fenced):
            service.turnstile.resume("d", "r", attempt, token)
    with pytest.raises(RequestRejected) as rejected:
        service.turnstile.resume("d", "r", again.attempt + 1, again.token)
    assert rejected.value.reason is Reason.UNKNOWN_RUN
    again.close()
    with pytest.raises(RunIsClosed):
        resumed(service, again)


@pytest.mark.parametrize(
    ("attempt", "token", "step"), [(0, "t", 0), (1, "", 0), (1, "t" * 65, 0), (1, "t", -1)]
)
def test_invalid_arguments_publish_nothing(attempt: int, token: str, step: int) -> None:
    service, _ = opened()
    before = [len(log) for log in service.logs]
    with pytest.raises(InvalidRequest):
        service.turnstile.resume("d", "r", attempt, token, step=step)
    assert [len(log) for log in service.logs] == before


def test_repeated_roster_step_needs_the_same_norms() -> None:
    service, run = opened(budget=1.0)
    norms = np.linspace(0.1, 1.0, 9)

    def charge_roster(step: int, norms: Any) -> Any:
        roster = resumed(service, run, step).enrol(USERS, clip_norm=1.0, levels=10)
        return roster.charge(noise_stddev=4.0, norms=norms)

    first = charge_roster(0, norms)
    assert not first.may_be_drawn
    spent = service.spent()
    with pytest.raises(StepContentChanged):
        charge_roster(0, norms[::-1])
    again = charge_roster(0, norms)
    np.testing.assert_array_equal(again.clip_norms, first.clip_norms)
    assert service.spent() == spent
    assert charge_roster(1, norms[::-1]).step == 1
