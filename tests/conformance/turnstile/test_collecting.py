"""Runs that collect norms: what is charged of what was sent, once, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streams import (
    CollectTerms,
    Turnstile,
)
from streams.ledger.parts import MAX_PART_BYTES
from tests.conformance.turnstile import PARTITIONS
from tests.conformance.turnstile.test_decisions import halts_of
from tests.keys import public

TERMS = CollectTerms(clip_norm=1.0)
USERS = [*range(20), *(f"user {number}" for number in range(20))]


def opened(turnstile: Any, name: str, **policy: Any) -> Any:
    turnstile.create_dataset(
        name, **{"measure": "zcdp", "budget": 1.0, "user_ids": "mixed", **policy}
    )
    return turnstile.run(name, "r", collect=TERMS)


def send(turnstile: Any, name: str, norms: dict[Any, float], step: int = 0, **options: Any) -> None:
    turnstile.send_norms(name, "r", step, list(norms), list(norms.values()), **options)


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


def test_only_norms_of_keys_that_may_charge_count(
    signers: Callable[[str | None], Any], name: str
) -> None:
    allow = {public("alice"): ["charge"], public("mary"): ["manage"]}
    run = opened(signers("alice"), name, allow=allow)
    for user, who in enumerate((None, "mary", "bob", "alice")):
        send(signers(who), name, {user: 0.5})
    assert run.charge_collected(noise_stddev=4.0).norms == {3: 0.5}


@pytest.mark.slow
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
