from collections.abc import Callable, Iterator

import pytest
import redis

from streams.local import RedisServer
from tests.conformance.partitions import Scenario, on_fresh_keys


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory) -> Iterator[str]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def store_of(redis_url) -> Callable[[Scenario], None]:
    """Run a scenario against a fresh set of keys."""
    return lambda scenario: on_fresh_keys(redis_url, scenario)


@pytest.fixture
def client(redis_url) -> Iterator[redis.Redis]:
    """Another client of the same Redis, as an operator or an accident would be."""
    with redis.Redis.from_url(redis_url) as connected:
        yield connected
