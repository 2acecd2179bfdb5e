"""Sends odometer checkpoints, so that an older one never comes after a newer one.

The topic is compacted: of a user's checkpoints the one that was written last stays. A worker that
was paused between its commit and its publishing would write an older one after its successor wrote
a newer one, and the older one would stay for good. So they go out through a producer with a
transactional id per partition, of which Kafka admits only the latest to begin (its epoch):

1. The producer begins when the first checkpoint is to be sent. That shuts out every older one.
2. Whether this worker still owns the partition is asked after that, not before: a worker that
   wakes up too late has shut out its successor, and must not send anything.
3. What has been waiting goes out in one transaction. Nothing else waits for it.

Why that is enough: whatever an older owner may still send was in the outbox when the partition was
claimed; the new owner sends it again, under its own epoch, before anything newer. Steps 1 and 2
leave no other order: an owner that passes step 2 began before its successor claimed, so before
the successor's producer began, which shuts it out.

The transactions promise nothing else. Readers read uncommitted: a checkpoint of a transaction that
was aborted is as true as any other, it comes again, and of two the higher offset counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from streams.ledger.ledger import Output
from streams.worker.ports import FencedProducer

WAITING_BYTES = 32 * 1024 * 1024
"""Checkpoints that wait hold up the publishing, and so the deciding, when there are more."""
STOP_WITHIN = 1.0
"""Seconds: a broker that does not answer must not hold up a rebalance."""


class NotTheOwner(Exception):
    """Somebody else owns the partition by now: nothing was sent."""


class Checkpoints:
    """The odometer of one partition, for as long as one claim lasts."""

    def __init__(
        self, partition: int, producer: FencedProducer, is_held: Callable[[], Awaitable[bool]]
    ) -> None:
        self._partition = partition
        self._producer = producer
        self._is_held = is_held
        self._begun = False
        self._waiting: list[tuple[Sequence[Output], asyncio.Future[None]]] = []
        self._bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    async def publish(self, outputs: Sequence[Output]) -> asyncio.Future[None]:
        """Queue checkpoints; the future ends when the broker has all of them."""
        while self._bytes >= WAITING_BYTES:
            self._room.clear()
            await self._room.wait()
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((outputs, sent))
        self._bytes += _size(outputs)
        self._wake.set()
        return sent

    async def run(self) -> None:
        """Send what is queued, for as long as the claim lasts."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._begun:
                await self._begin()
            # Step 3.
            sending, self._waiting = self._waiting, []
            outputs = [output for queued, _ in sending for output in queued]
            await self._producer.send(outputs)
            self._bytes -= _size(outputs)
            self._room.set()
            for _, sent in sending:
                sent.set_result(None)

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


def _size(outputs: Sequence[Output]) -> int:
    return sum(len(output.value) for output in outputs)
