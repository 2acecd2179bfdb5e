"""A budget file, as the topics and the state that commands replay and compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from streams.kafka.results import Extent
from streams.kafka.topics import NORMS
from streams.replay.archive import (
    Archive,
    ArchivedRecord,
    HeadSource,
    MissingRecord,
    StoredHead,
)
from streams.sdk.budget_file import BudgetFile
from streams.store.layout import Damaged, Meta
from streams.store.snapshot import Snapshot
from streams.store.stored_state import StoredState

if TYPE_CHECKING:
    from streams.answerer.published_answers import AnswerRecord


class FileArchive(Archive):
    """The log, the outputs and the state in a budget file.

    The offsets of outputs count the outputs of all partitions. A file that is only read is read as
    of the moment of its opening: a later charge replaces records of the odometer, which would be
    missing from an extent that was read before.

    Args:
        writable: whether the file can be moved into a service.

    Raises:
        UnusableFile: it cannot be read.
    """

    holder = HeadSource.FILE

    def __init__(self, path: str, timeout: float, *, writable: bool = False) -> None:
        self.file = BudgetFile(path, timeout, writable=writable)
        if not writable:
            self.file.freeze()
        self.topic, self.partitions = self.file.topic, self.file.partitions

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def extent(self, topic: str, partition: int) -> Extent:
        """Return where a topic begins and ends now."""
        if topic == NORMS:
            return Extent(0, self.file.end(NORMS, partition))
        return Extent(0, self.file.end(topic))

    def read(self, topic: str, partition: int, extent: Extent) -> Iterator[ArchivedRecord]:
        """Yield the records of an extent, in order."""
        # Damaged records, too: ``verify`` finds which record or output is another one.
        position = extent.start
        while records := self.file.read(topic, position, extent.end, partition, checked=False):
            for record in records:
                if topic == NORMS and record.offset != position:
                    raise MissingRecord(partition, position)
                stored = record.offset, record.key, record.value, record.written
                yield ArchivedRecord(*stored, is_damaged=record.is_damaged)
                position = record.offset + 1
        if topic == NORMS and position < extent.end:
            raise MissingRecord(partition, position)

    def answers(self) -> Iterator[AnswerRecord]:
        """Yield the answers in the file."""
        from streams.answerer.file_journal import published_in
        from streams.answerer.published_answers import distinct_answers

        return distinct_answers(published_in(self.file))

    def damaged_answers(self) -> Iterator[tuple[str, int]]:
        """Yield the table and the offset of each damaged record of an answerer."""
        from streams.answerer.file_journal import damaged_in

        return damaged_in(self.file)

    def heads(self, partition: int) -> Sequence[StoredHead]:
        """Return the head of the state in the file."""
        try:
            meta = Meta.of(self.file.fields(partition))
        except Damaged as damaged:
            return [StoredHead(partition, HeadSource.FILE, lacking=str(damaged))]
        return [StoredHead(partition, HeadSource.FILE, meta.next, meta.chain.head)]

    def snapshot(self, partition: int) -> Snapshot | None:
        """Return None: the file has the whole log, and needs no snapshots."""
        return None

    def load(self, partition: int) -> StoredState:
        """Return the state of a partition at one moment."""
        return self.file.stored(partition)
