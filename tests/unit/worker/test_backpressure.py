"""A partition that cannot keep up holds up the stream instead of filling the memory."""

import asyncio

import pytest

from streams.store.misfit import Suspension
from streams.store.store_port import SuspensionReason
from streams.worker.inbox import ARRIVED_BYTES, Inbox
from tests.unit.worker.processors import Record, bench


async def filled(inbox: Inbox) -> asyncio.Task:
    half = b"x" * (ARRIVED_BYTES // 2)
    await inbox.arrive(Record(0, half))
    await inbox.arrive(Record(1, half))
    blocked = asyncio.create_task(inbox.arrive(Record(2, half)))
    await asyncio.sleep(0)
    assert not blocked.done()
    return blocked


async def test_a_record_that_finds_no_room_waits_until_one_is_taken():
    inbox = Inbox(0)
    blocked = await filled(inbox)
    assert inbox.take(0).offset == 0
    await blocked
    assert [inbox.take(0).offset, inbox.take(0).offset, inbox.take(0)] == [1, 2, None]


@pytest.mark.parametrize("change", ["pause", "suspend", "close"])
async def test_record_that_waited_through_a_change_is_fetched_again(change):
    processor = bench().processor
    blocked = await filled(processor.inbox)
    arguments = (
        [Suspension(SuspensionReason.HOLE, "a hole", "fill it")] if change == "suspend" else []
    )
    await getattr(processor, change)(*arguments)
    await blocked
    assert processor.inbox.take(0) is None


async def test_a_paused_partition_takes_nothing_until_it_resumes():
    processor = bench().processor
    await processor.pause()
    await processor.inbox.arrive(Record(0, b"lost"))
    assert await processor.resume(7) == 0
    assert processor.writer.version == 7
    await processor.inbox.arrive(Record(0, b"again"))
    assert processor.inbox.take(0).value == b"again"
    assert processor.inbox.take(0) is None


async def test_repeated_records_are_left_out_and_gaps_reported():
    inbox = Inbox(5)
    for offset in (3, 4, 5, 7):
        await inbox.arrive(Record(offset))
    assert inbox.gap is None
    assert inbox.take(0).offset == 5
    assert (inbox.gap, inbox.take(0)) == (7, None)
    inbox.pass_to(7)
    assert (inbox.gap, inbox.take(0).offset) == (None, 7)
