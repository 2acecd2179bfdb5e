"""The service in this process: one ledger per partition, which answers at once.

There is no log and no Redis, so state is lost when the process ends.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from time import time

from streams.ledger.ledger import Ledger
from streams.ledger.outputs import Channel, Output
from streams.records import tombstone_offset
from streams.sdk.connection import PendingRequest
from streams.sdk.errors import Unusable
from streams.sdk.followers import Followed
from streams.sdk.local_connection import LocalConnection

KEPT_BYTES = 256 * 1024 * 1024
"""Bytes of decisions kept for readers of HALTs; older ones are dropped."""


class MemoryConnection(LocalConnection):
    """A connection that applies requests in the caller's thread, one after the other.

    Attributes:
        ledgers: by partition.
    """

    def __init__(self, partitions: int, timeout: float) -> None:
        super().__init__(partitions, timeout)
        self.ledgers = [Ledger(partition, partitions) for partition in range(partitions)]
        self._offsets = [0] * partitions
        self._published = threading.Condition()  # held while anything below changes
        self._kept = {
            Channel.HALTS: _Kept(most_bytes=KEPT_BYTES),
            Channel.ODOMETER: _Kept(compacted=True),
        }

    def _publish(self, requests: Mapping[int, bytes], waiting: PendingRequest) -> None:
        with self._published:
            for partition, request in requests.items():
                self._answer(partition, self._apply(partition, request))
            self._published.notify_all()

    def _apply(self, partition: int, request: bytes) -> Sequence[Output]:
        """Apply a request to a partition's ledger, and keep the outputs for readers."""
        ledger = self.ledgers[partition]
        try:
            outputs = ledger.apply(self._offsets[partition], request)
        except BaseException as error:
            # A ledger that was interrupted may be half-changed, so it is not used again.
            self._break(
                Unusable(
                    f"a charge was interrupted within the ledger ({error!r}): open another "
                    "Turnstile"
                )
            )
            raise
        ledger.state.take_delta()  # drop them: nothing is stored
        self._offsets[partition] += 1
        for output in outputs:
            if output.channel in self._kept:
                is_tombstone = tombstone_offset(output.value) is not None
                followed = Followed(partition, b"" if is_tombstone else output.value, time())
                self._kept[output.channel].add(followed, output.key)
        return outputs

    def _end(self, channel: Channel) -> int:
        with self._published:
            return self._kept[channel].end

    def _between(
        self, channel: Channel, begin: int, end: int | None
    ) -> tuple[Sequence[Followed], int]:
        with self._published:
            return self._kept[channel].between(begin, end)

    def _wait(self, channel: Channel, position: int, seconds: float | None) -> None:
        kept = self._kept[channel]
        with self._published:
            self._published.wait_for(
                lambda: kept.end > position or self._closed.is_set(), timeout=seconds
            )

    def _disconnect(self) -> None:
        with self._published:
            self._published.notify_all()


class _Kept:
    """The records of a channel, in order.

    Args:
        most_bytes: the limit above which the oldest records are dropped.
        compacted: whether a record replaces earlier ones with its key.
    """

    def __init__(self, *, most_bytes: float = math.inf, compacted: bool = False) -> None:
        self.end = 0
        self._most_bytes = most_bytes
        self._compacted = compacted
        self._records: dict[int, Followed] = {}
        self._newest: dict[bytes | None, int] = {}
        self._bytes = 0

    def add(self, record: Followed, key: bytes | None) -> None:
        if self._compacted:
            self._records.pop(self._newest.get(key, -1), None)
            self._newest[key] = self.end
        self._records[self.end] = record
        self.end += 1
        self._bytes += len(record.value)
        while self._bytes > self._most_bytes:
            oldest = self._records.pop(next(iter(self._records)))
            self._bytes -= len(oldest.value)

    def between(self, begin: int, end: int | None) -> tuple[list[Followed], int]:
        """Return the records from ``begin`` on, and the position after them."""
        stop = self.end if end is None else min(end, self.end)
        places = range(begin, stop)
        return [self._records[at] for at in places if at in self._records], stop
