"""A service in memory, in a file, and over Kafka: to a trainer they are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from streams import (
    Turnstile,
)
from streams.local import LocalStack
from streams.sdk.budget_file import create_file
from streams.sdk.memory_connection import MemoryConnection
from tests.conformance.turnstile import PARTITIONS
from tests.keys import private_key
from tests.waiting import HANGS_AFTER


@pytest.fixture(scope="session")
def stack(servers: LocalStack) -> Iterator[LocalStack]:
    prefix, where = f"t{uuid4().hex[:8]}.", {"kafka": servers.kafka, "redis": servers.redis}
    with LocalStack(workers=1, partitions=PARTITIONS, prefix=prefix, **where) as running:
        yield running


@pytest.fixture(params=["memory", "file", pytest.param("kafka", marks=pytest.mark.process)])
def turnstile(request: pytest.FixtureRequest) -> Iterator[Turnstile]:
    if request.param == "memory":
        opened = Turnstile.in_memory(partitions=PARTITIONS)
    elif request.param == "file":
        path = request.getfixturevalue("tmp_path") / "budgets.db"
        opened = Turnstile.open(path, partitions=PARTITIONS)
    else:
        running = request.getfixturevalue("stack")
        opened = Turnstile(running.kafka, prefix=running.prefix, timeout=HANGS_AFTER)
    with opened:
        yield opened


@pytest.fixture(params=["memory", "file", pytest.param("kafka", marks=pytest.mark.process)])
def signers(request: pytest.FixtureRequest) -> Iterator[Callable[[str | None], Turnstile]]:
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

        def client(name: str | None) -> Turnstile:
            who = {} if name is None else {"request_key": private_key(name)}
            if request.param == "file":
                return opened.enter_context(Turnstile.open(path, **who))
            return opened.enter_context(Turnstile(**address, **who))

        yield client


@pytest.fixture
def name() -> str:
    """A dataset that nobody else uses."""
    return f"d{uuid4().hex[:10]}"
