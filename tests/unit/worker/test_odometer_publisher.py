"""Odometer records go out under an epoch, and only while the partition is held."""

import asyncio

import pytest
from msgspec.msgpack import decode

from streams.kafka.results import Origin
from streams.ledger.ledger import Channel, Output
from streams.records import OdometerRecord, encode, odometer_key
from streams.worker import odometer_publisher as waiting_room
from streams.worker.odometer_publisher import OdometerPublisher
from tests.doubles.memory_broker import Effect, MemoryBroker, MemoryClient
from tests.unit.worker.processors import Ends, Gate

pytestmark = pytest.mark.usefixtures("virtual_time")


HERE = Origin(b"topic of 16 byte", 4)


class Owner:
    """A publisher of odometer records; a test sets whether it still owns the partition."""

    def __init__(self, broker, log=HERE):
        self.is_owner = True
        self.log = log
        self.gate = Gate(Ends())
        producer = MemoryClient(broker, self.gate).odometer_producer_of(0)
        self.odometers = OdometerPublisher(0, producer, self._is_held, self._is_in_log)
        self.running = asyncio.create_task(self.odometers.run())

    async def publish(self, *values):
        outputs = [Output(Channel.ODOMETER, b"user", value) for value in values]
        return await self.odometers.publish(0, self.log, outputs)

    async def send(self, *values):
        """Publish, until the broker has them or the owner has failed."""
        sent = await self.publish(*values)
        await asyncio.wait((sent, self.running), return_when=asyncio.FIRST_COMPLETED)
        if self.running.done():
            self.running.result()

    async def stop(self):
        self.running.cancel()
        await self.odometers.stop()

    async def charge(self, *offsets):
        """Send what is said of charges, of a batch each."""
        for offset in offsets:
            outputs = [odometer(offset)]
            sent = await self.odometers.publish(offset, self.log, outputs)
            await asyncio.wait((sent, self.running), return_when=asyncio.FIRST_COMPLETED)
            assert sent.done()

    async def _is_in_log(self, offset, origin):
        return origin == self.log

    async def _is_held(self):
        self.gate.passed.append("is it held?")
        return self.is_owner


def odometer(offset, user=1):
    value = OdometerRecord(
        dataset="d", user=user, partition=0, offset=offset, bound=[float(offset)]
    )
    return Output(Channel.ODOMETER, odometer_key("d", user), encode(value))


def written(broker):
    return broker.outputs(Channel.ODOMETER, 0).values


def offsets(broker):
    return [decode(value, type=OdometerRecord).offset for value in written(broker)]


async def test_what_has_been_waiting_goes_out_in_one_transaction():
    broker = MemoryBroker(1)
    owner = Owner(broker)
    owner.gate.hold(Effect.BEGIN)
    sent = [await owner.publish(b"%d" % number) for number in range(3)]
    while not owner.gate.waiting[Effect.BEGIN]:
        await asyncio.sleep(0.001)
    owner.gate.waiting[Effect.BEGIN][0].set_result(None)
    await asyncio.gather(*sent)
    assert owner.gate.passed.count(Effect.SEND) == 1
    assert written(broker) == [b"0", b"1", b"2"]
    await owner.stop()


async def test_too_many_that_wait_hold_up_the_next(monkeypatch):
    monkeypatch.setattr(waiting_room, "WAITING_BYTES", 10)
    broker = MemoryBroker(1)
    owner = Owner(broker)
    owner.gate.hold(Effect.COMMIT)
    await owner.publish(b"x" * 10)
    held_up = asyncio.create_task(owner.publish(b"y"))
    while not owner.gate.waiting[Effect.COMMIT]:
        await asyncio.sleep(0.001)
    assert not held_up.done()
    owner.gate.waiting.pop(Effect.COMMIT)[0].set_result(None)
    await (await held_up)
    assert written(broker) == [b"x" * 10, b"y"]
    await owner.stop()


@pytest.mark.parametrize("log", [Origin(b"another 16 bytes", 4), Origin(HERE.topic, 5)])
async def test_what_another_log_led_to_keeps_nothing_back(log):
    broker = MemoryBroker(1)
    await Owner(broker, log).charge(1, 8)
    owner = Owner(broker)
    await owner.charge(1, 2)
    assert offsets(broker) == [1, 8, 1, 2]
    await owner.stop()


@pytest.mark.parametrize(
    "foreign",
    [
        b"nonsense",
        b"\x82\xa1x" + b"\x91" * 5000,
        encode({"offset": 2**63}),
        b"\0" + bytes([255]) * 8,
        b"{" + b'"a":[' * 5000,
    ],
    ids=["nonsense", "nested", "offset", "tombstone", "json"],
)
async def test_what_no_worker_wrote_keeps_nothing_back(foreign):
    broker = MemoryBroker(1)
    await Owner(broker).send(foreign)
    owner = Owner(broker)
    await owner.charge(1)
    broker.outputs(Channel.ODOMETER, 0).append(odometer(99).value)
    later = Owner(broker)
    await later.charge(1, 2)
    assert [value for value in written(broker) if value != foreign][-2:] == [
        odometer(1).value,
        odometer(2).value,
    ]
    await owner.stop()
    await later.stop()
