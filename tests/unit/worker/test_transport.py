"""Claims and rebalances, as the consumer sees them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

from aiokafka.errors import IllegalStateError
from faust.types import TP

from streams.worker.kafka.transport import ClaimingConsumer


class Consumer(ClaimingConsumer):
    """One of which a rebalance takes partition 1 between claim and seek."""

    def __init__(self) -> None:
        self.app = SimpleNamespace(norms_topic="norms", owned=self, end=self._end)
        self._under_way = {0: 1}
        self.assigned = {TP("norms", 0), TP("norms", 1), TP("others", 0)}
        self.claimed: list[list[int]] = []
        self.sought: dict[TP, int] = {}

    def assignment(self) -> set[TP]:
        return self.assigned

    async def claim(self, partitions: list[int]) -> dict[int, int]:
        self.claimed.append(sorted(partitions))
        return {partition: 10 + partition for partition in partitions}

    async def seek_wait(self, partitions: Any) -> None:
        gone = TP("norms", 1)
        if gone in partitions:
            self.assigned.discard(gone)
            raise IllegalStateError(f"No current assignment for partition {gone}")
        self.sought = dict(partitions)

    def _end(self, why: str, error: BaseException) -> NoReturn:
        raise AssertionError(why) from error


def test_a_partition_that_is_gone_before_it_is_sought_ends_nothing() -> None:
    consumer = Consumer()
    assert asyncio.run(consumer.seek_to_committed()) == {TP("norms", 0): 10}
    assert consumer.sought == {TP("norms", 0): 10}
    assert consumer.claimed == [[0, 1], [0]]
    assert not consumer._under_way
