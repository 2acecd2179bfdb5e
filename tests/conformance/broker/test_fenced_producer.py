"""Only the newest producer of a partition's odometer records can send."""

import asyncio
import gc

import pytest

from streams.kafka.results import NotSent, Origin, Sent
from streams.kafka.topics import ODOMETER
from streams.ledger.ledger import Channel, Output
from streams.records import tombstone

P = 1
TOPIC = b"topic of 16 byte"


def odometer(value):
    return Output(Channel.ODOMETER, b"user", value)


def origin(outputs):
    return [(Origin(TOPIC, 3), outputs)]


async def written(bench, partition=P):
    return [value for _, value in await bench.hand.published(Channel.ODOMETER, partition)]


async def test_what_was_sent_is_there_in_its_order(bench):
    producer = bench.odometer_producer_of(P)
    await producer.start()
    many = [b"%d " % number * 10_000 for number in range(40)]  # more than one batch
    await producer.send(origin([odometer(value) for value in many[:30]]))
    assert await written(bench) == many[:30]
    await producer.send(origin([odometer(value) for value in many[30:]]))
    await producer.stop()
    assert await written(bench) == many


async def test_an_epoch_shuts_out_every_earlier_one(bench):
    older, newer = bench.odometer_producer_of(P), bench.odometer_producer_of(P)
    await older.start()
    await older.send(origin([odometer(b"old")]))
    await newer.start()
    with pytest.raises(NotSent):
        await older.send(origin([odometer(b"late")]))
    await newer.send(origin([odometer(b"new")]))
    with pytest.raises(NotSent):
        await older.send(origin([odometer(b"later")]))
    await older.stop()
    await newer.send(origin([odometer(b"newer")]))
    await newer.stop()
    assert await written(bench) == [b"old", b"new", b"newer"]


async def test_a_tombstone_has_no_value_and_its_offset_is_known(bench):
    producer = await begun(bench)
    await producer.send(origin([odometer(b"known"), odometer(tombstone(77))]))
    assert await written(bench) == [b"known", None]
    last = await producer.last()
    assert (last.value, last.origin) == (tombstone(77), Origin(TOPIC, 3))
    await producer.stop()


async def test_empty_transaction_takes_an_invisible_offset(bench):
    producer = await begun(bench)
    await producer.send(origin([odometer(b"known")]))
    before = await bench.hand.end_of(ODOMETER, P)
    await producer.send([])
    await producer.send(origin([]))
    while await bench.hand.end_of(ODOMETER, P) < before + 2:  # the broker answers before that
        await asyncio.sleep(0)
    assert await written(bench) == [b"known"]
    assert (await producer.last()).value == b"known"
    newer = await begun(bench)
    with pytest.raises(NotSent):
        await producer.send([])
    await newer.send(origin([odometer(b"newer")]))
    await newer.stop()
    await producer.stop()
    assert await written(bench) == [b"known", b"newer"]


async def test_fenced_producer_leaves_no_unseen_error(bench):
    """Python would tell of it when it is collected: amid a test that has nothing to do with it."""
    unseen = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    older, newer = await begun(bench), await begun(bench)
    with pytest.raises(NotSent):
        await older.send(origin([odometer(b"late")] * 3))
    await older.stop()
    await newer.stop()
    del older, newer
    gc.collect()
    await asyncio.sleep(0)
    assert unseen == []


async def begun(bench, partition=P):
    producer = bench.odometer_producer_of(partition)
    await producer.start()
    return producer


async def test_the_last_one_that_was_committed_is_told_with_its_origin(bench):
    first = await begun(bench)
    assert await first.last() is None
    groups = [(Origin(TOPIC, epoch), [odometer(b"%d" % epoch)] * 3) for epoch in (4, 6)]
    await first.send(groups)
    assert await first.last() == Sent(Origin(TOPIC, 6), b"6")
    for _ in range(7):
        first = await begun(bench)
    await first.send([(Origin(b"another 16 bytes", -1), [odometer(b"7")])])
    await first.stop()
    second = await begun(bench)
    assert await second.last() == Sent(Origin(b"another 16 bytes", -1), b"7")
    assert await (await begun(bench, 0)).last() is None
    await second.stop()


async def test_what_was_aborted_is_not_told(bench):
    owner = await begun(bench)
    await owner.send(origin([odometer(b"committed")]))
    for _ in range(5):
        await bench.hand.abort_odometers(P, *[b"aborted"] * 20)
    later = await begun(bench)
    assert (await later.last()).value == b"committed"
    await later.stop()
    assert len(await written(bench)) == 101


async def test_what_says_of_no_origin_is_not_told(bench):
    await bench.publish(P, [odometer(b"of another release")])
    owner = await begun(bench)
    assert await owner.last() is None
    await owner.send(origin([odometer(b"new")]))
    assert (await owner.last()).value == b"new"
    await owner.stop()
