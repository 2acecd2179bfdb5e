"""The log of one partition, applied once more, by the ledger that workers apply it with.

Where it begins is a seam: ``Beginning`` is a state and the offset to go on from, and whoever has
one (a checkpoint of state, for example) hands in how to find it. Without one it is nothing, at
offset 0, so that a log which begins later cannot be applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from streams.ledger.ledger import Ledger, Output
from streams.ledger.outputs import Channel
from streams.offline.archive import Archive, Extent, Stored
from streams.schemas import Rejection, Request, decode_request
from streams.topics.topics import NORMS


class Beginning(NamedTuple):
    """From where a log is applied."""

    ledger: Ledger
    next: int  # the offset to apply next


Beginnings: TypeAlias = Callable[[int], Beginning]
"""Of each partition."""


class Applied(NamedTuple):
    """A record of the log, and what came of it."""

    partition: int
    record: Stored
    outputs: list[Output]

    @property
    def is_refused(self) -> bool:
        """Whether it changed nothing, and was answered with a reject."""
        return self.outputs[0].channel is Channel.REJECTS

    @property
    def request(self) -> Request | None:
        """What was asked for; None if it was refused."""
        if self.is_refused:
            return None
        try:
            return decode_request(self.record.value)
        except Rejection:  # pragma: no cover - it was applied
            return None


def from_nothing(archive: Archive) -> Beginnings:
    """Every partition from its first record."""

    def begin(partition: int) -> Beginning:
        return Beginning(Ledger(partition, archive.partitions, archive.topic), 0)

    return begin


class Fold:
    """A ledger on its way along a log.

    Attributes:
        ledger: the state by now.
        next: the offset to apply next.
        records: how many were applied.
    """

    def __init__(self, archive: Archive, beginning: Beginning, extent: Extent) -> None:
        self.ledger, self.next = beginning
        self.extent = extent
        self.records = 0
        self._archive = archive

    @property
    def is_cut_off(self) -> bool:
        """Whether records are gone from the log that would have to be applied."""
        return self.extent.start > self.next

    def steps(self, before: Callable[[int], None] | None = None) -> Iterator[Applied]:
        """Apply all records, one after the other.

        Args:
            before: called with the offset of each record that is about to be applied.

        Raises:
            LayoutMismatch: the log is of another P; what was applied before stays.
        """
        partition = self.ledger.partition
        extent = Extent(max(self.next, self.extent.start), self.extent.end)
        for record in self._archive.read(NORMS, partition, extent):
            if before is not None:
                before(record.offset)
            outputs = self.ledger.apply(record.offset, record.value)
            self.ledger.take_changes()  # which nobody stores
            self.next = record.offset + 1
            self.records += 1
            yield Applied(partition, record, outputs)
        self.next = max(self.next, self.extent.end)
