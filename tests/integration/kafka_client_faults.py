"""A worker whose Kafka client meets the condition named in its first argument.

- ``metadata``: every metadata request fails until the client has distributed the partitions once.
- ``idle``: a second without a fetch counts as an hour.
"""

import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiokafka.consumer import subscription_state

from streams.worker.transport import ConsumerThread

create_consumer = ConsumerThread._create_worker_consumer


def without_metadata(self: ConsumerThread, transport: Any) -> Any:
    consumer = create_consumer(self, transport)
    update = consumer._client._metadata_update
    (assignor,) = consumer._partition_assignment_strategy
    distributed: list[bool] = []

    class Assignor(assignor):  # type: ignore[misc, valid-type]
        @classmethod
        def assign(cls, *arguments: Any) -> Any:
            distributed.append(True)
            return super().assign(*arguments)

    async def fail(*arguments: Any) -> bool:
        return bool(distributed and await update(*arguments))

    consumer._client._metadata_update = fail
    consumer._partition_assignment_strategy = (Assignor,)
    return consumer


if sys.argv.pop(1) == "metadata":
    ConsumerThread._create_worker_consumer = without_metadata  # type: ignore[method-assign]
else:
    subscription_state.time = SimpleNamespace(  # type: ignore[assignment]
        monotonic=lambda: time.monotonic() * 3600.0
    )
runpy.run_path(str(Path(__file__).with_name("impatient_worker.py")))
