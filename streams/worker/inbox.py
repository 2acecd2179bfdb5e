"""Queues the arrived records of one partition until the processor applies them.

Invariants:

- ``position`` is the first offset that was not taken. Records leave in the order of their offsets,
  each once; records below ``position`` are dropped.
- A record leaves only if its offset is ``position``. If the first waiting record is a later one,
  ``gap`` returns its offset, and nothing leaves until ``pass_to`` or ``begin_at``.
- If more than ``ARRIVED_BYTES`` wait, the inbox blocks the stream, and thus the fetching.
- While the inbox is closed, it drops arriving records: the next owner fetches them again.
"""

from __future__ import annotations

import asyncio
from collections import deque

from streams.worker.ports import StreamRecord

ARRIVED_BYTES = 16 * 1024 * 1024


class Inbox:
    """The waiting records of one partition."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._closed = False
        self._arrived: deque[StreamRecord] = deque()
        self._bytes = 0
        self._fetch = 0  # counts how often fetching has restarted
        self._room = asyncio.Event()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._arrived)

    @property
    def has_room(self) -> bool:
        """True if an arriving record is queued at once."""
        return self._bytes < ARRIVED_BYTES

    @property
    def gap(self) -> int | None:
        """The offset of the first waiting record, if it is after ``position``; else None."""
        first = self.first
        return first.offset if first and first.offset > self.position else None

    @property
    def first(self) -> StreamRecord | None:
        """The first waiting record; None if none waits."""
        while self._arrived and self._arrived[0].offset < self.position:
            self._pop()
        return self._arrived[0] if self._arrived else None

    async def arrive(self, record: StreamRecord) -> None:
        """Queue a record, as soon as there is room."""
        fetch = self._fetch
        while not self.has_room and fetch == self._fetch:
            self._room.clear()
            await self._room.wait()
        if self._closed or fetch != self._fetch:
            return
        self._arrived.append(record)
        self._bytes += size_of(record)
        self._wake.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for a record; return False if none arrived in time."""
        if self._arrived:
            return True
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):  # ``wait_for`` would create a task
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def take(self, leader_epoch: int) -> StreamRecord | None:
        """Return the next record, if it has arrived and is of this leader epoch; else None."""
        first = self.first
        if first is None or first.offset > self.position or first.leader_epoch != leader_epoch:
            return None
        self.position += 1
        return self._pop()

    def pass_to(self, offset: int) -> None:
        """Continue at a later offset; the offsets before it hold no records."""
        self.position = offset

    def close(self) -> None:
        """Drop the waiting records and every record that arrives."""
        self._closed = True
        self._drop()

    def begin_at(self, position: int) -> None:
        """Queue records again; they are fetched from this offset on."""
        self._closed = False
        self.position = position
        self._drop()

    def _pop(self) -> StreamRecord:
        record = self._arrived.popleft()
        self._bytes -= size_of(record)
        self._room.set()
        return record

    def _drop(self) -> None:
        self._arrived.clear()
        self._bytes = 0
        self._fetch += 1
        self._room.set()


def size_of(record: StreamRecord) -> int:
    """Return the size of a record's value in bytes."""
    return len(record.value or b"")
