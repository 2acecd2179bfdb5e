"""Every scenario runs on every store. Redis is started for the tests that are marked `process`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
import redis

from streams.local import LocalStack
from streams.store.redis_store import RedisStore
from streams.store.rights import rights
from tests.conformance.store.bench import Bench, Client, MemoryHand, RedisHand, Scenario, client_of
from tests.doubles.memory_store import MemoryStore
from tests.servers.redis_cluster import RedisCluster

STORES = (
    "memory",
    pytest.param("redis", marks=pytest.mark.process),
    pytest.param("cluster", marks=pytest.mark.process),
)


@pytest.fixture(scope="session")
def redis_url(servers: LocalStack) -> str:
    return servers.redis


@pytest.fixture(scope="session")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Three masters: the partitions of a scenario are on different ones."""
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"), 3)
    cluster.start()
    try:
        yield cluster.url
    finally:
        cluster.kill()  # nobody needs it again


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Return what runs a test on a store in which nothing is kept yet."""
    if request.param == "memory":
        return on_memory
    url = request.getfixturevalue(f"{request.param}_url")
    return lambda scenario: on_redis(url, scenario)


def on_memory(scenario: Scenario) -> None:
    store = MemoryStore(clock=lambda: 1_800_000_000.5)

    async def begun() -> None:
        await scenario(Bench(store, MemoryHand(store)))

    asyncio.run(begun())


def on_redis(url: str, scenario: Scenario) -> None:
    """As a user who may do what workers have to, with the keys of one prefix, and nothing else."""
    prefix = f"t{uuid4().hex}."

    async def connected(client: Client) -> None:
        async with RedisStore(url, prefix, username=prefix, password="hunter2") as store:
            await store.connect()
            await scenario(Bench(store, RedisHand(client, prefix)))

    with client_of(url) as client:
        words = ("on", ">hunter2", *rights("decide", prefix))
        everywhere = {"target_nodes": "all"} if isinstance(client, redis.RedisCluster) else {}
        client.execute_command("ACL SETUSER", prefix, *words, **everywhere)
        asyncio.run(connected(client))
