"""Checkpoints go out under an epoch, and only while the partition is held."""

import asyncio

import pytest

from streams.ledger.ledger import Channel, Output
from streams.worker import checkpoints as waiting_room
from streams.worker.checkpoints import Checkpoints, NotTheOwner
from streams.worker.memory_broker import Effect, MemoryBroker, MemoryClient
from streams.worker.ports import NotSent
from tests.unit.worker.processors import Ends, Gate


class Owner:
    """Somebody who publishes checkpoints; whether it still owns the partition is said by a test."""

    def __init__(self, broker):
        self.is_owner = True
        self.gate = Gate(Ends())
        producer = MemoryClient(broker, self.gate).checkpoints_of(0)
        self.checkpoints = Checkpoints(0, producer, self._is_held)
        self.running = asyncio.create_task(self.checkpoints.run())

    async def publish(self, *values):
        outputs = [Output(Channel.ODOMETER, b"user", value) for value in values]
        return await self.checkpoints.publish(outputs)

    async def send(self, *values):
        """Publish, until the broker has them or the owner has failed."""
        sent = await self.publish(*values)
        await asyncio.wait((sent, self.running), return_when=asyncio.FIRST_COMPLETED)
        if self.running.done():
            self.running.result()

    async def stop(self):
        self.running.cancel()
        await self.checkpoints.stop()

    async def _is_held(self):
        self.gate.passed.append("is it held?")
        return self.is_owner


def written(broker):
    return broker.outputs(Channel.ODOMETER, 0).values


def test_who_owns_the_partition_is_asked_after_the_epoch_has_begun_and_before_anything_is_sent():
    async def scenario():
        broker = MemoryBroker(1)
        owner = Owner(broker)
        await owner.send(b"1")
        await owner.send(b"2")
        first = [Effect.BEGIN, "is it held?"]
        assert owner.gate.passed == first + 2 * [Effect.SEND, Effect.COMMIT, Effect.HEAR]
        assert written(broker) == [b"1", b"2"]
        await owner.stop()

    asyncio.run(scenario())


def test_an_owner_that_begins_too_late_sends_nothing():
    async def scenario():
        broker = MemoryBroker(1)
        older, newer = Owner(broker), Owner(broker)
        await newer.send(b"5")
        older.is_owner = False
        with pytest.raises(NotTheOwner):
            await older.send(b"3")
        with pytest.raises(NotSent):  # the older one has shut it out by beginning
            await newer.send(b"6")
        assert written(broker) == [b"5"]

    asyncio.run(scenario())


def test_what_has_been_waiting_goes_out_in_one_transaction():
    async def scenario():
        broker = MemoryBroker(1)
        owner = Owner(broker)
        owner.gate.hold(Effect.BEGIN)
        sent = [await owner.publish(b"%d" % number) for number in range(3)]
        while not owner.gate.waiting[Effect.BEGIN]:
            await asyncio.sleep(0)
        owner.gate.waiting[Effect.BEGIN][0].set_result(None)
        await asyncio.gather(*sent)
        assert owner.gate.passed.count(Effect.SEND) == 1
        assert written(broker) == [b"0", b"1", b"2"]
        await owner.stop()

    asyncio.run(scenario())


def test_too_many_that_wait_hold_up_the_next(monkeypatch):
    monkeypatch.setattr(waiting_room, "WAITING_BYTES", 10)

    async def scenario():
        broker = MemoryBroker(1)
        owner = Owner(broker)
        owner.gate.hold(Effect.COMMIT)
        await owner.publish(b"x" * 10)
        held_up = asyncio.create_task(owner.publish(b"y"))
        while not owner.gate.waiting[Effect.COMMIT]:
            await asyncio.sleep(0)
        assert not held_up.done()
        owner.gate.waiting.pop(Effect.COMMIT)[0].set_result(None)
        await (await held_up)
        assert written(broker) == [b"x" * 10, b"y"]
        await owner.stop()

    asyncio.run(scenario())
