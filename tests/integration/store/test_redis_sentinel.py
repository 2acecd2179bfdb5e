"""Sentinels that name no master: the error names each one, and no password."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.config import Config
from streams.local import RedisServer
from streams.store.redis_store import RedisStore
from streams.store.store_port import StoreFailure, StoreUnavailable
from tests.servers.redis_failover import SERVICE, Sentinel

PASSWORD, WRONG = "hunter2", "hunter3"


class WithLogin(Sentinel):
    """A Sentinel that requires a password."""

    def __init__(self, directory: Path, watched: int) -> None:
        super().__init__(directory, watched, f"requirepass {PASSWORD}")
        self._login = f"AUTH {PASSWORD}\r\n".encode()


@pytest.fixture(scope="module")
def sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sentinel]:
    with (
        RedisServer(tmp_path_factory.mktemp("redis")) as master,
        WithLogin(tmp_path_factory.mktemp("sentinel"), master.port) as running,
    ):
        yield running
        running.kill()
        master.kill()


async def connect(config: Config) -> None:
    async with RedisStore.of(config) as store:
        await store.connect()


def test_the_master_is_found_by_the_first_sentinel_that_knows_it(sentinel: Sentinel) -> None:
    url = f"redis+sentinel://127.0.0.1:1,{sentinel.address}/{SERVICE}"
    asyncio.run(connect(Config(redis=url, redis_sentinel_password=PASSWORD)))


@pytest.mark.parametrize(
    ("service", "password", "reason", "named"),
    [
        (SERVICE, WRONG, StoreFailure.LOGIN, "redis_sentinel_username"),
        (SERVICE, "", StoreFailure.LOGIN, "redis_sentinel_username"),
        ("another", PASSWORD, StoreFailure.NO_MASTER, "'another'"),
    ],
)
def test_the_error_names_every_sentinel_and_its_reason(
    sentinel: Sentinel, service: str, password: str, reason: StoreFailure, named: str
) -> None:
    url = f"redis+sentinel://127.0.0.1:1,{sentinel.address}/{service}"
    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(connect(Config(redis=url, redis_sentinel_password=password)))
    assert caught.value.reason is reason
    said = str(caught.value)
    assert named in said
    assert "127.0.0.1:1" in said
    assert sentinel.address in said
    assert PASSWORD not in said
    assert WRONG not in said
