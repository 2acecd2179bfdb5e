"""A Redis that does not answer is named, and what is said of it never holds a password."""

import asyncio

import pytest

from streams.store.redis_store import RedisStore
from streams.store.store_port import StoreUnavailable


def test_a_redis_that_does_not_answer_is_unavailable():
    async def scenario():
        async with RedisStore("redis://127.0.0.1:1/0", "t.") as store:
            await store.glance(3)

    with pytest.raises(StoreUnavailable):
        asyncio.run(scenario())


SHOWN = {
    "redis://localhost:6379/0": "redis://localhost:6379/0",
    "redis://:hunter2@localhost:6379/1": "redis://***@localhost:6379/1",
    "rediss://user:hunter2@redis.example": "rediss://***@redis.example",
    "redis://localhost:6379/0?password=hunter2": "redis://localhost:6379/0?password=***",
    "unix://user@/run/redis.sock?password=hunter2": "unix://***@/run/redis.sock?password=***",
    "redis+cluster://user:hunter2@a:1,b:2": "redis+cluster://***@a:1,b:2",
}
UNUSABLE = [
    "redis://:hunter2/more@localhost:6379/0",
    "redis://:hunter2#more@localhost",
    "redis://user:123?hunter2@localhost",
    "redis://user:12/hunter2@localhost:1",
    "hunter2",
    "redis+cluster://:hunter2/more@a:1,b:2",
    "redis+cluster://:hunter2#more@a:1",
    "redis+sentinel://a:1/mine@hunter2",
    "redis+sentinel://:hunter2@a:1",
    "redis+cluster://[hunter2@a:1",
    "redis://[hunter2@localhost",
]


@pytest.mark.parametrize("url", SHOWN)
def test_an_address_is_shown_without_its_password(url):
    assert RedisStore(url, "t.").address == SHOWN[url]


@pytest.mark.parametrize("url", [*SHOWN, *UNUSABLE])
def test_no_error_quotes_a_password(url):
    async def scenario():
        async with RedisStore(url.replace("6379", "1"), "t.") as store:
            await store.connect()

    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(scenario())
    told = [str(caught.value)]
    error: BaseException | None = caught.value
    while error := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        told.append(str(error))
    assert not any(part in " ".join(told) for part in ("hunter2", "more", "123"))
