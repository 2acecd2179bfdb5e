"""A partition that cannot keep up holds up the stream instead of filling the memory."""

import asyncio
from dataclasses import dataclass

import pytest

from streams.ledger import Ledger
from streams.redis_store import Snapshot
from streams.worker.processor import ARRIVED_BYTES, Processor


@dataclass
class Record:
    offset: int
    value: bytes

    def done(self) -> None:
        raise AssertionError("nothing is processed here")


def idle_processor() -> Processor:
    """A processor that was not started: it takes records and decides none."""
    snapshot = Snapshot(next=0, owner="me", folded={}, deltas=[], outbox=[])
    return Processor(Ledger(0, 1), snapshot, "me", store=None, publisher=None)


async def filled() -> tuple[Processor, asyncio.Task]:
    processor = idle_processor()
    half = b"x" * (ARRIVED_BYTES // 2)
    await processor.arrive(Record(0, half))
    await processor.arrive(Record(1, half))
    blocked = asyncio.create_task(processor.arrive(Record(2, half)))
    await asyncio.sleep(0)
    assert not blocked.done()
    return processor, blocked


def test_a_record_that_finds_no_room_waits_until_a_batch_is_taken():
    async def scenario():
        processor, blocked = await filled()
        assert [record.offset for record in processor._take_batch()] == [0]
        await blocked
        assert [record.offset for record in processor._take_batch()] == [1]

    asyncio.run(scenario())


@pytest.mark.parametrize("change", ["suspend", "resume", "stop"])
def test_a_record_that_waited_through_a_rebalance_is_left_to_be_fetched_again(change):
    async def scenario():
        processor, blocked = await filled()
        await getattr(processor, change)()
        await blocked
        assert processor._take_batch() == []

    asyncio.run(scenario())


def test_a_suspended_partition_takes_nothing_until_it_resumes():
    async def scenario():
        processor = idle_processor()
        await processor.suspend()
        await processor.arrive(Record(0, b"lost"))
        assert await processor.resume() == 0
        await processor.arrive(Record(0, b"again"))
        assert [record.value for record in processor._take_batch()] == [b"again"]

    asyncio.run(scenario())
