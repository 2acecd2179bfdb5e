"""Runs that collect norms, as senders and a trainer see them: what is refused, lost or forged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from accounting import InvalidInput, Laplace, PoissonGaussian
from streams import CollectTerms, Turnstile
from streams.records import CollectAsked, Decision, OpenRun, Reason, decode_request
from streams.records.packing import pack_norms
from streams.records.users import UserIds, partitions_of
from streams.sdk import norm_events
from streams.sdk.errors import (
    ConflictingDecisions,
    InvalidRequest,
    PartitionsDisagree,
    RequestRejected,
    StepContentChanged,
)
from tests.unit.sdk.partitions import Partitions

TERMS = CollectTerms(clip_norm=1.0)
USERS = list(range(12))
HOMES = partitions_of(np.array(USERS), 3).tolist()


@pytest.fixture
def service() -> Partitions:
    service = Partitions()
    service.create(user_ids="integer")
    return service


INVALID: dict[str, Any] = {
    "a clip norm of 0": {"clip_norm": 0.0},
    "no finite clip norm": {"clip_norm": math.inf},
    "a clip norm in text": {"clip_norm": "1"},
    "an unknown mechanism": {"clip_norm": 1.0, "mechanism": "exponential"},
    "sampling": {"clip_norm": 1.0, "mechanism": "poisson-gaussian"},
}


@pytest.mark.parametrize("terms", INVALID.values(), ids=INVALID)
def test_invalid_terms_cannot_be_made(terms: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=list(terms)[-1]):
        CollectTerms(**terms)


def test_a_run_is_opened_with_terms_only(service: Partitions) -> None:
    sent = [len(log) for log in service.logs]
    with pytest.raises(InvalidRequest):
        service.open(collect=1.0)
    assert [len(log) for log in service.logs] == sent


@pytest.mark.parametrize("measure", ["zcdp", "gdp"])
def test_terms_that_do_not_fit_the_dataset_open_no_run(service: Partitions, measure: str) -> None:
    """Ids of the kind that comes first, or a mechanism that the measure does not charge."""
    service.create("other", measure=measure, user_ids="one-kind" if measure == "zcdp" else "mixed")
    terms = CollectTerms(clip_norm=1.0, mechanism="laplace")
    with pytest.raises(
        InvalidRequest, match="one-kind|kind of ids" if measure == "zcdp" else measure
    ):
        service.open(dataset="other", collect=terms)
    assert not service.close_run("r", "other")


def interrupted(service: Partitions, reached: int, collect: CollectTerms | None) -> None:
    """Open the run in one partition only."""
    service.deaf = {0, 1, 2} - {reached}
    with pytest.raises(TimeoutError):
        service.open(collect=collect)
    service.deaf = set()


@pytest.mark.parametrize("then", [TERMS, None])
@pytest.mark.parametrize("first", [None, TERMS, CollectTerms(clip_norm=2.0)])
def test_an_opening_that_came_half_way_is_completed(
    service: Partitions, first: CollectTerms | None, then: CollectTerms | None
) -> None:
    """An opening that leaves the terms out has those that the run has in some partitions."""
    interrupted(service, 0, first)
    run = service.open(collect=then)
    assert run.collect == (then or first)
    if run.collect is None:
        assert run.charge(USERS, np.ones(12), noise_stddev=4.0).admitted.all()
    else:
        send(service)
        assert run.charge_collected(noise_stddev=4.0).norms == dict.fromkeys(USERS, 0.5)


def test_openings_with_several_terms_need_one_that_names_them(service: Partitions) -> None:
    interrupted(service, 0, TERMS)
    service.publish(
        1, OpenRun(dataset="d", run="r", attempt=5, request="t", collect=CollectAsked(clip_norm=2))
    )
    for _ in range(2):
        with pytest.raises(PartitionsDisagree):
            service.open()
    assert service.open(collect=TERMS).collect == TERMS


def test_terms_of_a_charged_partition_are_not_completed(service: Partitions) -> None:
    run = service.open()
    service.deaf = {1, 2}
    with pytest.raises(TimeoutError):
        run.charge(USERS, np.ones(12), noise_stddev=4.0)
    service.deaf = set()
    with pytest.raises(RequestRejected):
        service.open(collect=TERMS)  # which changes the terms where nothing was charged
    with pytest.raises(PartitionsDisagree):
        service.open()


def send(service: Partitions, users: Any = USERS, norm: float = 0.5, step: int = 0) -> None:
    service.turnstile.send_norms("d", "r", step, users, np.full(len(users), norm))


CALLS: dict[str, Any] = {
    "named users": (TERMS, lambda run: run.charge([1], [0.5], noise_stddev=4.0)),
    "named users ahead": (TERMS, lambda run: run.charge_ahead([1], [0.5], noise_stddev=4.0)),
    "a roster": (TERMS, lambda run: run.enrol([1], clip_norm=1.0)),
    "another mechanism": (TERMS, lambda run: run.charge_collected(mechanism=Laplace(3.0))),
    "sampling": (TERMS, lambda run: run.charge_collected(mechanism=PoissonGaussian(2.0, 0.5))),
    "no noise": (TERMS, lambda run: run.charge_collected()),
    "a reserve of 1": (TERMS, lambda run: run.charge_collected(noise_stddev=4.0, reserve=1.0)),
    "no terms": (None, lambda run: run.charge_collected(noise_stddev=4.0)),
}


@pytest.mark.parametrize(("terms", "call"), CALLS.values(), ids=CALLS)
def test_a_charge_that_does_not_fit_the_run_is_not_published(
    service: Partitions, terms: CollectTerms | None, call: Any
) -> None:
    run = service.open(collect=terms)
    sent = [len(log) for log in service.logs]
    with pytest.raises(InvalidRequest):
        call(run)
    assert [len(log) for log in service.logs] == sent
    assert run.step == 0


@pytest.mark.parametrize("reached", [{0}, {1, 2}])
def test_a_step_that_is_handed_back_has_the_norms_that_it_was_decided_with(
    service: Partitions, reached: set[int]
) -> None:
    send_late = [user for user in USERS if user % 2]
    run = service.open(collect=TERMS)
    send(service, USERS[::2])
    service.deaf = {0, 1, 2} - reached
    with pytest.raises(TimeoutError):
        run.charge_collected(noise_stddev=4.0)
    service.deaf = set()
    send(service, send_late)
    assert set(service.rejects) == {Reason.STEP_DECIDED}
    run = service.open()
    assert (run.step, run.interrupted) == (0, True)
    with pytest.raises(StepContentChanged):
        run.charge_collected(noise_stddev=5.0)
    decision = run.charge_collected(noise_stddev=4.0)
    in_time = {user for user in send_late if HOMES[user] not in reached}
    assert decision.norms == dict.fromkeys([*USERS[::2], *in_time], 0.5)
    assert service.spent().keys() == decision.norms.keys()


def test_a_step_that_is_given_up_charges_only_where_it_was_decided(service: Partitions) -> None:
    run = service.open(collect=TERMS)
    send(service)
    service.deaf = {1, 2}
    with pytest.raises(TimeoutError):
        run.charge_collected(noise_stddev=4.0)
    service.deaf = set()
    run = service.open()
    run.abandon()
    assert (run.step, run.interrupted) == (1, False)
    assert service.spent().keys() == {user for user in USERS if HOMES[user] == 0}
    send(service, step=1)
    assert run.charge_collected(noise_stddev=4.0).norms == dict.fromkeys(USERS, 0.5)


def test_users_are_listed_by_partition_and_then_by_time(service: Partitions) -> None:
    run = service.open(collect=TERMS)
    before = sum(map(len, service.logs))
    for user in USERS[::-1]:
        send(service, [user], norm=user / 20)
    assert sum(map(len, service.logs)) - before == len(USERS)
    decision = run.charge_collected(noise_stddev=0.35)
    expected = sorted(USERS, key=lambda user: (HOMES[user], -user))
    assert decision.users == expected
    assert decision.admitted.tolist() == [user < 10 for user in expected]
    assert (decision.granted == np.where(decision.admitted, np.array(expected) / 20, 0)).all()
    assert decision.norms == {user: user / 20 for user in expected if user < 10}


ONES = pack_norms(np.ones(2))
HALF = {"admitted": b"\1", "halted": [7], "reasons": b"\0", "collected": [1], "norms": ONES[:8]}
FORGED: dict[str, dict[str, Any]] = {
    "no list": {"collected": None, "norms": None},
    "a norm above the clip norm": {"norms": pack_norms(np.array([0.5, 1.5]))},
    "a norm below 0": {"norms": pack_norms(np.array([0.5, -0.5]))},
    "a norm that is no number": {"norms": pack_norms(np.array([0.5, math.nan]))},
    "a norm too few": {"norms": pack_norms(np.array([0.5]))},
    "a norm that is cut off": {"norms": bytes(15)},
    "a user too few": {"collected": UserIds([1]).pack()},
    "a user who is not admitted": {"admitted": b"\1", "halted": [7], "reasons": b"\0"},
    "another norm than granted": {"clipped": b"\1\0\0\0", "granted": ONES[:8]},
    "a clipped norm of a halted user": {
        **HALF,
        "clipped": b"\1\0\0\0",
        "granted": bytes(8),
    },
}


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED)
def test_an_impossible_decision_ends_the_run(changes: dict[str, Any]) -> None:
    service = Partitions(1)
    service.create(user_ids="integer")
    run = service.open(collect=TERMS)
    send(service, USERS[:2])
    changes = {name: UNSET if value is None else value for name, value in changes.items()}

    def forged(decision: Decision) -> list[Decision]:
        assert decision.users == 2
        return [replace(decision, **changes)]

    service.heard = forged
    with pytest.raises(ConflictingDecisions):
        run.charge_collected(noise_stddev=4.0)


@pytest.mark.parametrize(("size", "events"), [(200, 1000), (100_000, 3)])
def test_norms_are_sent_in_small_records_to_the_partition_of_each_user(
    service: Partitions, monkeypatch: pytest.MonkeyPatch, size: int, events: int
) -> None:
    monkeypatch.setattr(norm_events, "MAX_UNSIGNED_BYTES", size)
    monkeypatch.setattr(norm_events, "MAX_EVENTS", events)
    run = service.open(collect=TERMS)
    before = [len(log) for log in service.logs]
    users = np.arange(1000)
    service.turnstile.send_norms("d", "r", 0, users, users / 1000, attempt=1)
    records = [
        record for log, begin in zip(service.logs, before, strict=True) for record in log[begin:]
    ]
    assert max(map(len, records)) <= size
    assert max(len(UserIds.unpack(decode_request(record).users)) for record in records) <= events
    assert {decode_request(record).attempt for record in records} == {1}
    assert service.rejects == []
    assert run.charge_collected(noise_stddev=4.0).norms == {u: u / 1000 for u in users.tolist()}


def test_the_log_has_pseudonyms_and_the_decision_has_the_users_that_are_known() -> None:
    service = Partitions()
    sender = Turnstile(connection=service, pseudonym_key=b"a secret of 16 b")
    sender.create_dataset("d", measure="zcdp", budget=1.0, user_ids="integer")
    run = sender.run("d", "r", collect=TERMS)
    names = ["lovelace", "grace", "Zoe\u0308"]
    sender.send_norms("d", "r", 0, names, [0.5, 0.0, 9.0])
    assert service.rejects == [Reason.NORM_ABOVE_CLIP]
    assert not any(
        name.encode() in record for log in service.logs for record in log for name in names
    )
    assert run.charge_collected(noise_stddev=4.0).norms == {"lovelace": 0.5, "grace": 0.0}
    other = Turnstile(connection=service, pseudonym_key=b"a secret of 16 b")
    run = other.run("d", "r", released=-1)
    assert set(map(type, run.charge_collected(noise_stddev=4.0).users)) == {int}


EVENTS: dict[str, dict[str, Any]] = {
    "a user twice": {"users": [1, 1], "norms": [0.5, 0.5]},
    "no id": {"users": [1.5], "norms": [0.5]},
    "too few norms": {"users": [1, 2], "norms": [0.5]},
    "a negative norm": {"users": [1], "norms": [-0.5]},
    "an infinite norm": {"users": [1], "norms": [math.inf]},
    "a negative step": {"step": -1},
    "attempt 0": {"attempt": 0},
    "an invalid name": {"run": "a b"},
    "a negative timeout": {"timeout": -1.0},
}


@pytest.mark.parametrize("changes", EVENTS.values(), ids=EVENTS)
def test_invalid_norms_are_not_published(service: Partitions, changes: dict[str, Any]) -> None:
    service.open(collect=TERMS)
    sent = [len(log) for log in service.logs]
    valid = {"dataset": "d", "run": "r", "step": 0, "users": [1], "norms": [0.5]}
    with pytest.raises(InvalidRequest):
        service.turnstile.send_norms(**{**valid, **changes})
    assert [len(log) for log in service.logs] == sent
