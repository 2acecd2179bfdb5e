"""Datasets, whom they name, and users who are erased."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from streams import (
    DatasetInUse,
    DatasetIsClosed,
    InvalidRequest,
    PolicyChanged,
    RequestRejected,
    Turnstile,
)
from streams.records import Reason
from tests.conformance.turnstile import PARTITIONS
from tests.keys import public


def test_a_dataset_is_created_once_and_keeps_its_policy(turnstile: Turnstile, name: str) -> None:
    made = turnstile.create_dataset(name, epsilon=1.0, delta=1e-5)
    assert (made.dataset, made.measure, made.partitions) == (name, "gdp", PARTITIONS)
    assert turnstile.create_dataset(name, epsilon=1.0, delta=1e-5) == made
    with pytest.raises(PolicyChanged):
        turnstile.create_dataset(name, epsilon=2.0, delta=1e-5)
    assert turnstile.run(name, "r").policy == made


def test_a_dataset_is_withdrawn_until_it_is_used(turnstile: Turnstile, name: str) -> None:
    turnstile.withdraw_dataset(name)
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    turnstile.withdraw_dataset(name)
    with pytest.raises(RequestRejected) as rejected:
        turnstile.run(name, "r")
    assert rejected.value.reason is Reason.UNKNOWN_DATASET
    turnstile.create_dataset(name, measure="zcdp", budget=2.0)
    turnstile.run(name, "r")
    with pytest.raises(DatasetInUse):
        turnstile.withdraw_dataset(name)


def test_closing_closes_nested_datasets(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    turnstile.create_dataset(f"{name}-in", measure="zcdp", budget=1.0, parents=name)
    run = turnstile.run(f"{name}-in", "r")
    assert run.charge([1, 2, 3], np.ones(3), noise_stddev=4.0).admitted.all()
    assert turnstile.close_dataset(name) == turnstile.close_dataset(name) == [name, f"{name}-in"]
    with pytest.raises(DatasetIsClosed):
        run.charge([1, 2, 3], np.ones(3), noise_stddev=4.0)
    for ask in (
        lambda: turnstile.run(f"{name}-in", "r"),
        lambda: turnstile.create_dataset(name, measure="zcdp", budget=1.0),
        lambda: turnstile.withdraw_dataset(name),
        lambda: turnstile.create_dataset(f"{name}-new", measure="zcdp", budget=1.0, parents=name),
    ):
        with pytest.raises(DatasetIsClosed):
            ask()
    with pytest.raises(RequestRejected) as rejected:
        turnstile.close_dataset(f"{name}-not")
    assert rejected.value.reason is Reason.UNKNOWN_DATASET


def test_only_listed_keys_charge_and_manage(
    signers: Callable[[str | None], Any],
) -> None:
    allow = {public("alice"): ["charge"], public("mary"): ["manage"]}

    def allowed(who: str | None, act: Callable[[Any], Any]) -> bool:
        try:
            act(signers(who))
        except RequestRejected as error:
            return error.reason != "not-allowed"
        return True

    def charge(client: Any) -> None:
        charged = client.run("d", "r").charge([1, 2, 3], np.full(3, 0.1), noise_stddev=4.0)
        assert charged.admitted.all()

    signers(None).create_dataset("d", measure="zcdp", budget=1.0, allow=allow)
    everybody = (None, "alice", "mary", "bob")
    assert [who for who in everybody if allowed(who, charge)] == ["alice"]
    assert [who for who in everybody if allowed(who, lambda c: c.erase(1, "d"))] == ["mary"]
    new = {public("bob"): ["charge", "manage"]}
    assert [who for who in everybody[1:] if allowed(who, lambda c: c.set_access("d", new))] == [
        "mary",
        "bob",
    ]
    assert not allowed("alice", charge)
    assert not allowed("mary", lambda client: client.close_dataset("d"))
    assert allowed("bob", lambda client: client.close_dataset("d"))


def test_erased_user_is_never_admitted_again(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(
        name,
        measure="zcdp",
        budget=1.0,
        odometer_step=0.01,
        user_ids="mixed",
        assume_independent_timing=True,
    )
    turnstile.create_dataset(f"{name}-in", measure="zcdp", budget=1.0, parents=name)
    someone = uuid4().int >> 66  # whom no other dataset has
    users = [someone, "Zoë", 2, 3]
    run, inner = turnstile.run(name, "r"), turnstile.run(f"{name}-in", "i")
    roster = turnstile.run(name, "roster").enrol(users, clip_norm=1.0, levels=4)
    for charge in (run.charge, inner.charge):
        assert charge(users, np.ones(4), noise_stddev=4.0).admitted.all()
    roster.charge(noise_stddev=4.0)
    assert turnstile.erase("Zoe\u0308", f"{name}-in") == [name, f"{name}-in"]
    assert turnstile.erase(someone) == [name, f"{name}-in"]
    assert turnstile.erase(someone, name) == [name, f"{name}-in"], "again"
    assert turnstile.erase(99, name) == []
    for charge in (run.charge, inner.charge):
        decision = charge(users, [1.0, 0.0, 1.0, 1.0], noise_stddev=4.0)
        assert decision.erased.tolist() == [True, True, False, False]
        assert (decision.admitted == ~decision.erased).all()
    assert roster.charge(noise_stddev=4.0).admitted.tolist() == [False, False, True, True]
    again = turnstile.run(name, "roster").enrol([*users, 4], clip_norm=1.0, levels=4)
    assert again.charge(noise_stddev=4.0).admitted.tolist() == [False, False, True, True, True]
    erased = [halt for halt in turnstile.halts(name, follow=False) if halt.reason == "erased"]
    assert {halt.run for halt in erased} == {"r", "roster"}
    assert not {halt.user for halt in erased} & set(users)
    with pytest.raises(InvalidRequest):
        turnstile.erase(1, "no such name")
    with pytest.raises(RequestRejected) as rejected:
        turnstile.erase(1, f"{name}-not")
    assert rejected.value.reason is Reason.UNKNOWN_DATASET


def test_pseudonyms_are_erased_with_their_key(name: str) -> None:
    with Turnstile.in_memory(pseudonym_key="k" * 32) as turnstile:
        turnstile.create_dataset(name, measure="zcdp", budget=1.0)
        run = turnstile.run(name, "r")
        run.charge(["a", "b"], [1.0, 1.0], noise_stddev=4.0)
        assert turnstile.erase("a") == [name]
        assert run.charge(["a", "b"], [1.0, 1.0], noise_stddev=4.0).erased.tolist() == [
            True,
            False,
        ]
