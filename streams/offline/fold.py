"""The log of one partition, applied once more, by the ledger that workers apply it with.

A log that begins at 0 is applied from nothing. Of one that was trimmed the last checkpoint says
what came before (``streams.store.image``): it is whole, or it is not used, and what it says of the
records that are gone is taken as it is. Without one, such a log cannot be applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from streams.ledger.impasse import Impasse
from streams.ledger.ledger import (
    Ledger,
    LostErasureKey,
    Output,
    UnknownState,
    ledger_of,
)
from streams.ledger.outputs import Channel
from streams.offline.archive import Archive, Extent, Stored, Unreadable
from streams.schemas import Request, decode_request
from streams.store.layout import Damaged
from streams.topics.topics import NORMS


class Beginning(NamedTuple):
    """From where a log is applied."""

    ledger: Ledger
    next: int  # the offset to apply next
    lacking: str = "there is no checkpoint"  # why it is not further on, if the log begins later


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
        return None if self.is_refused else decode_request(self.record.value)


def beginning(archive: Archive, partition: int) -> Beginning:
    """Nothing, or the last checkpoint if the log was trimmed.

    Raises:
        Unreadable: Kafka does not answer.
    """
    topic, partitions = archive.topic, archive.partitions
    keys = archive.erasure_keys, archive.operator_keys
    nothing = Beginning(Ledger(partition, partitions, topic, *keys), 0)
    start = archive.extent(NORMS, partition).start
    if start == 0:
        return nothing
    try:
        image = archive.image(partition)
        if image is None:
            return nothing
        manifest = image.manifest
        if (manifest.topic, manifest.partitions) != (topic.hex(), partitions):
            return nothing._replace(lacking="the last checkpoint is of another log")
        if manifest.next < start:
            lacking = f"the last checkpoint goes on at {manifest.next}, before that"
            return nothing._replace(lacking=lacking)
        ledger = ledger_of(image.snapshot(), partition, partitions, topic, manifest.chain, *keys)
    except (Damaged, Impasse, UnknownState) as error:
        return nothing._replace(lacking=f"the last checkpoint cannot be used: {error}")
    return Beginning(ledger, manifest.next)


class Fold:
    """A ledger on its way along a log.

    Attributes:
        ledger: the state by now.
        began: where it began: 0, or where a checkpoint ends.
        next: the offset to apply next.
        records: how many were applied.
    """

    def __init__(self, archive: Archive, partition: int, extent: Extent) -> None:
        begun = beginning(archive, partition)
        self.ledger, self.next = begun.ledger, begun.next
        self.began = begun.next
        self.extent = extent
        self.records = 0
        self._archive = archive
        self._lacking = begun.lacking

    @property
    def cut_off(self) -> str | None:
        """Why the log cannot be applied, if records of it are gone that would have to be."""
        if self.extent.start <= self.next:
            return None
        return (
            f"the log begins at offset {self.extent.start}, and {self._lacking}: what came before "
            "is gone, so that nothing can be applied"
        )

    def steps(self, before: Callable[[int], None] | None = None) -> Iterator[Applied]:
        """Apply all records, one after the other.

        Args:
            before: called with the offset of each record that is about to be applied.

        Raises:
            Impasse: the ledger cannot go on; what was applied before stays.
            Unreadable: users came who were forgotten under a key that is not known here.
        """
        partition = self.ledger.partition
        extent = Extent(max(self.next, self.extent.start), self.extent.end)
        for record in self._archive.read(NORMS, partition, extent):
            if before is not None:
                before(record.offset)
            try:
                outputs = self.ledger.apply(record.offset, record.value)
            except LostErasureKey as lost:
                raise Unreadable(f"partition {partition}: {lost}") from lost
            self.ledger.take_changes()  # which nobody stores
            self.next = record.offset + 1
            self.records += 1
            yield Applied(partition, record, outputs)
        self.next = max(self.next, self.extent.end)
