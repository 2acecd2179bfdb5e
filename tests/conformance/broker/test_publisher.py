"""Answers reach their topics, in the order in which they were queued."""

import asyncio

from streams.ledger.ledger import Channel, Output

P = 1


async def test_outputs_reach_their_topic_and_partition_with_their_keys(bench):
    await bench.publish(
        P,
        [
            Output(Channel.HALTS, b"run", b"an answer"),
            Output(Channel.REJECTS, None, b"a reject"),
        ],
    )
    assert await bench.hand.published(Channel.HALTS, P) == [(b"run", b"an answer")]
    assert await bench.hand.published(Channel.REJECTS, P) == [(None, b"a reject")]
    assert await bench.hand.published(Channel.HALTS, 0) == []
    assert await bench.hand.published(Channel.ODOMETER, P) == []


async def test_what_is_queued_keeps_its_order_though_nobody_waits(bench):
    values = [b"%d" % number for number in range(300)]
    sent = []
    for start in range(0, 300, 3):
        outputs = [Output(Channel.HALTS, None, value) for value in values[start : start + 3]]
        sent += await bench.publisher.publish(P, outputs)
    await asyncio.gather(*sent)
    assert [value for _, value in await bench.hand.published(Channel.HALTS, P)] == values
