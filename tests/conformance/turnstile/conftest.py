"""A service in memory, in a file, and over Kafka: to a trainer they are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streams import (
    Turnstile,
)
from streams.config import Config
from streams.local import LocalStack
from streams.sdk.budget_file import create_file
from streams.sdk.file_connection import FileConnection
from streams.sdk.memory_connection import MemoryConnection
from tests.conformance.turnstile import PARTITIONS
from tests.conformance.turnstile.http_client import HttpTurnstile
from tests.gateways import gateway_to
from tests.keys import private_key
from tests.waiting import HANGS_AFTER


@pytest.fixture(scope="session")
def stack(servers: LocalStack) -> Iterator[LocalStack]:
    prefix, where = f"t{uuid4().hex[:8]}.", {"kafka": servers.kafka, "redis": servers.redis}
    with LocalStack(workers=1, partitions=PARTITIONS, prefix=prefix, **where) as running:
        yield running


@pytest.fixture
def over_http(tmp_path: Path) -> Iterator[Callable[..., HttpTurnstile]]:
    """Return a function that opens a client, with a key or without, of one gateway."""
    path = str(tmp_path / "budgets.db")
    create_file(path, PARTITIONS)
    connection, config = FileConnection(path, HANGS_AFTER), Config(budgets=path)
    with gateway_to(connection, config=config) as gateway:

        def client(name: str | None = None) -> HttpTurnstile:
            key = None if name is None else private_key(name)
            return HttpTurnstile(gateway.url, Turnstile.open(path, request_key=key), key)

        yield client


@pytest.fixture(params=["memory", "file", "http", pytest.param("kafka", marks=pytest.mark.process)])
def turnstile(request: pytest.FixtureRequest) -> Iterator[Turnstile]:
    opened: Any
    if request.param == "memory":
        opened = Turnstile.in_memory(partitions=PARTITIONS)
    elif request.param == "file":
        path = request.getfixturevalue("tmp_path") / "budgets.db"
        opened = Turnstile.open(path, partitions=PARTITIONS)
    elif request.param == "http":
        opened = request.getfixturevalue("over_http")()
    else:
        running = request.getfixturevalue("stack")
        opened = Turnstile(running.kafka, prefix=running.prefix, timeout=HANGS_AFTER)
    with opened:
        yield opened


@pytest.fixture(params=["memory", "file", "http", pytest.param("kafka", marks=pytest.mark.process)])
def signers(request: pytest.FixtureRequest) -> Iterator[Callable[[str | None], Any]]:
    """Return a function that opens a client with a key, or with none, to one service."""
    address: dict[str, Any] = {"connection": MemoryConnection(PARTITIONS, 10.0)}
    with ExitStack() as opened:
        if request.param == "file":
            path = str(request.getfixturevalue("tmp_path") / "budgets.db")
            create_file(path, PARTITIONS)
        if request.param == "kafka":
            shared = request.getfixturevalue("stack")
            servers = {"kafka": shared.kafka, "redis": shared.redis, "prefix": "signed."}
            opened.enter_context(LocalStack(workers=1, partitions=PARTITIONS, **servers))
            address = {"kafka": shared.kafka, "prefix": "signed.", "timeout": HANGS_AFTER}

        def client(name: str | None) -> Any:
            if request.param == "http":
                return request.getfixturevalue("over_http")(name)
            who = {} if name is None else {"request_key": private_key(name)}
            if request.param == "file":
                return opened.enter_context(Turnstile.open(path, **who))
            return opened.enter_context(Turnstile(**address, **who))

        yield client


@pytest.fixture
def name() -> str:
    """A dataset that nobody else uses."""
    return f"d{uuid4().hex[:10]}"
