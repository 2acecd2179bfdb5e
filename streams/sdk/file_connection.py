"""The service in a file: ledgers in this process, whose log and state are in a budget file.

``budget_file`` has the transactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from streams.kafka.results import log_name
from streams.ledger.outputs import Channel
from streams.sdk.budget_file import NO_END, BudgetFile
from streams.sdk.connection import PendingRequest
from streams.sdk.followers import Followed
from streams.sdk.local_connection import LocalConnection

_POLL = 0.1
"""Seconds between two looks at a file that another process may have written."""


class FileConnection(LocalConnection):
    """A connection that decides requests in transactions of a file.

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

    def _publish(self, requests: Mapping[int, bytes], waiting: PendingRequest) -> None:
        for partition, outputs in self._file.apply(requests, waiting.deadline).items():
            self._answer(partition, outputs)

    def _end(self, channel: Channel) -> int:
        return self._file.end(channel.value)

    def _between(
        self, channel: Channel, begin: int, end: int | None
    ) -> tuple[Sequence[Followed], int]:
        records = self._file.read(channel.value, begin, NO_END if end is None else end)
        followed = [Followed(record.partition, record.value, record.written) for record in records]
        return followed, records[-1].offset + 1 if records else begin

    def _wait(self, channel: Channel, position: int, seconds: float | None) -> None:
        self._closed.wait(_POLL)

    def _disconnect(self) -> None:
        self._file.close()
