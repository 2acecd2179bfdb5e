"""Connections are opened once, and only to a Redis that never evicts keys."""

import asyncio

import pytest
import redis

from streams.local import RedisServer
from streams.store.redis_nodes import CONNECTIONS
from streams.store.redis_store import RedisStore
from streams.store.store_port import StoreUnavailable, Verdict
from tests.conformance.store.bench import Owner, P, commit


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as running:
        yield running


@pytest.fixture
def client(server):
    with redis.Redis.from_url(server.url) as connected:
        yield connected


async def test_a_lost_connection_is_never_reopened(server):
    """Another or an older Redis may answer at the same address later."""
    async with RedisStore(server.url, "t.") as store:
        await store.connect()
        writer = await Owner(store, "a").acquire()
        server.kill()
        with pytest.raises(StoreUnavailable):
            await commit(writer, 0, 1)
        server.start()
        for _ in range(2 * CONNECTIONS):
            with pytest.raises(StoreUnavailable):
                await commit(writer, 0, 1)
            with pytest.raises(StoreUnavailable):
                await store.load(P)


async def test_connections_lost_while_idle_are_not_reopened(server):
    async with RedisStore(server.url, "t.") as store:
        await store.connect()
        server.stop()
        server.start()
        for _ in range(2 * CONNECTIONS):
            with pytest.raises(StoreUnavailable):
                await store.glance(P)


async def test_all_connections_are_open_before_the_first_acquisition(server, client):
    async with RedisStore(server.url, "t.") as store:
        await store.connect()
        opened = client.info("stats")["total_connections_received"]
        await asyncio.gather(*(store.glance(partition) for partition in range(5 * CONNECTIONS)))
        assert client.info("stats")["total_connections_received"] == opened


async def test_concurrent_writes_share_a_round_trip_and_have_a_verdict_each(server, client):
    """A rejected write to one partition does not affect those to others."""
    async with RedisStore(server.url, "t.") as store:
        await store.connect()
        acquired = [await Owner(store, "a", partition).acquire() for partition in range(3)]
        other = await Owner(store, "b", 1).acquire()
        assert await commit(acquired[0], 0, 1) is Verdict.OK  # Redis knows the script now
        asked = client.info("stats")["total_reads_processed"]
        verdicts = await asyncio.gather(
            commit(acquired[0], 1, 2), commit(acquired[1], 0, 1), commit(acquired[2], 0, 1)
        )
        assert client.info("stats")["total_reads_processed"] == asked + 2  # with this INFO
        assert verdicts == [Verdict.OK, Verdict.FENCED, Verdict.OK]
        assert await commit(other, 0, 1) is Verdict.OK


async def test_scripts_are_loaded_again_after_redis_lost_them(server, client):
    async with RedisStore(server.url, "t.") as store:
        await store.connect()
        writer = await Owner(store, "a").acquire()
        for first in range(2):
            client.script_flush()
            assert await commit(writer, first, first + 1) is Verdict.OK


def checked(url: str) -> str | None:
    async def scenario():
        async with RedisStore(url, "t.") as store:
            return await store.check()

    return asyncio.run(scenario())


EVICTING = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
KEEPING = {"maxmemory": "100mb", "maxmemory-policy": "noeviction"}


@pytest.mark.process
@pytest.mark.parametrize("forbidden", ["", "-config", "-@admin -@dangerous +info"])
def test_a_redis_that_may_evict_keys_is_rejected(tmp_path, forbidden):
    with RedisServer(tmp_path, settings=EVICTING) as server:
        with_rights = restricted(server, forbidden) if forbidden else server.url
        with pytest.raises(StoreUnavailable):
            checked(with_rights)


@pytest.mark.process
@pytest.mark.parametrize("forbidden", ["-config", "-config -info"])
def test_unknown_redis_settings_are_reported_only_without_info(tmp_path, forbidden):
    with RedisServer(tmp_path, settings=KEEPING) as server:
        unknown = checked(restricted(server, forbidden))
    assert (unknown is None) is ("info" not in forbidden)
    assert unknown is None or "maxmemory-policy" in unknown


def restricted(server: RedisServer, rights: str) -> str:
    """Return the URL of a user without some commands, as in managed services."""
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "turnstile", "on", ">secret", "~*", "+@all")
        client.execute_command("ACL", "SETUSER", "turnstile", *rights.split())
    return server.url.replace("redis://", "redis://turnstile:secret@")
