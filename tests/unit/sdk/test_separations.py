"""Runs with a minimum separation, as a trainer and a follower of HALTs see them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from streams.records import MAX_SEPARATION, TOO_SOON, Answer, Decision, OpenRun
from streams.sdk.errors import (
    ConflictingDecisions,
    InvalidRequest,
    PartitionsDisagree,
)
from tests.unit.sdk.partitions import Partitions, fits

USERS = list(range(8))


@pytest.fixture
def service() -> Partitions:
    service = Partitions()
    service.create(budget=0.1)
    return service


def test_too_soon_is_in_the_order_of_the_users(service: Partitions) -> None:
    run = service.open(min_separation=3)
    assert run.min_separation == 3
    first = run.charge(USERS[::2], np.ones(4), noise_stddev=4.0)
    assert first.admitted.all()
    assert not first.too_soon.any()
    second = run.charge(USERS[::-1], np.ones(8), noise_stddev=4.0)
    assert second.too_soon.tolist() == [user % 2 == 0 for user in USERS[::-1]]
    assert (second.halted == second.too_soon).all()
    assert (second.granted == np.where(second.too_soon, 0.0, 1.0)).all()
    assert not second.exhausted.any()


def test_an_opening_that_leaves_the_separation_out_completes_another(service: Partitions) -> None:
    service.deaf = {1, 2}
    with pytest.raises(TimeoutError):
        service.open(min_separation=3)
    service.deaf = set()
    assert service.open().min_separation == 3


def test_partitions_that_differ_are_not_charged(service: Partitions) -> None:
    for partition, separation in ((0, 3), (1, 4)):
        opening = OpenRun(dataset="d", run="r", attempt=1, request="t", min_separation=separation)
        service.publish(partition, opening)
    with pytest.raises(PartitionsDisagree):
        service.open()
    assert service.open(min_separation=3).min_separation == 3


@pytest.mark.parametrize("wrong", [1, 0, -3, 2.0, True, "3", MAX_SEPARATION + 1])
def test_invalid_separation_publishes_nothing(service: Partitions, wrong: Any) -> None:
    sent = [len(log) for log in service.logs]
    with pytest.raises(InvalidRequest):
        service.open(min_separation=wrong)
    assert [len(log) for log in service.logs] == sent


def test_handed_back_step_is_completed_as_it_was_decided(service: Partitions) -> None:
    run = service.open(min_separation=2)
    run.charge(USERS[:4], np.ones(4), noise_stddev=4.0)
    lost = run.charge(USERS, np.ones(8), noise_stddev=4.0)
    run = service.open(released=0)
    assert run.interrupted
    back = run.charge(USERS, np.ones(8), noise_stddev=4.0)
    assert (back.too_soon == lost.too_soon).all()
    after = run.charge(USERS, np.ones(8), noise_stddev=4.0)
    assert (after.too_soon == ~lost.too_soon).all()


FORGED = [
    {"reasons": b"\0"},
    {"reasons": bytes([TOO_SOON])},
    {"reasons": b"\1" * 9},
    {"admitted": b"\0"},
]


def test_decision_with_inconsistent_reasons_is_invalid(service: Partitions) -> None:
    run = service.open(min_separation=2)
    heard: list[Answer] = []
    service.heard = lambda decision: [heard.append(decision), decision][1:]
    run.charge(USERS, np.ones(8), noise_stddev=4.0)
    (decision, *_) = (d for d in heard if isinstance(d, Decision) and d.users)
    assert fits(decision)
    assert not any(fits(replace(decision, **changes)) for changes in FORGED)
    service.turnstile.erase(1)
    decided = run.charge(USERS, np.ones(8), noise_stddev=4.0)
    assert decided.erased.tolist() == [user == 1 for user in USERS]
    assert (decided.too_soon == ~decided.erased).all()
    service.heard = lambda decision: [replace(decision, reasons=bytes([TOO_SOON]))]
    with pytest.raises(ConflictingDecisions):
        run.charge(USERS, np.zeros(8), noise_stddev=4.0)
