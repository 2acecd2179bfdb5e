"""Claims, rebalances and fetches, as the consumer sees them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from aiokafka.errors import IllegalStateError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from streams.worker.ports import Ending
from streams.worker.transport import AcquiringConsumer


class Consumer(AcquiringConsumer):
    """One of which a rebalance takes partition 1 between acquisition and seek."""

    def __init__(self) -> None:
        self.app = SimpleNamespace(norms_topic="norms", owned=self, end=self._end)
        self.assigned = {TP("norms", 0), TP("norms", 1), TP("others", 0)}
        self.acquired: list[list[int]] = []
        self.sought: dict[TP, int] = {}

    def assignment(self) -> set[TP]:
        return self.assigned

    async def acquire(self, partitions: list[int]) -> dict[int, int]:
        self.acquired.append(sorted(partitions))
        return {partition: 10 + partition for partition in partitions}

    async def seek_wait(self, partitions: Any) -> None:
        gone = TP("norms", 1)
        if gone in partitions:
            self.assigned.discard(gone)
            raise IllegalStateError(f"No current assignment for partition {gone}")
        self.sought = dict(partitions)

    def _end(self, reason: Ending, why: str, error: BaseException) -> NoReturn:
        raise AssertionError(reason, why) from error


def test_partition_revoked_before_its_seek_ends_nothing() -> None:
    consumer = Consumer()
    assert asyncio.run(consumer.seek_to_committed()) == {TP("norms", 0): 10}
    assert consumer.sought == {TP("norms", 0): 10}
    assert consumer.acquired == [[0, 1], [0]]


class Fetching(Consumer):
    """One to which every fetch brings two records of each partition that is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.app.consumer_generation_id = 1
        self.app.take = self.take
        self.stopped: set[int] = set()
        self.full: set[int] = set()
        self.taken: list[str] = []
        self.waited: list[float] = []
        self.rebalance_after = ""

    def decides(self, partition: int) -> bool:
        return partition not in self.stopped

    def has_room(self, partition: int) -> bool:
        return partition not in self.full

    async def take(self, record: str) -> None:
        self.taken.append(record)
        if record == self.rebalance_after:
            self.app.consumer_generation_id += 1

    async def fetch(self, seconds: float = 1.0) -> list[str]:
        self.taken.clear()
        left = await self._getmany({TP("norms", number) for number in range(3)}, seconds)
        assert left == {}  # for Faust, which would take them once more
        return self.taken


@pytest.fixture
def fetching(monkeypatch: pytest.MonkeyPatch) -> Fetching:
    async def fetched(self: Fetching, wanted: set[TP], timeout: float) -> dict[TP, list[str]]:
        self.waited.append(timeout)
        return {tp: [f"{tp.partition}/{offset}" for offset in range(2)] for tp in sorted(wanted)}

    monkeypatch.setattr(driver.Consumer, "_getmany", fetched)
    return Fetching()


def test_all_that_a_fetch_brings_is_taken_in_its_order(fetching: Fetching) -> None:
    assert asyncio.run(fetching.fetch()) == ["0/0", "0/1", "1/0", "1/1", "2/0", "2/1"]


def test_nothing_is_fetched_without_room(
    fetching: Fetching,
) -> None:
    fetching.stopped, fetching.full = {0}, {1}
    assert asyncio.run(fetching.fetch()) == ["2/0", "2/1"]
    fetching.full = {1, 2}
    assert asyncio.run(fetching.fetch()) == []


def test_partition_without_room_is_asked_again_soon(
    fetching: Fetching,
) -> None:
    asyncio.run(fetching.fetch(1.0))
    fetching.stopped = {0}
    asyncio.run(fetching.fetch(1.0))
    fetching.full = {1}
    asyncio.run(fetching.fetch(1.0))
    at_rest, without_one, with_one_full = fetching.waited
    assert at_rest == without_one == 1.0
    assert with_one_full < 0.1


def test_what_is_left_of_a_fetch_after_a_rebalance_is_not_taken(fetching: Fetching) -> None:
    fetching.rebalance_after = "0/1"
    assert asyncio.run(fetching.fetch()) == ["0/0", "0/1"]
    assert len(asyncio.run(fetching.fetch())) == 2
    fetching.rebalance_after = ""
    assert len(asyncio.run(fetching.fetch())) == 6
