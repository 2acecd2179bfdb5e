"""Publishes the outputs of one partition, from their commit to their confirmation by the broker.

Invariants:

- Redis stores an outbox entry from the commit that led to it until the broker has confirmed it. A
  new owner publishes the entries of the outbox again, before anything newer.
- Decisions and odometer records are in separate entries. Decisions are published at once, through
  a producer that all partitions share, and their entries are deleted without waiting for odometer
  records.
- If an output cannot be sent, ``broken`` is set, and nothing more is confirmed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from streams.kafka.results import Origin
from streams.ledger.ledger import Channel, Output
from streams.records import encode
from streams.store.layout import outbox_entry_name, outbox_entry_place
from streams.worker.odometer_publisher import OdometerPublisher
from streams.worker.ports import Publisher

logger = logging.getLogger("turnstile.worker")

ENTRY_BYTES = 32 * 1024 * 1024
"""An outbox entry of at least this size takes no further output."""
UNPUBLISHED_ENTRIES = 8
"""The largest number of entries with decisions that are being published."""


@dataclass(frozen=True)
class OutboxEntry:
    """Outputs that are stored, published and deleted together."""

    name: str
    leader_epoch: int  # of the records that led to the outputs
    outputs: Sequence[Output]
    packed: bytes

    @property
    def is_odometer(self) -> bool:
        """True if the entry holds odometer records, and nothing else."""
        return self.outputs[0].channel is Channel.ODOMETER

    @property
    def first(self) -> int:
        """The offset at which the batch of the entry begins."""
        return outbox_entry_place(self.name)[0]


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """An outbox entry as Redis stores it."""

    leader_epoch: int
    outputs: Sequence[Output]


class Outbox:
    """The outputs of one partition that are to be published, or that Redis still stores."""

    def __init__(
        self,
        partition: int,
        topic: bytes,
        kept: Sequence[tuple[str, bytes]],
        publisher: Publisher,
        odometers: OdometerPublisher,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.broken = False
        self._partition = partition
        self._topic = topic
        self._kept = kept
        self._publisher = publisher
        self._odometers = odometers
        self._on_error = on_error
        self._published: list[str] = []
        self._under_way = asyncio.Semaphore(UNPUBLISHED_ENTRIES)
        self._confirming: dict[asyncio.Task[None], None] = {}  # in order
        self._sending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to send."""
        self._sending = self._spawn(self._odometers.run())

    async def republish(self) -> None:
        """Publish again the outputs that the previous owner may not have published."""
        kept, self._kept = self._kept, []
        for name, packed in kept:
            found = msgspec.msgpack.decode(packed, type=Packed)
            await self.publish(OutboxEntry(name, found.leader_epoch, found.outputs, packed))

    async def publish(self, outbox_entry: OutboxEntry) -> None:
        """Publish an entry that Redis stores; wait while too many are under way."""
        if outbox_entry.is_odometer:
            origin = Origin(self._topic, outbox_entry.leader_epoch)
            sent = [await self._odometers.publish(outbox_entry.first, origin, outbox_entry.outputs)]
            self._confirm(self._confirmed(outbox_entry.name, sent))
        else:
            await self._under_way.acquire()
            queued = await self._publisher.publish(self._partition, outbox_entry.outputs)
            confirming = self._confirm(self._confirmed(outbox_entry.name, queued))
            confirming.add_done_callback(lambda _: self._under_way.release())

    def take_published(self) -> list[str]:
        """Return the entries that the broker has confirmed since the last call: Redis may delete
        them.
        """
        published, self._published = self._published, []
        return published

    async def settle(self, within: float) -> None:
        """Wait for what is under way, for at most this many seconds."""
        if self._confirming:
            await asyncio.wait(self._confirming, timeout=within)

    async def close(self) -> None:
        """Stop sending. The next owner publishes what was not confirmed."""
        self.broken = True
        for task in (*self._confirming, *([self._sending] if self._sending else [])):
            task.cancel()
        await self._odometers.stop()

    async def _confirmed(self, name: str, sent: Sequence[Awaitable[object]]) -> None:
        await asyncio.gather(*sent)
        self._published.append(name)

    def _confirm(self, confirmed: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._spawn(confirmed)
        self._confirming[task] = None
        task.add_done_callback(self._confirming.pop)
        return task

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self.broken:
            self.broken = True
            for confirming in self._confirming:
                confirming.cancel()
            self._on_error(error)


def outbox_entries_of(
    first: int, leader_epoch: int, outputs: Sequence[Output]
) -> list[OutboxEntry]:
    """Return the outbox entries of the batch that begins at an offset, in the order of the log."""
    groups: list[list[Output]] = []
    for of_odometer in (False, True):
        size = ENTRY_BYTES
        for output in outputs:
            if (output.channel is Channel.ODOMETER) is of_odometer:
                if size >= ENTRY_BYTES:
                    groups.append([])
                    size = 0
                groups[-1].append(output)
                size += len(output.value)
    return [
        OutboxEntry(
            outbox_entry_name(first, number),
            leader_epoch,
            group,
            encode(Packed(leader_epoch, group)),
        )
        for number, group in enumerate(groups)
    ]
