"""Sends odometer records so that an older one never follows a newer one.

The topic is compacted: the last record of each user stays. A worker that was paused between its
commit and its publishing would send an older record after its successor sent a newer one, and the
older one would stay. So each partition has a producer with its own transactional id, and Kafka
accepts only the producer that began last (its epoch). If Redis is rolled back, the worker applies
records again and produces older odometer records again. If Redis is then replaced by a newer copy,
the newer ones are not produced. So the worker never sends what the topic already has (``_begin``).

Why this is enough: everything that an older owner may still send was in the outbox when the
partition was acquired. The new owner sends it again, under its own epoch, before anything newer.

Invariants of the topic, apart from aborted transactions and whatever happens to Redis: log offsets
never fall, and every odometer record that is older than the last one was there before it. For each
sender begins at the last record or before it, with everything that outbox and log contain from
there on; and what Redis has deleted was confirmed. So the record that stays of a user is the
newest one, as soon as outbox and log have been processed.

Readers may read uncommitted: an odometer record of an aborted transaction is as true as any other,
it is sent again, and of two records the one with the higher offset counts.

The tombstones of erased users are sent in the same order as other odometer records. Older records
of such a user do not follow them.

Limitation: if Kafka itself loses odometer records from the end of this topic, the bound of a user
is too low until it rises again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from streams.kafka.results import STOP_WITHIN, Origin
from streams.ledger.ledger import Output
from streams.records import tombstone_offset
from streams.worker.ports import FencedProducer

WAITING_BYTES = 32 * 1024 * 1024
"""If more bytes wait to be sent, publishing waits, and thus deciding."""
LINGER = 0.1
"""Seconds for which records wait for others. A transaction costs the broker about as much as a
small step, so one for each step would slow down the decisions."""

_LAST_OFFSET = 2**63 - 1


class NotTheOwner(Exception):
    """Another worker owns the partition by now; nothing was sent."""


class Placed(msgspec.Struct, frozen=True):
    """The field of an odometer record that this module reads."""

    offset: int


@dataclass(frozen=True)
class UnsentBatch:
    """The odometer records of one batch, until they are sent."""

    first: int  # the offset at which the batch begins
    origin: Origin
    outputs: Sequence[Output]
    sent: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def since(self, newest: int) -> Sequence[Output]:
        """Return the records that are not older than an offset."""
        if self.first >= newest:
            return self.outputs
        return [output for output in self.outputs if _offset_of(output.value) >= newest]


class OdometerPublisher:
    """Sends the odometer records of one partition while its ownership lasts."""

    def __init__(
        self,
        partition: int,
        producer: FencedProducer,
        is_held: Callable[[], Awaitable[bool]],
        is_in_log: Callable[[int, Origin], Awaitable[bool]],
    ) -> None:
        """Prepare; nothing is sent yet.

        ``is_held`` returns whether this worker still owns the partition, and ``is_in_log`` whether
        the log contains a record at an offset, of an origin.
        """
        self._partition = partition
        self._producer = producer
        self._is_held = is_held
        self._is_in_log = is_in_log
        self._begun = False
        self._newest = -1  # the newest offset on the topic when this owner began
        self._waiting: list[UnsentBatch] = []
        self._bytes = 0
        self._marks = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    async def publish(
        self, first: int, origin: Origin, outputs: Sequence[Output]
    ) -> asyncio.Future[None]:
        """Queue a batch's odometer records, with its first offset; return a future of all."""
        while self._bytes >= WAITING_BYTES:
            self._room.clear()
            await self._room.wait()
        waiting = UnsentBatch(first, origin, outputs)
        self._waiting.append(waiting)
        self._bytes += _size(outputs)
        self._wake.set()
        return waiting.sent

    def mark(self) -> None:
        """Append the end of a transaction to the topic, even if nothing waits to be sent
        (``OwnedPartitions.keep_cleanable``).
        """
        self._marks = True
        self._wake.set()

    async def run(self) -> None:
        """Send queued records while the ownership lasts."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._begun:
                await self._begin()
            await asyncio.sleep(LINGER)
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
        """Disconnect; the next owner sends again what was not confirmed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._producer.stop(), STOP_WITHIN)

    async def _begin(self) -> None:
        # Only when the first record is to be sent: this fences all older producers.
        self._begun = True
        await self._producer.start()
        # After that, because a worker that wakes up too late has fenced its successor, and must not
        # send anything. An owner that passes this line started its producer before its successor
        # acquired the partition, and thus before the successor's producer started, which fences it.
        if not await self._is_held():
            raise NotTheOwner(f"another worker owns partition {self._partition} by now")
        # A committed record, because compaction removes aborted ones. It counts if the record that
        # led to it is in the log: then everything before it is of this log too.
        last = await self._producer.last()
        offset = -1 if last is None else _offset_of(last.value)
        if last and offset >= 0 and await self._is_in_log(offset, last.origin):
            self._newest = offset


def _offset_of(odometer: bytes) -> int:
    """Return the offset of the record that led to it; -1 if no worker wrote it."""
    if (offset := tombstone_offset(odometer)) is None:
        try:
            offset = msgspec.msgpack.decode(odometer, type=Placed).offset
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return -1
    return offset if offset <= _LAST_OFFSET else -1  # Kafka's client fails with a larger one


def _size(outputs: Sequence[Output]) -> int:
    return sum(len(output.value) for output in outputs)
