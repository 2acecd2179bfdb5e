"""A gateway that is killed (SIGKILL) at a chosen point of the first charge that it publishes.

    before       nothing of the charge is published
    half         one partition's part of the charge is in Kafka
    published    all parts are, and no decision was returned

Its first line on standard output is its URL.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from functools import partial
from typing import NoReturn

from streams.config import Config
from streams.gateway.callers import CallerSigner
from streams.gateway.http_gateway import Gateway
from streams.gateway.http_operations import StoredFacts
from streams.operations.balance import read_balances
from streams.operations.status import read_datasets
from streams.records import Charge, decode_request
from streams.sdk.client import Turnstile
from streams.sdk.connection import PendingRequest
from streams.sdk.kafka_connection import KafkaConnection


class DyingConnection(KafkaConnection):
    """A connection whose process does not survive a charge."""

    def __init__(self, config: Config, point: str) -> None:
        super().__init__(config)
        self._point = point

    def _publish(self, requests: Mapping[int, bytes], waiting: PendingRequest) -> None:
        if not any(isinstance(decode_request(part), Charge) for part in requests.values()):
            super()._publish(requests, waiting)
            return
        if self._point == "half":
            first = min(requests)
            super()._publish({first: requests[first]}, waiting)
        elif self._point == "published":
            super()._publish(requests, waiting)
        self._open().flush()
        die()


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit


async def serve(config: Config, point: str) -> None:
    turnstile = Turnstile(connection=DyingConnection(config, point), signer=CallerSigner())
    stored = StoredFacts(partial(read_datasets, config), partial(read_balances, config))
    served = Gateway(turnstile, stored, "127.0.0.1:0", timeout=config.timeout)
    await served.start()
    print(served.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Config.load(), sys.argv[1]))
