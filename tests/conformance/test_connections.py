"""Connections are opened once, and what is said of them never holds a password."""

import asyncio
import re

import pytest
import redis

from streams.local import RedisServer
from streams.store.port import StoreUnavailable
from streams.store.redis_store import CONNECTIONS, RedisStore, without_password
from tests.conformance.partitions import Owner, P, commit


@pytest.mark.process
def test_a_connection_that_was_lost_is_never_opened_again(tmp_path):
    """What answers at the address may be another Redis by then, or an older one."""

    async def scenario(server):
        async with RedisStore(server.url, "t.") as store:
            await store.connect()
            holding = await Owner(store, "a").claim()
            server.kill()
            with pytest.raises(StoreUnavailable):
                await commit(holding, 0, 1)
            server.start()
            for _ in range(2 * CONNECTIONS):
                with pytest.raises(StoreUnavailable, match="lost"):
                    await commit(holding, 0, 1)
                with pytest.raises(StoreUnavailable, match="lost"):
                    await store.load(P)

    with RedisServer(tmp_path) as server:
        asyncio.run(scenario(server))


@pytest.mark.process
def test_connections_that_were_lost_while_nothing_was_asked_are_not_opened_again(tmp_path):
    async def scenario(server):
        async with RedisStore(server.url, "t.") as store:
            await store.connect()
            server.stop()
            server.start()
            for _ in range(2 * CONNECTIONS):
                with pytest.raises(StoreUnavailable):
                    await store.owner(P)

    with RedisServer(tmp_path) as server:
        asyncio.run(scenario(server))


def test_all_connections_are_there_before_the_first_claim(store_of, client):
    async def scenario(store):
        opened = client.info("stats")["total_connections_received"]
        await asyncio.gather(*(store.owner(partition) for partition in range(5 * CONNECTIONS)))
        assert client.info("stats")["total_connections_received"] == opened

    store_of(scenario)


def test_a_redis_that_does_not_answer_is_an_error_that_says_so():
    async def scenario():
        async with RedisStore("redis://127.0.0.1:1/0", "t.") as store:
            await store.owner(P)

    with pytest.raises(StoreUnavailable, match=r"partition 3: .*127\.0\.0\.1:1"):
        asyncio.run(scenario())


def checked(url: str) -> str | None:
    async def scenario():
        async with RedisStore(url, "t.") as store:
            return await store.check()

    return asyncio.run(scenario())


EVICTING = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
KEEPING = {"maxmemory": "100mb", "maxmemory-policy": "noeviction"}


@pytest.mark.process
@pytest.mark.parametrize("forbidden", ["", "-config", "-@admin -@dangerous +info"])
def test_a_redis_that_may_forget_is_refused(tmp_path, forbidden):
    with RedisServer(tmp_path, settings=EVICTING) as server:
        with_rights = restricted(server, forbidden) if forbidden else server.url
        with pytest.raises(StoreUnavailable, match="noeviction"):
            checked(with_rights)


@pytest.mark.process
@pytest.mark.parametrize("forbidden", ["-config", "-config -info"])
def test_a_redis_that_tells_little_is_not_called_silent(tmp_path, forbidden):
    with RedisServer(tmp_path, settings=KEEPING) as server:
        unknown = checked(restricted(server, forbidden))
    assert (unknown is None) is ("info" not in forbidden)
    assert unknown is None or "maxmemory-policy" in unknown


def restricted(server: RedisServer, rights: str) -> str:
    """The address of a user without some commands, as managed services have it."""
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "turnstile", "on", ">secret", "~*", "+@all")
        client.execute_command("ACL", "SETUSER", "turnstile", *rights.split())
    return server.url.replace("redis://", "redis://turnstile:secret@")


URLS = [
    # what is given, what may be shown
    ("redis://localhost:6379/0", "redis://localhost:6379/0"),
    ("redis://:hunter2@localhost:6379/1", "redis://localhost:6379/1"),
    ("rediss://user:hunter2@redis.example", "rediss://redis.example"),
    ("redis://localhost:6379/0?password=hunter2", "redis://localhost:6379/0"),
    ("unix://user@/run/redis.sock?password=hunter2", "unix:///run/redis.sock"),
    ("redis://:hunter2/more@localhost:6379/0", "the address given"),
    ("redis://:hunter2#more@localhost", "the address given"),
    ("redis://user:123?hunter2@localhost", "the address given"),
    ("redis://user:12/hunter2@localhost:1", "the address given"),
    ("hunter2", "the address given"),
    ("redis://[hunter2@localhost", "the address given"),
]


@pytest.mark.parametrize(("url", "shown"), URLS)
def test_an_address_is_shown_without_anything_that_may_be_a_password(url, shown):
    assert without_password(url) == shown
    assert not re.search("hunter2|more|123", shown)


@pytest.mark.parametrize(("url", "_"), URLS)
def test_no_error_quotes_a_password(url, _):
    async def scenario():
        async with RedisStore(url.replace("6379", "1"), "t.") as store:
            await store.connect()

    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(scenario())
    told = [str(caught.value)]
    error: BaseException | None = caught.value
    while error := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        told.append(str(error))
    assert "hunter2" not in " ".join(told)
