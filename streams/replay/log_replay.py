"""Replays the log of one partition with the workers' ledger.

A log that begins at offset 0 is replayed from an empty state. A trimmed log is replayed from the
last snapshot, which is verified to be complete and otherwise trusted. Without a snapshot it cannot
be replayed.

Redis and the last snapshot, or a budget file, store the head of the hash chain at some offset. The
replay must have the same head there. Otherwise this is not the log that was applied, and
``HeadMismatch`` ends the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple, TypeAlias

import msgspec

from accounting import Mechanism, PoissonGaussian
from streams.kafka.results import Extent
from streams.kafka.topics import NORMS
from streams.ledger.ledger import Ledger, LostErasureKey, Output, UnknownState, ledger_of
from streams.ledger.outputs import Channel
from streams.ledger.partition_errors import PartitionError
from streams.ledger.validation import MECHANISMS
from streams.records import ChargeRoster, Import, Rejection, Request, decode_request
from streams.replay.archive import (
    Archive,
    ArchivedRecord,
    BrokenLog,
    HeadSource,
    MissingRecord,
    StoredHead,
    UnreadableService,
    other_log,
)
from streams.store.layout import Damaged

NAMES = {
    HeadSource.REDIS: "Redis",
    HeadSource.SNAPSHOT: "the last snapshot",
    HeadSource.FILE: "the file",
}


class Beginning(NamedTuple):
    """The state from which a log is replayed."""

    ledger: Ledger
    next: int  # the offset to apply next
    lacking: str = "there is no snapshot"  # why the state is not a later one


class Applied(NamedTuple):
    """A record of the log, and its outputs."""

    partition: int
    record: ArchivedRecord
    outputs: list[Output]

    @property
    def is_refused(self) -> bool:
        """Return whether the record was rejected and changed nothing."""
        return self.outputs[0].channel is Channel.REJECTS

    @property
    def request(self) -> Request | None:
        """Return the request; None if it was rejected."""
        return None if self.is_refused else decode_request(self.record.value)

    @property
    def is_first(self) -> bool:
        """Return whether this record decided its step; a repeated request gets the old answer."""
        answer = msgspec.msgpack.decode(self.outputs[0].value, type=_Offset)
        return answer.offset == self.record.offset


class _Offset(msgspec.Struct):
    offset: int


def mechanism_of_step(charge: ChargeRoster) -> Mechanism:
    """Return the mechanism that a roster step names."""
    if charge.mechanism == "poisson-gaussian":
        return PoissonGaussian(charge.scale, charge.sampling_rate)
    return MECHANISMS[charge.mechanism](charge.scale)


def beginning(archive: Archive, partition: int) -> Beginning:
    """Return an empty state, or the last snapshot if the log is trimmed or continues another log.

    Raises:
        UnreadableService: Kafka does not answer.
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
        if lacking := other_log(archive, partition, manifest):
            return nothing._replace(lacking=lacking)
        if manifest.meta.next < start:
            lacking = f"the last snapshot continues at {manifest.meta.next}, before that"
            return nothing._replace(lacking=lacking)
        ledger = ledger_of(
            snapshot.state(), partition, partitions, topic, manifest.meta.chain, keys
        )
    except (Damaged, PartitionError, UnknownState) as error:
        return nothing._replace(lacking=f"the last snapshot cannot be used: {error}")
    return Beginning(ledger, manifest.meta.next)


def _is_imported(archive: Archive, partition: int) -> bool:
    """Return whether a log continues the state of another log."""
    try:
        first = next(archive.read(NORMS, partition, Extent(0, 1)), None)
        return first is not None and isinstance(decode_request(first.value), Import)
    except (MissingRecord, Rejection):
        return False


class HeadMismatch(BrokenLog):
    """The log is not the one that workers applied.

    Attributes:
        holder: where another head is stored, or a head for an offset beyond the end of the log.
        offset: the head covers the records before it.
        expected: the stored head.
        found: the head of this log, at this offset or at its end.
    """

    def __init__(self, partition: int, stored: StoredHead, found: bytes, end: int) -> None:
        assert stored.next is not None
        self.partition, self.holder, self.offset = partition, stored.holder, stored.next
        self.expected, self.found = stored.head, found
        what = (
            f"the log ends at offset {end}, before that: applied records were lost"
            if end < stored.next
            else "this log has another head there: it is not the one that was applied"
        )
        super().__init__(
            f"partition {partition}: {NAMES[stored.holder]} stores the head of the hash chain for "
            f"offset {stored.next}, and {what}. Nothing derived from this log is "
            "reliable. See `turnstile status`, and keep everything that is stored as it is"
        )


@dataclass(frozen=True)
class Compared:
    """The stored heads with which the hash chain of a partition was compared.

    Attributes:
        offsets: the offset at which it has the stored head, by holder.
        lacking: why it was not compared with the head of a holder.
    """

    partition: int
    offsets: dict[HeadSource, int] = field(default_factory=dict)
    lacking: dict[HeadSource, str] = field(default_factory=dict)

    @property
    def holders(self) -> tuple[HeadSource, ...]:
        """Return the holders that can store a head of this log."""
        is_file = HeadSource.FILE in {**self.offsets, **self.lacking}
        return (HeadSource.FILE,) if is_file else (HeadSource.REDIS, HeadSource.SNAPSHOT)

    @property
    def shown(self) -> dict[str, int | None]:
        """Return the offset of each holder; None if there was nothing to compare."""
        return {holder.value: self.offsets.get(holder) for holder in self.holders}


def in_words(compared: Sequence[Compared]) -> str:
    """Return how many stored heads the log was compared with, for people."""
    counts = (
        f"{NAMES[holder]} in {sum(holder in each.offsets for each in compared)} of {len(compared)}"
        for holder in dict.fromkeys(holder for each in compared for holder in each.holders)
    )
    return f"The hash chain has the stored heads (partitions compared: {', '.join(counts)})."


def unproven(compared: Sequence[Compared]) -> Iterator[str]:
    """Yield the partitions whose log was compared with no stored head, and why, for people."""
    for each in compared:
        if not each.offsets:
            whys = (f"{NAMES[holder]}: {why}" for holder, why in each.lacking.items())
            yield (
                f"partition {each.partition}: no stored head could be compared, so this may not be "
                f"the log that workers applied ({'; '.join(whys)})"
            )


Progress: TypeAlias = Callable[["LogReplay"], None]
_PROGRESS_EVERY = 0.5  # seconds


class LogReplay:
    """The replay of one partition.

    Attributes:
        ledger: the present state.
        began: the offset from which the log is replayed: 0, or the end of a snapshot.
        next: the offset to apply next.
        records: the number of applied records.
        extent: the part of the log that is replayed.
        compared: the stored heads with which the ledger's was compared.
    """

    def __init__(
        self,
        archive: Archive,
        partition: int,
        extent: Extent | None = None,
        heads: Sequence[StoredHead] | None = None,
    ) -> None:
        """Prepare the replay.

        Args:
            archive: the topics.
            partition: of the log.
            extent: what to apply; by default all present records.
            heads: the stored heads; by default they are read here. They must be older than the
                extent, so that the log has reached them.
        """
        heads = archive.heads(partition) if heads is None else heads
        self.extent = archive.extent(NORMS, partition) if extent is None else extent
        begun = beginning(archive, partition)
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
                why = f"the log is replayed from the last snapshot, at offset {self.began}"
                self.compared.lacking[stored.holder] = why
            else:
                self._heads.append(stored)

    @property
    def cut_off(self) -> str | None:
        """Return why the log cannot be replayed; None if all needed records are there."""
        if self.extent.start <= self.next:
            return None
        return (
            f"the log begins at offset {self.extent.start}, and {self._lacking}: earlier records "
            "are deleted, so nothing can be replayed"
        )

    def steps(
        self, before: Callable[[int], None] | None = None, progress: Progress = lambda _: None
    ) -> Iterator[Applied]:
        """Apply all records in order, and yield each with its outputs.

        Args:
            before: called with the offset of each record before it is applied.
            progress: called with this replay twice a second, and at its end.

        Raises:
            BrokenLog: the log has a gap, or is not the one that was applied.
            PartitionError: the ledger rejects the log; the records before stay applied.
            UnreadableService: users were erased with a key that is not known here.
        """
        partition = self.ledger.state.partition
        extent = Extent(max(self.next, self.extent.start), self.extent.end)
        reported = monotonic()
        for record in self._archive.read(NORMS, partition, extent):
            self._compare(record.offset)
            if before is not None:
                before(record.offset)
            try:
                outputs = self.ledger.apply(record.offset, record.value)
            except LostErasureKey as lost:
                raise UnreadableService(f"partition {partition}: {lost}") from lost
            self.ledger.state.take_delta()  # they are not stored
            self.next = record.offset + 1
            self.records += 1
            yield Applied(partition, record, outputs)
            if monotonic() - reported >= _PROGRESS_EVERY:
                reported = monotonic()
                progress(self)
        self.next = max(self.next, self.extent.end)
        self._compare(self.next)
        if self._heads:
            raise HeadMismatch(partition, self._heads[0], self.ledger.chain.head, self.next)
        progress(self)

    def _compare(self, reached: int) -> None:
        """Compare the stored heads that cover records before an offset."""
        for stored in list(self._heads):
            if stored.next is not None and stored.next <= reached:
                head = self.ledger.chain.head
                if head != stored.head:
                    raise HeadMismatch(self.ledger.state.partition, stored, head, reached)
                self.compared.offsets[stored.holder] = stored.next
                self._heads.remove(stored)
