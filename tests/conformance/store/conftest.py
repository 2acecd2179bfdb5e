"""Every scenario runs on every store. Redis is started for the tests that are marked `process`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
import redis

from streams.local import RedisServer
from streams.store.memory_store import MemoryStore
from streams.store.redis_store import RedisStore
from streams.store.rights import rights
from tests.conformance.store.bench import Bench, MemoryHand, RedisHand, Scenario

STORES = ("memory", pytest.param("redis", marks=pytest.mark.process))


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture(params=STORES)
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Run a scenario on a store in which nothing is kept yet."""
    if request.param == "memory":
        return on_memory
    url = request.getfixturevalue("redis_url")
    return lambda scenario: on_redis(url, scenario)


def on_memory(scenario: Scenario) -> None:
    store = MemoryStore(clock=lambda: 1_800_000_000.5)

    async def begun() -> None:
        await scenario(Bench(store, MemoryHand(store)))

    asyncio.run(begun())


def on_redis(url: str, scenario: Scenario) -> None:
    """As a user who may do what workers have to, with the keys of one prefix, and nothing else."""
    prefix = f"t{uuid4().hex}."

    async def connected(client: redis.Redis) -> None:
        async with RedisStore(url, prefix, username=prefix, password="hunter2") as store:
            await store.connect()
            await scenario(Bench(store, RedisHand(client, prefix)))

    with redis.Redis.from_url(url) as client:
        words = ("on", ">hunter2", *rights("decide", prefix))
        client.execute_command("ACL", "SETUSER", prefix, *words)
        asyncio.run(connected(client))
