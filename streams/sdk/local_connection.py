"""A connection to ledgers in this process: ``MemoryConnection`` and ``FileConnection``.

The ledgers are those that workers apply the log to, so decisions are the same.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from time import monotonic

from streams.ledger.outputs import Channel, Output
from streams.sdk.connection import Connection, Deadline
from streams.sdk.followers import Followed, Reading


class LocalConnection(Connection):
    """A connection that decides requests in the caller's thread."""

    def check_partitions(self) -> None:
        """Do nothing: the number of partitions never changes."""

    def read(self, channel: Channel, reading: Reading) -> Iterator[Followed]:
        """Yield the records of a channel; following waits for others to charge."""
        self.check_usable()
        end = self._end(channel)
        begin = 0 if reading.since == "earliest" else end
        if channel is Channel.ODOMETER:
            end = sys.maxsize  # a user who is charged meanwhile has only a later record
        return self._follow(channel, begin, None if reading.follow else end, reading.idle_timeout)

    def _follow(
        self, channel: Channel, position: int, end: int | None, idle_timeout: float | None
    ) -> Iterator[Followed]:
        idle_since = monotonic()
        while end is None or position < end:
            self.check_usable()
            records, position = self._between(channel, position, end)
            yield from records
            if records:
                idle_since = monotonic()
            elif end is not None:
                return
            else:
                left = None if idle_timeout is None else idle_since + idle_timeout - monotonic()
                if left is not None and left <= 0:
                    return
                self._wait(channel, position, left)

    def _flush(self, deadline: Deadline) -> None:
        """Do nothing: what was published has been applied."""

    @abstractmethod
    def _end(self, channel: Channel) -> int:
        """Return the position after the last record of a channel."""

    @abstractmethod
    def _between(
        self, channel: Channel, begin: int, end: int | None
    ) -> tuple[Sequence[Followed], int]:
        """Return the first records from a position on, and the position after them."""

    @abstractmethod
    def _wait(self, channel: Channel, position: int, seconds: float | None) -> None:
        """Wait until there may be a record at a position, or the connection is closed."""

    def _answer(self, partition: int, outputs: Sequence[Output]) -> None:
        """Deliver a partition's outputs to waiting callers."""
        for output in outputs:
            if output.channel is not Channel.ODOMETER:
                self._deliver(output.channel, partition, output.value)
