"""State that only a real Redis can hold: keys of another type, and bytes that are not text."""

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest
import redis

from streams.local import RedisServer
from streams.store.layout import Damaged, key_of
from streams.store.redis_store import RedisStore
from streams.store.store_port import Acquired, Verdict
from streams.store.stored_state import StoredState

P = 3
TOPIC = b"topic of 16 byte"


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[redis.Redis]:
    directory = tmp_path_factory.mktemp("redis")
    with RedisServer(directory) as server, redis.Redis.from_url(server.url) as connected:
        yield connected


@pytest.fixture
def prefix() -> str:
    return f"t{uuid4().hex}."


def acquire(client: redis.Redis, prefix: str) -> Acquired:
    async def acquired() -> Acquired:
        async with RedisStore(url_of(client), prefix) as store:
            return await store.acquire(P, "a", TOPIC, 4)

    return asyncio.run(acquired())


def load(client: redis.Redis, prefix: str) -> StoredState | None:
    async def loaded() -> StoredState | None:
        async with RedisStore(url_of(client), prefix) as store:
            return await store.load(P)

    return asyncio.run(loaded())


def url_of(client: redis.Redis) -> str:
    return "redis://{host}:{port}/{db}".format(**client.get_connection_kwargs())


@pytest.mark.parametrize("name", ["meta", "changes", "pages", "outbox"])
def test_a_key_of_another_type_is_reported_as_foreign(client, prefix, name):
    acquire(client, prefix)
    key = key_of(prefix, P, name)
    client.delete(key)
    client.set(key, "what somebody else keeps")
    assert acquire(client, prefix).verdict is Verdict.FOREIGN


NO_TEXT = b"\xff\xfe"


@pytest.mark.parametrize("name", ["topic", "owner", "next", "head", NO_TEXT])
def test_a_head_that_is_not_text_is_reported_as_damage(client, prefix, name):
    acquire(client, prefix)
    client.hset(key_of(prefix, P, "meta"), name, NO_TEXT)
    client.hset(key_of(prefix, P, "meta"), "digest", NO_TEXT)
    with pytest.raises(Damaged):
        load(client, prefix)
    assert acquire(client, prefix).before["digest"] == r"\xff\xfe"


@pytest.mark.parametrize("name", ["pages", "outbox"])
def test_an_entry_with_a_name_that_is_not_text_is_reported_as_damage(client, prefix, name):
    acquire(client, prefix)
    client.hset(key_of(prefix, P, name), NO_TEXT, b"value")
    client.hset(key_of(prefix, P, "meta"), name, 1)
    with pytest.raises(Damaged):
        load(client, prefix)
