"""Requests of a client over Kafka are records that brokers take by default."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import UNSET

from streams.ledger import parts
from streams.records import MAX_QUOTED_BYTES, MAX_RECORD_BYTES, Enrolled, RosterDecision
from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout, Fenced, InvalidRequest
from tests.keys import private_key, public
from tests.unit.sdk.partitions import Partitions


@pytest.fixture
def service() -> Partitions:
    """One partition, with the limit of Kafka."""
    service = Partitions(1)
    service.largest_request = MAX_RECORD_BYTES
    return service


def largest(service: Partitions) -> int:
    return max(map(len, service.logs[0]))


def test_the_largest_step_is_charged_and_a_larger_one_is_not_sent(service: Partitions) -> None:
    service.create(budget=1e-12)
    run = service.open()
    run.charge(np.arange(1_000), np.ones(1_000), noise_stddev=4.0)
    other = len(service.logs[0][-1]) - 16 * 1_000 + 4  # lengths of packed arrays take 4 bytes more
    most = (MAX_RECORD_BYTES - other) // 16
    sent = len(service.logs[0])
    with pytest.raises(InvalidRequest, match=str(MAX_RECORD_BYTES)):
        run.charge(np.arange(most + 1), np.ones(most + 1), noise_stddev=4.0)
    assert len(service.logs[0]) == sent
    decision = run.charge(np.arange(most), np.ones(most), noise_stddev=4.0)
    assert decision.halted.all()
    assert MAX_RECORD_BYTES - 16 < largest(service) <= MAX_RECORD_BYTES


def test_a_rejection_of_a_step_that_it_quotes_in_part_is_received(service: Partitions) -> None:
    service.create()
    run = service.open()
    service.open()
    with pytest.raises(Fenced):
        run.charge(np.arange(60_000), np.ones(60_000), noise_stddev=4.0)
    assert largest(service) > MAX_QUOTED_BYTES


@pytest.mark.parametrize("signs", [False, True])
def test_long_ids_are_enrolled_in_several_requests(service: Partitions, signs: bool) -> None:
    allow = {public("alice"): ["charge"], public("mary"): ["manage"]} if signs else None
    key = {"request_key": private_key("alice")} if signs else {}
    service.turnstile.create_dataset("d", measure="zcdp", budget=1.0, allow=allow)
    users = [f"{number:05}" + "\U0001f9ee" * 251 for number in range(2_500)]
    turnstile = Turnstile(connection=service, **key)
    roster = turnstile.run("d", "r").enrol(users, clip_norm=1.0)
    assert len(roster) == 2_500
    assert roster.charge(noise_stddev=4.0).admitted.all()
    assert MAX_RECORD_BYTES / 3 < largest(service) <= MAX_RECORD_BYTES


@pytest.mark.parametrize(("levels", "fits"), [(242, True), (243, False)])
def test_a_cost_table_that_is_too_large_is_known_before_anybody_is_enrolled(
    service: Partitions, levels: int, fits: bool
) -> None:
    """Two budgets of 256 orders each."""
    policy: Any = {
        "measure": "renyi",
        "orders": [2.0 + order for order in range(256)],
        "budget": [1.0] * 256,
    }
    service.create(**policy)
    service.create("nested", **policy, parents=["d"])
    run = service.open(dataset="nested")
    sent = len(service.logs[0])
    if not fits:
        with pytest.raises(InvalidRequest, match="cost table"):
            run.enrol([1], clip_norm=1.0, levels=levels)
        assert len(service.logs[0]) == sent
        return
    roster = run.enrol([1], clip_norm=1.0, levels=levels)
    assert roster.charge(noise_stddev=40.0, norms=[0.5]).admitted.all()
    assert MAX_RECORD_BYTES - 4_500 < largest(service) <= MAX_RECORD_BYTES


def test_a_step_sets_as_many_levels_as_a_record_has(service: Partitions) -> None:
    service.create(on_exhaustion="clip", budget=0.05)
    members = 11_000
    roster = service.open().enrol(np.arange(members), clip_norm=1.0)
    service.largest_request = 10_500
    assert roster.charge(noise_stddev=4.0).admitted.all()
    sent = len(service.logs[0])
    with pytest.raises(InvalidRequest, match="fewer levels"):
        roster.charge(noise_stddev=1.0, norms=np.full(members, 0.5))
    assert len(service.logs[0]) == sent
    some = np.arange(0, members, 6)  # five bytes for each
    roster.set_norms(np.full(len(some), 0.01), some)
    second = roster.charge(noise_stddev=1.0)
    assert (second.clip_norms[some] == 0.01).all()
    assert 0.01 < second.clip_norms[1] < 1.0
    assert 5_000 < len(service.logs[0][-1]) <= 10_500


@pytest.mark.parametrize("missing", [0, 1, -1])
@pytest.mark.parametrize("kind", [RosterDecision, Enrolled])
def test_without_a_part_there_is_no_answer(
    service: Partitions, kind: type, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MAX_PART_BYTES", 400)
    service.create(budget=0.05)
    lost = True

    def heard(answer: Any) -> list[Any]:
        if lost and type(answer) is kind and answer.parts is not UNSET:
            return [answer] * (answer.part != missing % answer.parts)
        return [answer]

    service.heard = heard
    users, norms = np.arange(200), np.linspace(0.0, 1.0, 200)
    run = service.open()
    if kind is Enrolled:
        with pytest.raises(DecisionTimeout):
            run.enrol(users, clip_norm=1.0)
        lost = False
    roster = run.enrol(users, clip_norm=1.0)
    if kind is RosterDecision:
        roster.charge(noise_stddev=4.0, norms=norms)
        with pytest.raises(DecisionTimeout):
            roster.charge(noise_stddev=2.0, norms=norms)
        lost = False
    step = roster.charge(noise_stddev=2.0, norms=norms)
    assert (step.admitted == (norms <= 0.5)).any()
    again = service.open(released=step.step - 1).enrol(users, clip_norm=1.0)
    handed = again.charge(noise_stddev=2.0)
    assert (handed.admitted == step.admitted).all()
    assert (handed.clip_norms == step.clip_norms).all()
