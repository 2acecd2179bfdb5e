"""A gateway that listens in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from streams.config import Config
from streams.gateway.callers import Callers, CallerSigner
from streams.gateway.http_gateway import Gateway
from streams.gateway.http_operations import StoredFacts
from streams.operations.balance import balances_of, read_balances
from streams.operations.status import DatasetStatus, read_datasets
from streams.records import User
from streams.sdk.client import Turnstile
from streams.sdk.connection import Connection
from streams.sdk.memory_connection import MemoryConnection
from tests.waiting import HANGS_AFTER


@contextmanager
def gateway_to(
    connection: Connection,
    *,
    keys: str = "",
    curators: str = "",
    config: Config | None = None,
    timeout: float = HANGS_AFTER,
    **options: Any,
) -> Iterator[Gateway]:
    """Start a gateway to a service, and stop it; ``config`` has the place of the datasets."""

    def datasets() -> Mapping[str, DatasetStatus]:
        if not isinstance(connection, MemoryConnection):
            return read_datasets(config or Config())
        found = connection.ledgers[0].summary().datasets
        return {
            name: DatasetStatus(
                one.policy, closed=one.closed, holder=one.holder, worst_case=one.worst_case
            )
            for name, one in found.items()
        }

    def balances(dataset: str, users: Sequence[User]) -> Sequence[Mapping[str, Any]]:
        if not isinstance(connection, MemoryConnection):
            return read_balances(config or Config(), dataset, users)
        return balances_of(connection.ledgers, dataset, users)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def started() -> Gateway:
        served = Gateway(
            Turnstile(connection=connection, signer=CallerSigner()),
            StoredFacts(datasets, balances),
            "127.0.0.1:0",
            timeout=timeout,
            callers=Callers(keys, curators),
            **options,
        )
        await served.start()
        return served

    try:
        served = asyncio.run_coroutine_threadsafe(started(), loop).result()
        try:
            yield served
        finally:
            asyncio.run_coroutine_threadsafe(served.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
