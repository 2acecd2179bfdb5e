"""What a worker sees of the topics, and of the log beside the stream."""

import pytest

from streams.kafka.results import Missing
from tests.conformance.broker.bench import PARTITIONS

P = 1


async def test_the_topics_are_seen_as_they_are(bench):
    seen = await bench.look()
    assert (len(seen.topic), seen.partitions, seen.problem) == (16, PARTITIONS, None)
    assert await bench.look() == seen


async def write(hand):
    """An offset a letter: a and b were deleted, M and N mark the ends of transactions."""
    await hand.append(P, b"a", b"b", None)
    await hand.append_in_transaction(P, b"d", True)  # 3, its marker at 4
    await hand.append_in_transaction(P, b"f", False)  # 5, its marker at 6
    await hand.append(P, b"h")
    await hand.append(0, b"in another partition")
    await hand.delete_before(P, 2)


async def test_records_of_transactions_are_read_by_offset(bench):
    """Also of a transaction that was aborted: the stream delivers them all."""
    await write(bench.hand)
    async with bench.read_log() as log:
        for offset, value in {2: None, 3: b"d", 5: b"f", 7: b"h"}.items():
            assert (await log.record(P, offset)).value == value
        assert (await log.record(0, 0)).value == b"in another partition"


async def test_records_of_one_leader_have_its_epoch(bench):
    await write(bench.hand)
    async with bench.read_log() as log:
        epochs = [(await log.record(P, offset)).leader_epoch for offset in (2, 3, 5, 7)]
    assert epochs[0] >= 0
    assert len(set(epochs)) == 1


async def test_log_begins_after_deletions_and_ends_after_markers(bench):
    async with bench.read_log() as log:
        assert await log.extent(P) == (0, 0)
    await write(bench.hand)
    async with bench.read_log() as log:
        assert await log.extent(P) == (2, 8)
        assert await log.extent(0) == (0, 1)


@pytest.mark.parametrize(
    "offset", [pytest.param(0, id="deleted"), pytest.param(4, id="marker"), pytest.param(99)]
)
async def test_where_there_is_no_record_none_is_made_up(bench, offset):
    await write(bench.hand)
    async with bench.read_log() as log:
        assert await log.record(P, offset) is None


MISSING = {
    # offsets first to end - 1: what the log has there
    (4, 5): Missing.NOTHING_TO_APPLY,
    (6, 7): Missing.NOTHING_TO_APPLY,
    (2, 3): Missing.RECORDS,
    (3, 5): Missing.RECORDS,
    (4, 6): Missing.RECORDS,
    (6, 8): Missing.RECORDS,
    (0, 1): Missing.HOLE,
    (1, 5): Missing.HOLE,
    (98, 99): Missing.HOLE,
}


async def test_what_is_missing_is_told_apart(bench):
    await write(bench.hand)
    async with bench.read_log() as log:
        assert {place: await log.missing(P, *place) for place in MISSING} == MISSING
