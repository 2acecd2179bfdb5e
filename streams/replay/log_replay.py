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
from dataclasses import replace
from time import monotonic
from typing import NamedTuple, TypeAlias

import msgspec

from streams.kafka.results import Extent
from streams.kafka.topics import NORMS
from streams.ledger.ledger import Ledger, Output, UnknownState, ledger_of
from streams.ledger.outputs import Channel
from streams.ledger.partition_errors import PartitionError
from streams.ledger.parts import joined
from streams.records import (
    MAX_QUOTED_BYTES,
    Answer,
    Decision,
    Request,
    RosterDecision,
    decode_answer,
    decode_request,
)
from streams.replay.archive import (
    Archive,
    ArchivedRecord,
    BrokenLog,
    HeadSource,
    StoredHead,
    other_log,
)
from streams.store.layout import Damaged

NAMES = {
    HeadSource.REDIS: "Redis",
    HeadSource.SNAPSHOT: "the last snapshot",
    HeadSource.FILE: "the file",
}


class Applied(NamedTuple):
    """A record of the log, and its outputs."""

    partition: int
    record: ArchivedRecord
    outputs: list[Output]

    @property
    def is_refused(self) -> bool:
        """Return whether the record was rejected and changed nothing."""
        rejects = (output for output in self.outputs if output.channel is Channel.REJECTS)
        quoted = (msgspec.msgpack.decode(output.value, type=_Quoted).record for output in rejects)
        # Of a record with several norm events, each is rejected alone, and quoted alone.
        return (self.record.value or b"")[:MAX_QUOTED_BYTES] in quoted

    @property
    def request(self) -> Request | None:
        """Return the request; None if it was rejected."""
        return None if self.is_refused else decode_request(self.record.value)

    @property
    def is_first(self) -> bool:
        """Return whether this record decided its step; a repeated request gets the old answer."""
        answer = msgspec.msgpack.decode(self.outputs[0].value, type=_Offset)
        return answer.offset == self.record.offset

    @property
    def decision(self) -> Decision:
        """Return the decision about a charge by norms, joined from its parts."""
        return joined([each for each in self.answers if isinstance(each, Decision)])

    @property
    def roster_decision(self) -> RosterDecision:
        """Return the decision about a step of a roster, joined from its parts."""
        return joined([each for each in self.answers if isinstance(each, RosterDecision)])

    @property
    def answers(self) -> Iterator[Answer]:
        """Yield the answers to the request."""
        return (decode_answer(o.value) for o in self.outputs if o.channel is Channel.HALTS)


class _Quoted(msgspec.Struct):
    record: bytes


class _Offset(msgspec.Struct):
    offset: int


class HeadMismatch(BrokenLog):
    """The log is not the one that workers applied.

    Attributes:
        stored: the other head, or a head for an offset beyond the end of the log.
        found: the head of this log, at this offset or at its end.
    """

    def __init__(self, stored: StoredHead, found: bytes, end: int) -> None:
        self.stored, self.found = stored, found
        what = (
            f"the log ends at offset {end}, before that: applied records were lost"
            if end < stored.next
            else "this log has another head there: it is not the one that was applied"
        )
        super().__init__(
            f"partition {stored.partition}: {NAMES[stored.holder]} stores the head of the hash "
            f"chain for offset {stored.next}, and {what}. Nothing derived from this log is "
            "reliable. See `turnstile status`, and keep everything that is stored as it is"
        )


def compared_at(heads: Sequence[StoredHead]) -> dict[str, int | None]:
    """Return the offset at which the log has each stored head; None if it was not compared."""
    return {head.holder.value: None if head.lacking else head.next for head in heads}


def in_words(compared: Sequence[Sequence[StoredHead]]) -> str:
    """Return how many stored heads the log was compared with, for people.

    Args:
        compared: the heads of each partition.
    """
    counts = (
        f"{NAMES[head.holder]} in {sum(not heads[at].lacking for heads in compared)} of "
        f"{len(compared)}"
        for at, head in enumerate(compared[0])
    )
    return f"The hash chain has the stored heads (partitions compared: {', '.join(counts)})."


def unproven(compared: Sequence[Sequence[StoredHead]]) -> Iterator[str]:
    """Yield the partitions whose log was compared with no stored head, and why, for people."""
    for heads in compared:
        if all(head.lacking for head in heads):
            whys = (f"{NAMES[head.holder]}: {head.lacking}" for head in heads)
            yield (
                f"partition {heads[0].partition}: no stored head could be compared, so this may "
                f"not be the log that workers applied ({'; '.join(whys)})"
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
        heads: the stored heads. At the end of the replay, the log has all that are not lacking.
        cut_off: why the log cannot be replayed; None if all needed records are there.
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
            extent: what to apply; by default all present records.
            heads: the stored heads; by default they are read here. They must be older than the
                extent, so that the log has reached them.
        """
        heads = archive.heads(partition) if heads is None else heads
        self.extent = archive.extent(NORMS, partition) if extent is None else extent
        place = partition, archive.partitions, archive.topic
        self.ledger, self.next = Ledger(*place, archive.erasure_keys), 0
        self.records = 0
        self._archive = archive
        lacking = None
        if self.extent.start:
            lacking = self._load_snapshot()
        self.began = self.next
        self.cut_off = None
        if self.extent.start > self.next:
            self.cut_off = (
                f"the log begins at offset {self.extent.start}, and {lacking}: earlier records "
                "are deleted, so nothing can be replayed"
            )
        if self.began:
            why = f"the log is replayed from the last snapshot, at offset {self.began}"
            heads = [
                head if head.lacking or head.next > self.began else replace(head, lacking=why)
                for head in heads
            ]
        self.heads = heads
        self._to_compare = [head for head in self.heads if not head.lacking]

    def _load_snapshot(self) -> str | None:
        """Begin with the state in the last snapshot; return why it cannot be used."""
        archive, state = self._archive, self.ledger.state
        place = state.partition, archive.partitions, archive.topic
        try:
            snapshot = archive.snapshot(state.partition)
            if snapshot is None:
                return "there is no snapshot"
            if lacking := other_log(archive, state.partition, snapshot.manifest):
                return lacking
            meta = snapshot.manifest.meta
            if meta.next < self.extent.start:
                return f"the last snapshot continues at {meta.next}, before that"
            stored, keys = snapshot.state(), archive.erasure_keys
            self.ledger, self.next = ledger_of(stored, *place, meta.chain, keys), meta.next
        except (Damaged, PartitionError, UnknownState) as error:
            return f"the last snapshot cannot be used: {error}"
        return None

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
            UnreadableService: Kafka does not answer.
        """
        partition = self.ledger.state.partition
        extent = Extent(max(self.next, self.extent.start), self.extent.end)
        reported = monotonic()
        for record in self._archive.read(NORMS, partition, extent):
            self._compare(record.offset)
            if before is not None:
                before(record.offset)
            outputs = self.ledger.apply(record.offset, record.value)
            self.ledger.state.take_delta()  # they are not stored
            self.next = record.offset + 1
            self.records += 1
            yield Applied(partition, record, outputs)
            if monotonic() - reported >= _PROGRESS_EVERY:
                reported = monotonic()
                progress(self)
        self.next = max(self.next, self.extent.end)
        self._compare(self.next)
        if self._to_compare:
            raise HeadMismatch(self._to_compare[0], self.ledger.chain.head, self.next)
        progress(self)

    def _compare(self, reached: int) -> None:
        """Compare the stored heads that cover records before an offset."""
        for stored in list(self._to_compare):
            if stored.next <= reached:
                if self.ledger.chain.head != stored.head:
                    raise HeadMismatch(stored, self.ledger.chain.head, reached)
                self._to_compare.remove(stored)
