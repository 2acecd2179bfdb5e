"""Records of one partition on their way from the stream to the batch loop.

What always holds:

- ``position`` is the first offset that was not taken. Records leave in the order of their offsets,
  each once; what was taken before is left out.
- A record leaves only if its offset is ``position``. If a later one waits first, ``gap`` says so,
  and nothing leaves until ``pass_to`` or ``begin_at``.
- More than ``ARRIVED_BYTES`` waiting hold up the stream, and so the fetching.
- While it is closed, what arrives is left alone: whoever decides the partition fetches it again.
"""

from __future__ import annotations

import asyncio
from collections import deque

from streams.worker.ports import LogRecord

ARRIVED_BYTES = 16 * 1024 * 1024


class Intake:
    """The records of one partition that wait to be applied."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._closed = False
        self._arrived: deque[LogRecord] = deque()
        self._bytes = 0
        self._fetch = 0  # counts the times that fetching begins anew
        self._room = asyncio.Event()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._arrived)

    @property
    def has_room(self) -> bool:
        """Whether a record that arrives is queued at once."""
        return self._bytes < ARRIVED_BYTES

    @property
    def gap(self) -> int | None:
        """The offset of the record that waits first, if it is beyond the next one."""
        first = self.first
        return first.offset if first and first.offset > self.position else None

    @property
    def first(self) -> LogRecord | None:
        """The record that waits first; those that were taken before are left out."""
        while self._arrived and self._arrived[0].offset < self.position:
            self._pop()
        return self._arrived[0] if self._arrived else None

    async def arrive(self, record: LogRecord) -> None:
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
        """Wait for a record; False if none came in time."""
        if self._arrived:
            return True
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):  # ``wait_for`` would make a task of it
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def take(self, leader_epoch: int) -> LogRecord | None:
        """The next record, if it has arrived and is of this leader epoch."""
        first = self.first
        if first is None or first.offset > self.position or first.leader_epoch != leader_epoch:
            return None
        self.position += 1
        return self._pop()

    def pass_to(self, offset: int) -> None:
        """Go on at a later offset: what lies between holds no records."""
        self.position = offset

    def close(self) -> None:
        """Drop what waits and leave alone what comes."""
        self._closed = True
        self._drop()

    def begin_at(self, position: int) -> None:
        """Take records again, which are fetched anew from this offset on."""
        self._closed = False
        self.position = position
        self._drop()

    def _pop(self) -> LogRecord:
        record = self._arrived.popleft()
        self._bytes -= size_of(record)
        self._room.set()
        return record

    def _drop(self) -> None:
        self._arrived.clear()
        self._bytes = 0
        self._fetch += 1
        self._room.set()


def size_of(record: LogRecord) -> int:
    """Bytes of its value."""
    return len(record.value or b"")
