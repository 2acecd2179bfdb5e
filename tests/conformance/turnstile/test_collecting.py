"""Runs that collect norms: what is charged of what was sent, once, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accounting import Laplace
from streams import (
    CollectTerms,
    Fenced,
    InvalidRequest,
    RequestRejected,
    StepContentChanged,
    Turnstile,
)
from streams.ledger.parts import MAX_PART_BYTES
from streams.records import Reason
from tests.conformance.turnstile import PARTITIONS
from tests.conformance.turnstile.test_decisions import bounds_of, halts_of
from tests.keys import public
from tests.waiting import eventually

TERMS = CollectTerms(clip_norm=1.0)
USERS = [*range(20), *(f"user {number}" for number in range(20))]


def opened(turnstile: Any, name: str, **policy: Any) -> Any:
    turnstile.create_dataset(
        name, **{"measure": "zcdp", "budget": 1.0, "user_ids": "mixed", **policy}
    )
    return turnstile.run(name, "r", collect=TERMS)


def send(turnstile: Any, name: str, norms: dict[Any, float], step: int = 0, **options: Any) -> None:
    turnstile.send_norms(name, "r", step, list(norms), list(norms.values()), **options)


@pytest.mark.parametrize("on_exhaustion", ["halt", "clip"])
def test_collected_norms_are_charged_as_named_users_are(
    turnstile: Turnstile, name: str, on_exhaustion: str
) -> None:
    policy = {"budget": 0.3, "on_exhaustion": on_exhaustion}
    run = opened(turnstile, name, **policy)
    named = f"{name}-named"
    turnstile.create_dataset(named, measure="zcdp", user_ids="mixed", **policy)
    other = turnstile.run(named, "r")
    random = np.random.default_rng(1)
    for step in range(8):
        norms = {USERS[place]: random.random() for place in random.permutation(40)[:25].tolist()}
        send(turnstile, name, norms, step)
        decision = run.charge_collected(noise_stddev=1.3)
        assert decision.step == step
        assert sorted(map(str, decision.users)) == sorted(map(str, norms))
        same = other.charge(
            decision.users, [norms[user] for user in decision.users], noise_stddev=1.3
        )
        for field in ("admitted", "granted", "exhausted", "halted"):
            np.testing.assert_array_equal(getattr(decision, field), getattr(same, field))
        granted = zip(decision.users, same.granted.tolist(), strict=True)
        admitted = [row for row, is_in in zip(granted, same.admitted, strict=True) if is_in]
        assert decision.norms == dict(admitted)
    assert halts_of(turnstile, name) == halts_of(turnstile, named) != set()
    eventually(lambda: bounds_of(turnstile, name) == bounds_of(turnstile, named))


def test_each_norm_counts_once_and_in_time(turnstile: Turnstile, name: str) -> None:
    run = opened(turnstile, name)
    send(turnstile, name, {1: 0.1, "a": 0.2})
    send(turnstile, name, {"a": 0.2, 1: 0.1, 2: 0.3}, attempt=run.attempt)  # two norms again
    send(turnstile, name, {1: 0.9})  # another norm of the same user does not count
    send(turnstile, name, {3: 1.1, 4: 1.0}, step=1)  # one is above the clip norm
    send(turnstile, name, {5: 0.5}, step=7)  # too far ahead
    send(turnstile, name, {6: 0.5}, attempt=run.attempt + 1)  # never opened
    assert run.charge_collected(noise_stddev=4.0).norms == {1: 0.1, "a": 0.2, 2: 0.3}
    send(turnstile, name, {7: 0.5})  # late
    assert run.charge_collected(noise_stddev=4.0).norms == {4: 1.0}
    assert run.charge_collected(noise_stddev=4.0).users == []
    assert run.step == 3


def test_a_step_that_is_handed_back_is_decided_once(turnstile: Turnstile, name: str) -> None:
    run = opened(turnstile, name)
    assert run.collect == TERMS
    norms = dict.fromkeys(USERS, 0.5)
    send(turnstile, name, norms)
    first = run.charge_collected(noise_stddev=4.0)
    again = turnstile.run(name, "r", released=-1)
    assert (again.collect, again.step, again.interrupted) == (TERMS, 0, True)
    send(turnstile, name, {"late": 0.5})
    with pytest.raises(StepContentChanged):
        again.charge_collected(noise_stddev=5.0)
    second = again.charge_collected(noise_stddev=4.0)
    assert second.users == first.users
    assert second.norms == first.norms == norms
    with pytest.raises(Fenced):
        run.charge_collected(noise_stddev=4.0)
    send(turnstile, name, norms, step=1)
    assert again.charge_collected(noise_stddev=4.0).norms == norms
    given_up = turnstile.run(name, "r", released=0)
    assert (given_up.step, given_up.interrupted) == (1, True)
    given_up.abandon()
    assert (given_up.step, given_up.interrupted) == (2, False)
    send(turnstile, name, norms, step=2)
    assert given_up.charge_collected(noise_stddev=4.0).norms == norms


def test_other_terms_and_named_users_are_refused(turnstile: Turnstile, name: str) -> None:
    run = opened(turnstile, name)
    for call in (
        lambda: run.charge([1], [0.5], noise_stddev=4.0),
        lambda: run.enrol([1], clip_norm=1.0),
        lambda: run.charge_collected(mechanism=Laplace(4.0)),
        lambda: send(turnstile, name, {1: -0.5}),
    ):
        with pytest.raises(InvalidRequest):
            call()
    send(turnstile, name, {1: 0.5})
    assert run.charge_collected(noise_stddev=4.0).norms == {1: 0.5}
    with pytest.raises(RequestRejected) as rejected:
        turnstile.run(name, "r", collect=CollectTerms(clip_norm=2.0))
    assert rejected.value.reason is Reason.COLLECT_CHANGED
    turnstile.close_run(name, "r")
    named = turnstile.run(name, "named")
    assert named.collect is None
    with pytest.raises(InvalidRequest):
        named.charge_collected(noise_stddev=4.0)
    assert named.charge([1], [0.5], noise_stddev=4.0).admitted.all()
    turnstile.create_dataset(f"{name}-loose", measure="zcdp", budget=1.0)
    with pytest.raises(InvalidRequest):
        turnstile.run(f"{name}-loose", "r", collect=TERMS)


def test_only_norms_of_keys_that_may_charge_count(
    signers: Callable[[str | None], Any], name: str
) -> None:
    allow = {public("alice"): ["charge"], public("mary"): ["manage"]}
    run = opened(signers("alice"), name, allow=allow)
    for user, who in enumerate((None, "mary", "bob", "alice")):
        send(signers(who), name, {user: 0.5})
    assert run.charge_collected(noise_stddev=4.0).norms == {3: 0.5}


def test_a_large_decision_is_put_together_from_its_parts(turnstile: Turnstile, name: str) -> None:
    run = opened(turnstile, name, budget=0.02)
    users = [f"{number:05} {'x' * 200}" for number in range(20_000)]
    assert sum(map(len, users)) > PARTITIONS * MAX_PART_BYTES
    norms = dict.fromkeys(users, 0.5) | dict.fromkeys(users[::3], 1.0)
    send(turnstile, name, norms)
    decision = run.charge_collected(noise_stddev=4.0)
    assert decision.norms == {user: norm for user, norm in norms.items() if norm < 1}
    halted = {user for *_, user, _, _ in halts_of(turnstile, name)}
    assert halted == set(users[::3])
    again = turnstile.run(name, "r", released=-1)
    assert again.charge_collected(noise_stddev=4.0).norms == decision.norms
