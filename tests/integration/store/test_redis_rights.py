"""The rights of each role in Redis; no password is shown."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
import redis

from streams.config import Config
from streams.local.secure import SecureRedis
from streams.store.layout import key_of
from streams.store.redis_store import RedisStore
from streams.store.rights import rights
from streams.store.store_port import StoreFailure, StoreUnavailable
from tests.waiting import eventually

PREFIX = "mine."
PASSWORDS = {
    "worker": "hunter2",
    "operator": "hunter3",
    "auditor": "hunter4",
    "trimmer": "hunter5",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureRedis]:
    users = {
        "worker": (PASSWORDS["worker"], rights("decide", PREFIX)),
        "operator": (PASSWORDS["operator"], rights("look", PREFIX)),
        "auditor": (PASSWORDS["auditor"], rights("audit", PREFIX)),
        "trimmer": (PASSWORDS["trimmer"], rights("rewrite", PREFIX)),
    }
    secrets = tmp_path_factory.mktemp("secrets")
    with SecureRedis(tmp_path_factory.mktemp("redis"), secrets, users) as running:
        yield running


def connected(server: SecureRedis, user: str) -> redis.Redis:
    return redis.Redis.from_url(server.url, username=user, password=PASSWORDS[user])


MINE, OTHER = key_of(PREFIX, 0, "meta"), key_of("other.", 0, "meta")
READ_OTHER = "return redis.call('HGET', KEYS[1], 'a')"
REFUSED: list[tuple[str, tuple[str | int, ...]]] = [
    ("worker", ("FLUSHALL",)),
    ("worker", ("KEYS", "*")),
    ("worker", ("CONFIG", "SET", "maxmemory", "1")),
    ("worker", ("ACL", "LIST")),
    ("worker", ("SHUTDOWN",)),
    ("worker", ("SCRIPT", "FLUSH")),
    ("worker", ("REPLICAOF", "NO", "ONE")),
    ("worker", ("MONITOR",)),
    ("worker", ("RENAME", MINE, OTHER)),
    ("worker", ("HGET", OTHER, "a")),
    ("worker", ("HSET", OTHER, "a", "b")),
    ("worker", ("EVAL", READ_OTHER, 1, OTHER)),
    ("worker", ("EVAL", "return redis.call('FLUSHALL')", 0)),
    ("worker", ("EVAL", f"return redis.call('HGET', '{OTHER}', 'a')", 0)),
    ("operator", ("HSET", MINE, "a", "b")),
    ("operator", ("EVAL", READ_OTHER, 1, MINE)),
    ("operator", ("HGETALL", key_of(PREFIX, 0, "pages"))),
    ("operator", ("HGETALL", key_of(PREFIX, 0, "outbox"))),
    ("auditor", ("HSET", MINE, "a", "b")),
    ("auditor", ("LRANGE", OTHER, 0, -1)),
    ("operator", ("HGET", OTHER, "a")),
    *((user, ("BGREWRITEAOF",)) for user in ("worker", "operator", "auditor")),
    ("trimmer", ("HGETALL", MINE)),
    ("trimmer", ("EVAL", READ_OTHER, 1, MINE)),
    ("trimmer", ("CONFIG", "GET", "dir")),
]


@pytest.mark.parametrize(("user", "command"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_role_has_only_the_rights_that_it_needs(
    server: SecureRedis, user: str, command: tuple[str | int, ...]
) -> None:
    with connected(server, user) as client, pytest.raises(redis.ResponseError) as caught:
        client.execute_command(*command)
    assert re.search(r"permission|not allowed|can't (access|run this command)", str(caught.value))


def test_a_worker_and_an_operator_have_the_rights_that_they_need(server: SecureRedis) -> None:
    """The worker's rights are tested by tests/conformance/store, which uses them in all
    scenarios.
    """
    with connected(server, "worker") as worker, connected(server, "operator") as operator:
        worker.hset(MINE, "a", "b")
        assert operator.hgetall(MINE) == {b"a": b"b"}
        assert worker.eval(READ_OTHER, 1, MINE) == b"b"
        worker.hset(key_of(PREFIX, 0, "pages"), "p", "state")
    with connected(server, "auditor") as auditor:
        assert auditor.hgetall(key_of(PREFIX, 0, "pages")) == {b"p": b"state"}


def test_a_trimmer_can_have_redis_rewrite_its_append_only_file(server: SecureRedis) -> None:
    with connected(server, "trimmer") as trimmer:
        assert trimmer.info("persistence")["aof_enabled"] == 1
        trimmer.bgrewriteaof()
        eventually(lambda: not trimmer.info("persistence")["aof_rewrite_in_progress"])
        assert trimmer.info("persistence")["aof_last_bgrewrite_status"] == "ok"


def test_redis_answers_nothing_without_a_password(server: SecureRedis) -> None:
    with (
        redis.Redis.from_url(server.url) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


@pytest.mark.parametrize(
    ("user", "password"), [("worker", "hunter9"), ("nobody", "hunter9"), ("", "hunter9")]
)
def test_a_wrong_password_is_reported_and_not_shown(
    server: SecureRedis, user: str, password: str
) -> None:
    config = Config(redis=server.url, redis_username=user, redis_password=password)

    async def connect() -> None:
        async with RedisStore.of(config) as store:
            await store.connect()

    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(connect())
    assert caught.value.reason is StoreFailure.LOGIN
    assert "redis_password" in str(caught.value)
    assert password not in str(caught.value)
