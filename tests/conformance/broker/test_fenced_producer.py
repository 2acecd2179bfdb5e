"""Of the producers of one partition's checkpoints, only the one that began last can send."""

import pytest

from streams.ledger.ledger import Channel, Output
from streams.worker.ports import NotSent

P = 1


def checkpoint(value):
    return Output(Channel.ODOMETER, b"user", value)


async def written(bench, partition=P):
    return [value for _, value in await bench.hand.published(Channel.ODOMETER, partition)]


def test_what_was_sent_is_there_in_its_order(run):
    async def scenario(bench):
        producer = bench.checkpoints_of(P)
        await producer.start()
        many = [b"%d " % number * 10_000 for number in range(40)]  # more than one batch
        await producer.send([checkpoint(value) for value in many[:30]])
        assert await written(bench) == many[:30]
        await producer.send([checkpoint(value) for value in many[30:]])
        await producer.stop()
        assert await written(bench) == many

    run(scenario)


def test_an_epoch_shuts_out_every_earlier_one(run):
    async def scenario(bench):
        older, newer = bench.checkpoints_of(P), bench.checkpoints_of(P)
        await older.start()
        await older.send([checkpoint(b"old")])
        await newer.start()
        with pytest.raises(NotSent):
            await older.send([checkpoint(b"late")])
        await newer.send([checkpoint(b"new")])
        with pytest.raises(NotSent):
            await older.send([checkpoint(b"later")])
        await older.stop()
        await newer.send([checkpoint(b"newer")])
        await newer.stop()
        assert await written(bench) == [b"old", b"new", b"newer"]

    run(scenario)


def test_who_begins_last_sends_though_it_was_made_first(run):
    async def scenario(bench):
        first, second = bench.checkpoints_of(P), bench.checkpoints_of(P)
        await second.start()
        await first.start()
        await first.send([checkpoint(b"first")])
        with pytest.raises(NotSent):
            await second.send([checkpoint(b"second")])
        await first.stop()
        await second.stop()
        assert await written(bench) == [b"first"]

    run(scenario)


def test_the_epochs_of_partitions_are_apart(run):
    async def scenario(bench):
        here, there = bench.checkpoints_of(P), bench.checkpoints_of(0)
        await here.start()
        await there.start()
        await here.send([checkpoint(b"here")])
        await there.send([checkpoint(b"there")])
        await here.stop()
        await there.stop()
        assert (await written(bench), await written(bench, 0)) == ([b"here"], [b"there"])

    run(scenario)


def test_one_that_never_began_can_be_stopped(run):
    async def scenario(bench):
        await bench.checkpoints_of(P).stop()

    run(scenario)
