"""The log of one partition, applied once more, by the ledger that workers apply it with.

A log that begins at 0 is applied from nothing. Of one that was trimmed the last snapshot says
what came before (``streams.store.snapshot``): it is whole, or it is not used, and what it says of
the records that are gone is taken as it is. Without one, such a log cannot be applied.

The head of the hash chain must be the one that Redis and the last snapshot store for the same
offset. If it is not, another log was applied than the one that is read here, and ``HeadMismatch``
ends the replay: no result of it would hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streams.kafka.results import Extent
from streams.kafka.topics import NORMS
from streams.ledger.ledger import (
    Ledger,
    LostErasureKey,
    Output,
    UnknownState,
    ledger_of,
)
from streams.ledger.outputs import Channel
from streams.ledger.partition_error import PartitionError
from streams.records import Import, Rejection, Request, decode_request
from streams.replay.archive import (
    Archive,
    ArchivedRecord,
    BrokenLog,
    HeadSource,
    MissingRecord,
    StoredHead,
    UnreadableService,
)
from streams.store.layout import Damaged

NAMES = {HeadSource.REDIS: "Redis", HeadSource.SNAPSHOT: "the last snapshot"}


class Beginning(NamedTuple):
    """From where a log is applied."""

    ledger: Ledger
    next: int  # the offset to apply next
    lacking: str = "there is no snapshot"  # why it is not further on, if the log begins later


class Applied(NamedTuple):
    """A record of the log, and what came of it."""

    partition: int
    record: ArchivedRecord
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
    """Nothing, or the last snapshot if the log was trimmed or continues another log.

    Raises:
        Unreadable: Kafka does not answer.
    """
    topic, partitions = archive.topic, archive.partitions
    keys = archive.erasure_keys
    nothing = Beginning(Ledger(partition, partitions, topic, keys), 0)
    start = archive.extent(NORMS, partition).start
    if start == 0 and not _is_imported(archive, partition):
        return nothing
    try:
        snapshot = archive.snapshot(partition)
        if snapshot is None:
            return nothing
        manifest = snapshot.manifest
        if (manifest.topic, manifest.partitions) != (topic.hex(), partitions):
            return nothing._replace(lacking="the last snapshot is of another log")
        if manifest.next < start:
            lacking = f"the last snapshot goes on at {manifest.next}, before that"
            return nothing._replace(lacking=lacking)
        ledger = ledger_of(snapshot.state(), partition, partitions, topic, manifest.chain, keys)
    except (Damaged, PartitionError, UnknownState) as error:
        return nothing._replace(lacking=f"the last snapshot cannot be used: {error}")
    return Beginning(ledger, manifest.next)


def _is_imported(archive: Archive, partition: int) -> bool:
    """Return whether the state of a log begins with that of another log."""
    try:
        first = next(archive.read(NORMS, partition, Extent(0, 1)), None)
        return first is not None and isinstance(decode_request(first.value), Import)
    except (MissingRecord, Rejection):
        return False


class HeadMismatch(BrokenLog):
    """The log that is read is not the one that workers applied.

    Attributes:
        partition: of the log.
        holder: what stores another head, or a head for an offset beyond the end of the log.
        offset: the head is that of all records below it.
        expected: the stored head.
        found: the head of the log that is read, at this offset or at its end.
    """

    def __init__(self, partition: int, stored: StoredHead, found: bytes, end: int) -> None:
        assert stored.next is not None
        self.partition, self.holder, self.offset = partition, stored.holder, stored.next
        self.expected, self.found = stored.head, found
        what = (
            f"the log ends at offset {end}, before that: applied records were lost"
            if end < stored.next
            else "the log that was read has another head there: it is not the one that was applied"
        )
        super().__init__(
            f"partition {partition}: {NAMES[stored.holder]} stores the head of the hash chain for "
            f"offset {stored.next}, and {what}. Nothing that follows from this log can be relied "
            "on. See `turnstile status`, and keep the topics and Redis as they are"
        )


@dataclass(frozen=True)
class Compared:
    """With which stored heads the head of a partition's hash chain was compared.

    Attributes:
        partition: of the log.
        offsets: where it was found to be the stored one, by holder.
        lacking: why it was not compared with one of the others.
    """

    partition: int
    offsets: dict[HeadSource, int] = field(default_factory=dict)
    lacking: dict[HeadSource, str] = field(default_factory=dict)

    @property
    def shown(self) -> dict[str, int | None]:
        """The offset for every holder; None if there was nothing to compare with."""
        return {holder.value: self.offsets.get(holder) for holder in HeadSource}


def in_words(compared: Sequence[Compared]) -> str:
    """Say with how many of the stored heads the log was compared."""
    counts = (
        f"{NAMES[holder]} in {sum(holder in each.offsets for each in compared)} of {len(compared)}"
        for holder in HeadSource
    )
    return f"The hash chain has the stored heads (partitions compared: {', '.join(counts)})."


def unproven(compared: Sequence[Compared]) -> Iterator[str]:
    """Say of which partitions the log was compared with no stored head, and why."""
    for each in compared:
        if not each.offsets:
            whys = (f"{NAMES[holder]}: {why}" for holder, why in each.lacking.items())
            yield (
                f"partition {each.partition}: nothing shows that this is the log that workers "
                f"applied, because no stored head could be compared ({'; '.join(whys)})"
            )


class Fold:
    """A ledger on its way along a log.

    Attributes:
        ledger: the state by now.
        began: where it began: 0, or where a snapshot ends.
        next: the offset to apply next.
        records: how many were applied.
        extent: of the log that is applied.
        compared: with which stored heads that of the ledger was compared so far.
    """

    def __init__(
        self,
        archive: Archive,
        partition: int,
        extent: Extent | None = None,
        heads: Sequence[StoredHead] | None = None,
        begun: Beginning | None = None,
    ) -> None:
        """Begin at the start of a log.

        Args:
            archive: the topics.
            partition: of the log.
            extent: what to apply; all that is there by now if it is not given.
            heads: what the heads are compared with. It has to be read before the extent, which
                then reaches as far. Read here if it is not given.
            begun: the state to begin with. Computed from the log and its last snapshot if it is
                not given.
        """
        heads = archive.heads(partition) if heads is None else heads
        self.extent = archive.extent(NORMS, partition) if extent is None else extent
        begun = begun or beginning(archive, partition)
        self.ledger, self.next = begun.ledger, begun.next
        self.began = begun.next
        self.records = 0
        self.compared = Compared(partition)
        self._archive = archive
        self._lacking = begun.lacking
        self._heads: list[StoredHead] = []  # that are still to be compared
        for stored in heads:
            if stored.next is None:
                self.compared.lacking[stored.holder] = stored.lacking
            elif self.began and stored.next <= self.began:
                why = f"the log is applied from the last snapshot on, at offset {self.began}"
                self.compared.lacking[stored.holder] = why
            else:
                self._heads.append(stored)

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
            BrokenLog: the log has a gap, or is not the one that was applied.
            PartitionError: the ledger cannot go on; what was applied before stays.
            UnreadableService: users came who were erased under a key that is not known here.
        """
        partition = self.ledger.state.partition
        extent = Extent(max(self.next, self.extent.start), self.extent.end)
        for record in self._archive.read(NORMS, partition, extent):
            self._compare(record.offset)
            if before is not None:
                before(record.offset)
            try:
                outputs = self.ledger.apply(record.offset, record.value)
            except LostErasureKey as lost:
                raise UnreadableService(f"partition {partition}: {lost}") from lost
            self.ledger.state.take_changes()  # which nobody stores
            self.next = record.offset + 1
            self.records += 1
            yield Applied(partition, record, outputs)
        self.next = max(self.next, self.extent.end)
        self._compare(self.next)
        if self._heads:
            raise HeadMismatch(partition, self._heads[0], self.ledger.chain.head, self.next)

    def _compare(self, reached: int) -> None:
        """Compare the stored heads of all records below an offset."""
        for stored in list(self._heads):
            if stored.next is not None and stored.next <= reached:
                head = self.ledger.chain.head
                if head != stored.head:
                    raise HeadMismatch(self.ledger.state.partition, stored, head, reached)
                self.compared.offsets[stored.holder] = stored.next
                self._heads.remove(stored)
