"""`turnstile balance` and the documented reader show the state in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from streams.failures import Exit
from tests.integration.command import Done, turnstile
from tests.integration.service import Service
from tests.readme import example
from tests.waiting import eventually

USERS = ["ü", *map(str, range(40)), 7, 8, 9, 10]


@pytest.fixture
def balance(shared: Service) -> Any:
    def shown(dataset: str, user: str) -> Done:
        # No broker is at this address: the command does not ask one.
        environment = {"TURNSTILE_KAFKA": "localhost:1", "TURNSTILE_REDIS": shared.redis}
        options = ("--user", user, "--prefix", shared.prefix, "--json")
        return turnstile("balance", dataset, *options, environment=environment)

    return shown


@pytest.fixture
def client(shared: Service) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(shared.redis) as connected:
        yield connected


@pytest.fixture
def read_spent() -> Callable[..., Any]:
    """Return the reader of ``examples``, which does not import the package."""
    reader: Callable[..., Any] = example("read_redis").read_spent
    return reader


@pytest.mark.parametrize(
    "terms", [{"measure": "gdp"}, {"orders": [8.0, 16.0]}, {"measure": "renyi"}], ids=str
)
def test_the_documented_reader_finds_every_balance_in_pages_and_deltas(
    shared: Service,
    client: redis.Redis,
    read_spent: Callable[..., Any],
    name: str,
    terms: dict[str, Any],
) -> None:
    terms = {"measure": "renyi", "epsilon": 4.0, "delta": 1e-6, "user_ids": "mixed", **terms}
    shared.client.create_dataset(name, **terms)
    shared.client.run(name, "before").charge(USERS, [0.5] * len(USERS), noise_stddev=4.0)
    shared.client.close_run(name, "before")
    shared.client.erase(USERS[1], name)  # which merges the deltas of its partition at once
    home_of_pages: list[int] = eventually(
        lambda: [
            partition
            for partition in range(shared.partitions)
            if client.hexists(shared.key(partition, "pages"), f"page:{name}/0")
            and not client.exists(shared.key(partition, "changes"))
        ]
    )
    users = ["ü", "new", *USERS[2:]]
    shared.client.run(name, "after").charge(users, [0.25] * len(users), noise_stddev=4.0)
    found = {}
    for partition, ledger in shared.ledgers().items():
        as_of, spent = read_spent(client, partition, name, shared.prefix)
        assert as_of == ledger.chain.last + 1
        found |= {user: tuple(units) for user, units in spent.items()}
    assert all(client.exists(shared.key(partition, "changes")) for partition in home_of_pages)
    expected = {user: row[0] for user, row in shared.state(name).items()}
    assert len(expected) == len(USERS) + 1
    assert found == expected


def test_balance_shows_every_budget_of_a_charge_as_of_an_offset(
    shared: Service, balance: Any, name: str
) -> None:
    inner = f"{name}-in"
    shared.client.create_dataset(name, budget=2.0)
    shared.client.create_dataset(inner, budget=1.0, parents=name)
    shared.client.run(inner, "r").charge([5, 6], [3.0, 1.0], noise_stddev=4.0)
    shared.settle()
    for user, spent in ((5, 0.75), (6, 0.25)):
        done = balance(inner, str(user))
        assert done.code == Exit.OK, done.said
        assert "mu adds in squares" in done.said
        assert [one["dataset"] for one in done.lines] == [inner, name]
        for one, budget in zip(done.lines, (1.0, 2.0), strict=True):
            assert one["user"] == user
            assert one["spent"] == [pytest.approx(spent)]
            assert one["left"] == [pytest.approx((budget**2 - spent**2) ** 0.5)]
            assert one["offset"] == shared.log.norms_ends()[one["partition"]]


def test_balance_includes_what_a_roster_has_accrued(
    shared: Service,
    balance: Any,
    client: redis.Redis,
    read_spent: Callable[..., Any],
    name: str,
) -> None:
    shared.client.create_dataset(name, budget=2.0)
    roster = shared.client.run(name, "r").enrol([5], clip_norm=1.0)
    for _ in range(4):
        roster.charge(noise_stddev=4.0)
    shared.settle()
    (one,) = balance(name, "5").lines
    assert one["spent"] == [pytest.approx(0.5)]
    with pytest.raises(AssertionError, match="turnstile balance"):
        read_spent(client, one["partition"], name, shared.prefix)


@pytest.mark.parametrize(("field", "value"), [("layout", "3"), ("head", "00" * 32)])
def test_balance_is_not_shown_of_state_that_is_not_whole(
    shared: Service, balance: Any, client: redis.Redis, name: str, field: str, value: str
) -> None:
    other = f"copy-{name}."
    meta = client.hgetall(shared.key(0, "meta"))
    client.hset(f"{other}{{norms-0}}:meta", mapping={**meta, field.encode(): value})
    options = ("--user", "5", "--prefix", other)
    done = turnstile("balance", "d", *options, environment={"TURNSTILE_REDIS": shared.redis})
    assert (done.code, done.out) == (Exit.UNAVAILABLE, "")
