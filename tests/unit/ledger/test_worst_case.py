"""The worst case bounds what every user has spent, and does not depend on who they are."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from accounting import Gaussian, Laplace, PureDP
from streams import Turnstile
from streams.ledger.ledger import Ledger
from streams.ledger.validation import is_keyed_hash
from streams.records import Decision, Rejected
from streams.sdk.memory_connection import MemoryConnection
from tests.spending import spent_units
from tests.unit.ledger.ledgers import Log
from tests.unit.ledger.random_logs import RandomLog

USERS = list(range(8))
RENYI: dict[str, Any] = {"measure": "renyi", "orders": [1.5, 32.0], "budget": [0.7, 6.0]}
POLICIES: dict[str, tuple[dict[str, Any], Any]] = {
    "zcdp": ({"measure": "zcdp", "budget": 0.5}, Gaussian(4.0)),
    "clip": ({"measure": "zcdp", "budget": 0.5, "on_exhaustion": "clip"}, Gaussian(4.0)),
    "gdp": ({"measure": "gdp", "budget": 1.0}, Gaussian(4.0)),
    "pure": ({"measure": "pure-dp", "budget": 1.0}, PureDP()),
    "renyi": (RENYI, Laplace(5.0)),
    "steps": ({"measure": "steps", "noise_multiplier": 4.0, "budget": 9}, Gaussian(4.0)),
}


@pytest.fixture
def service() -> MemoryConnection:
    return MemoryConnection(2, 1.0)


def worst(service: MemoryConnection, name: str = "d") -> list[list[int] | None]:
    """Return the worst case of a dataset in each partition."""
    return [ledger.summary().datasets[name].worst_case for ledger in service.ledgers]


def spent(service: MemoryConnection, name: str = "d") -> dict[Any, list[int]]:
    """Return the spending of all users, one number for each order."""
    found: dict[Any, list[int]] = {}
    for ledger in service.ledgers:
        users, units = spent_units(ledger.state.datasets[name])
        found |= zip(users, units.reshape(len(users), -1).tolist(), strict=True)
    return found


def check_bounds(ledger: Ledger) -> int:
    """Check the worst case of every dataset; return the number of compared users."""
    compared = 0
    for name, accounts in ledger.state.datasets.items():
        users, units = spent_units(accounts)
        slots = np.arange(len(users))
        at_most = np.array(ledger.state.worst_cases.of(accounts.policy))
        order = accounts.account.order_of(slots)
        bounds = at_most if order is None else at_most[order, np.newaxis]
        lower = units.reshape(len(users), -1) <= bounds if len(users) else np.ones((0, 1), bool)
        for user, is_lower in zip(users, lower.all(axis=1).tolist(), strict=True):
            assert is_lower or is_keyed_hash(user), (name, user)
            compared += not is_keyed_hash(user)
    return compared


@pytest.mark.parametrize("seed", range(2))
def test_no_user_of_a_random_log_has_spent_more_than_the_worst_case(seed: int) -> None:
    log = RandomLog(seed, partitions=2, partition=1, collects=seed == 0).grow(250)
    assert check_bounds(log.ledger) > 20


@pytest.mark.parametrize(("policy", "mechanism"), POLICIES.values(), ids=POLICIES)
def test_user_at_the_bound_of_every_step_spends_the_worst_case(
    service: MemoryConnection, policy: dict[str, Any], mechanism: Any
) -> None:
    turnstile = Turnstile(connection=service)
    turnstile.create_dataset("person", **{**policy, "on_exhaustion": "halt"})
    turnstile.create_dataset("d", parents="person", **policy)
    run = turnstile.run("d", "r")
    for _ in range(3):
        norms = [0.25, *np.linspace(0.0, 0.2, 7)]
        decision = run.charge(USERS, norms, mechanism=mechanism, clip_norm=0.25)
        assert decision.admitted.all()
        for name in ("d", "person"):
            assert worst(service, name) == [spent(service, name)[0]] * 2


def test_worst_case_of_a_roster_is_its_highest_level_in_every_step(
    service: MemoryConnection,
) -> None:
    turnstile = Turnstile(connection=service)
    turnstile.create_dataset("d", measure="renyi", orders=[8.0, 16.0], budget=[4.0, 8.0])
    roster = turnstile.run("d", "r").enrol(USERS, clip_norm=1.0, levels=4)
    for _ in range(4):
        roster.charge(noise_stddev=2.0, sampling_rate=0.1)
        roster.set_norms([0.0] * 4, USERS[4:])
    assert worst(service) == [spent(service)[0]] * 2
    assert spent(service)[7] < spent(service)[0]


def test_worst_case_ends_at_the_budget(service: MemoryConnection) -> None:
    turnstile = Turnstile(connection=service)
    policy = turnstile.create_dataset("d", measure="zcdp", budget=0.5)
    run = turnstile.run("d", "r")
    for _ in range(3):
        run.charge([], [], noise_stddev=4.0, clip_norm=3.0)  # 9 / 32 each
    assert worst(service) == [policy.budget] * 2


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "pure-dp"])
@pytest.mark.parametrize("clip_norm", [None, sys.float_info.min, 1.0, 300.0])
@pytest.mark.parametrize("policy", [row[0] for row in POLICIES.values()], ids=POLICIES)
def test_worst_case_of_any_step_is_the_same_where_it_has_no_users(
    policy: dict[str, Any], mechanism: str, clip_norm: float | None
) -> None:
    fields = {"step": 0, "mechanism": mechanism, "clip_norm": clip_norm}
    logs = [Log(), Log()]
    for log, users in zip(logs, ([], [1]), strict=True):
        shape = {"sampling_rate": 1.0} if policy["measure"] == "steps" else {}
        log.create(**{**policy, **shape})
        log.open()
        answer = log.charge(users=users, norms=[0.0] * len(users), **fields)
        assert isinstance(answer, Decision if not users else Decision | Rejected)
    empty, full = (log.ledger.summary().datasets["d"].worst_case for log in logs)
    assert empty == full
