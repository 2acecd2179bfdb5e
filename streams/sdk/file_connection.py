"""The service in a file: ledgers in this process, whose log and state are in a budget file.

The ledgers are those that workers apply the log to, so decisions are the same. ``budget_file`` has
the transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from streams.kafka.results import log_name
from streams.ledger.outputs import Channel
from streams.sdk.budget_file import BudgetFile
from streams.sdk.connection import Connection, PendingRequest
from streams.sdk.followers import Followed, Reading

_POLL = 0.1
"""Seconds between two looks at a file that another process may have written."""
_NO_END = 1 << 62


class FileConnection(Connection):
    """A connection that decides requests in the caller's thread, in transactions of a file.

    Args:
        path: an existing budget file.
        timeout: seconds that a call waits for other processes by default.

    Raises:
        UnusableFile: the file cannot be used. It was not changed.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self._file = BudgetFile(path, timeout)
        try:
            self._file.load()
        except BaseException:
            self._file.close()
            raise
        super().__init__(self._file.partitions, timeout, self._file.topic)
        self.where = f"in {path}"
        self.log_name = log_name(Path(path).name, self._file.topic)

    def check_partitions(self) -> None:
        """Do nothing: the number of partitions never changes."""

    def read(self, channel: Channel, reading: Reading) -> Iterator[Followed]:
        """Yield the records of halts, rejects or odometer; following waits for all processes."""
        self.check_usable()
        end = self._file.end(channel.value)
        begin = 0 if reading.since == "earliest" else end
        return self._read(channel, begin, _NO_END if reading.follow else end, reading)

    def _publish(self, waiting: PendingRequest) -> None:
        decided = self._file.apply(waiting.requests, waiting.deadline)
        for partition, outputs in decided.items():
            for output in outputs:
                if output.channel is not Channel.ODOMETER:
                    self._deliver(output.channel, partition, output.value)

    def _read(
        self, channel: Channel, position: int, end: int, reading: Reading
    ) -> Iterator[Followed]:
        idle_since = monotonic()
        while position < end:
            self.check_usable()
            records = self._file.read(channel.value, position, end)
            for record in records:
                yield Followed(record.partition, record.value, record.written)
                position, idle_since = record.offset + 1, monotonic()
            if not records:
                idle_for = monotonic() - idle_since
                is_over = reading.idle_timeout is not None and idle_for >= reading.idle_timeout
                if is_over or not reading.follow:
                    return
                self._closed.wait(_POLL)

    def _disconnect(self) -> None:
        self._file.close()
