"""Sends odometer checkpoints, so that an older one never comes after a newer one.

The topic is compacted: of a user's checkpoints the one that was written last stays. A worker that
was paused between its commit and its publishing would write an older one after its successor wrote
a newer one, and the older one would stay. So they go out through a producer with a transactional id
per partition, of which Kafka admits only the latest to begin (its epoch). A Redis that went back
lets records be applied again, and older checkpoints come again; if it then goes ahead, to a copy
that was made before, the newer ones do not. So what the topic has by now is not sent again:

1. The producer begins when the first checkpoint is to be sent. That shuts out every older one.
2. Whether this worker still owns the partition is asked after that, not before: a worker that
   wakes up too late has shut out its successor, and must not send anything.
3. The last checkpoint on the topic is read. It counts if the record that led to it is in the log:
   then all that came before it is of this log too.
4. What has been waiting goes out in one transaction, without what is older than that one. Nothing
   else waits for it.

Why that is enough: whatever an older owner may still send was in the outbox when the partition was
claimed; the new owner sends it again, under its own epoch, before anything newer. Steps 1 and 2
leave no other order: an owner that passes step 2 began before its successor claimed, so before
the successor's producer began, which shuts it out.

What always holds of the topic, aborted transactions aside, whatever Redis has been: offsets of the
log never fall, and every checkpoint that is older than the last one was there before it. For
whoever sends begins at the last one or before it, with all that the outbox and the log say from
there on; and what Redis has forgotten was confirmed. So the checkpoint that stays of a user is the
newest one, as soon as outbox and log have been worked off.

Readers may read uncommitted: a checkpoint of a transaction that was aborted is as true as any
other, it comes again, and of two the higher offset counts. Not so step 3: compaction takes aborted
ones away.

The tombstones of users who were forgotten are checkpoints like the others: they go out in their
order, and what was there of such a user before does not come again after them.

What is not made good: checkpoints that Kafka itself loses from the end of this topic. The bound of
a user is too low then until it rises again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from streams.ledger.ledger import Output
from streams.schemas import tombstone_offset
from streams.worker.ports import FencedProducer, Origin

WAITING_BYTES = 32 * 1024 * 1024
"""Checkpoints that wait hold up the publishing, and so the deciding, when there are more."""
STOP_WITHIN = 1.0
"""Seconds: a broker that does not answer must not hold up a rebalance."""


class NotTheOwner(Exception):
    """Somebody else owns the partition by now: nothing was sent."""


class Placed(msgspec.Struct, frozen=True):
    """What is looked at of a checkpoint."""

    offset: int


@dataclass(frozen=True)
class Waiting:
    """Checkpoints of one batch."""

    first: int  # the offset at which the batch begins
    origin: Origin
    outputs: Sequence[Output]
    sent: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def since(self, newest: int) -> Sequence[Output]:
        """Those that are not older than an offset."""
        if self.first >= newest:
            return self.outputs
        return [output for output in self.outputs if _offset_of(output.value) >= newest]


class Checkpoints:
    """The odometer of one partition, for as long as one claim lasts."""

    def __init__(
        self,
        partition: int,
        producer: FencedProducer,
        is_held: Callable[[], Awaitable[bool]],
        is_in_log: Callable[[int, Origin], Awaitable[bool]],
    ) -> None:
        """Nothing is sent yet.

        Args:
            partition: which of them.
            producer: to send with.
            is_held: whether this worker owns the partition.
            is_in_log: whether a record at an offset, of this origin, is in the log.
        """
        self._partition = partition
        self._producer = producer
        self._is_held = is_held
        self._is_in_log = is_in_log
        self._begun = False
        self._newest = -1  # on the topic, when this owner began
        self._waiting: list[Waiting] = []
        self._bytes = 0
        self._marks = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    async def publish(
        self, first: int, origin: Origin, outputs: Sequence[Output]
    ) -> asyncio.Future[None]:
        """Queue checkpoints of a batch that begins at an offset.

        Returns:
            What ends when the broker has all of them.
        """
        while self._bytes >= WAITING_BYTES:
            self._room.clear()
            await self._room.wait()
        waiting = Waiting(first, origin, outputs)
        self._waiting.append(waiting)
        self._bytes += _size(outputs)
        self._wake.set()
        return waiting.sent

    def mark(self) -> None:
        """Append the end of a transaction to the topic, even if nothing waits to be sent."""
        self._marks = True
        self._wake.set()

    async def run(self) -> None:
        """Send what is queued, for as long as the claim lasts."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._begun:
                await self._begin()
            # Step 4.
            sending, self._waiting = self._waiting, []
            marks, self._marks = self._marks, False
            newer = [(batch.origin, batch.since(self._newest)) for batch in sending]
            if marks or any(outputs for _, outputs in newer):
                await self._producer.send(newer)
            self._bytes -= sum(_size(batch.outputs) for batch in sending)
            self._room.set()
            for batch in sending:
                batch.sent.set_result(None)

    async def stop(self) -> None:
        """Disconnect; what was not confirmed is sent again by whoever owns the partition next."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._producer.stop(), STOP_WITHIN)

    async def _begin(self) -> None:
        # Step 1.
        self._begun = True
        await self._producer.start()
        # Step 2.
        if not await self._is_held():
            raise NotTheOwner(f"somebody else owns partition {self._partition} by now")
        # Step 3.
        last = await self._producer.last()
        offset = -1 if last is None else _offset_of(last.value)
        if last and offset >= 0 and await self._is_in_log(offset, last.origin):
            self._newest = offset


def _offset_of(checkpoint: bytes) -> int:
    """Of the record that led to it; -1 if it is none that a worker wrote."""
    if (offset := tombstone_offset(checkpoint)) is not None:
        return offset
    try:
        return msgspec.msgpack.decode(checkpoint, type=Placed).offset
    except msgspec.MsgspecError:
        return -1


def _size(outputs: Sequence[Output]) -> int:
    return sum(len(output.value) for output in outputs)
