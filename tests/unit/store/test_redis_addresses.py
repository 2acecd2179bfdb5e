"""A Redis that does not answer is named, and what is said of it never holds a password."""

import asyncio
import re

import pytest

from streams.redis_address import without_password
from streams.store.redis_store import RedisStore
from streams.store.store_port import StoreUnavailable


def test_a_redis_that_does_not_answer_is_unavailable():
    async def scenario():
        async with RedisStore("redis://127.0.0.1:1/0", "t.") as store:
            await store.glance(3)

    with pytest.raises(StoreUnavailable):
        asyncio.run(scenario())


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
    ("redis+cluster://user:hunter2@a:1,b:2", "redis+cluster://a:1,b:2"),
    ("rediss+sentinel://:hunter2@a:1,b/mine/3?password=hunter2", "rediss+sentinel://a:1,b/mine"),
    ("redis+cluster://:hunter2/more@a:1,b:2", "the address given"),
    ("redis+cluster://:hunter2#more@a:1", "the address given"),
    ("redis+sentinel://a:1/mine@hunter2", "the address given"),
    ("redis+sentinel://:hunter2@a:1", "the address given"),
    ("redis+cluster://[hunter2@a:1", "the address given"),
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
