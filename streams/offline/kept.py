"""What Redis keeps of a partition, held against the state that the log leads to."""

from __future__ import annotations

from functools import partial

import msgspec

from streams.ledger.ledger import LayoutMismatch, Ledger, Output, UnknownState, ledger_of
from streams.offline.archive import Archive, Extent, States
from streams.offline.findings import Check, Findings
from streams.offline.states import differences
from streams.store.layout import LAYOUT, Damaged
from streams.store.snapshot import Snapshot
from streams.topics.topics import NORMS
from streams.worker.outbox import Packed

_NO_STATE = (LayoutMismatch, UnknownState, ValueError, LookupError, msgspec.DecodeError)
"""What is raised where what is kept makes no state."""


class Kept:
    """One partition, as Redis had it at one moment.

    Attributes:
        snapshot: what is kept, proven to be whole; None if there is none that could be compared.
        outbox: the outputs in it that are still to be published.
        lacking: why there is none, if so.
    """

    def __init__(self, states: States, partition: int, findings: Findings) -> None:
        self.snapshot: Snapshot | None = None
        self.outbox: list[Output] = []
        self.lacking: str | None = None
        self._findings = findings
        try:
            self.snapshot = states.load(partition)
        except Damaged as damaged:
            findings.add(Check.STATE, f"what Redis keeps is not whole: {damaged}")
            self.lacking = "the state of Redis: it is not whole"
            return
        if self.snapshot is None:
            self.lacking = "the state of Redis: it has none of this partition"
            return
        try:
            self.outbox = [
                output
                for _, packed in self.snapshot.outbox
                for output in msgspec.msgpack.decode(packed, type=Packed).outputs
            ]
        except msgspec.DecodeError as error:
            findings.add(Check.STATE, f"the outbox cannot be read: {error}")

    def is_before(self, offset: int) -> bool:
        """Whether what is kept stands at an offset, or before it."""
        return self.snapshot is not None and self.snapshot.next <= offset

    def has_seen(self, offset: int) -> bool:
        """Whether the record at an offset is applied in what is kept."""
        return self.snapshot is not None and offset < self.snapshot.next

    def compare(self, ledger: Ledger) -> None:
        """Hold it against the state where the log has come to the same offset."""
        snapshot = self.snapshot
        assert snapshot is not None
        meta, add = snapshot.meta, partial(self._findings.add, Check.STATE, offset=snapshot.next)
        for name, ours, theirs in (
            ("layout", LAYOUT, meta.layout),
            ("id of norms", ledger.topic.hex(), meta.topic),
            ("number of partitions", ledger.partitions, meta.partitions),
        ):
            if ours != theirs:
                add(f"the state has another {name} than the log", expected=ours, found=theirs)
        if tuple(ledger.chain) != tuple(meta.chain):
            problem = "another head of the chain: it is not this log that was applied"
            add(problem, expected=ledger.chain.head.hex(), found=meta.chain.head.hex())
        if meta.since > meta.next or meta.version < 1:
            problem = "meta contradicts itself: changes end before they begin, or no write was made"
            add(problem, found={"since": meta.since, "version": meta.version})
        try:
            found = ledger_of(
                snapshot, ledger.partition, ledger.partitions, ledger.topic, meta.chain
            )
        except _NO_STATE as error:
            add(f"the state cannot be put together: {error!r}")
            return
        for difference in differences(ledger, found):
            add(
                difference.problem,
                about=difference.about,
                expected=difference.expected,
                found=difference.found,
            )
            if self._findings.is_full(Check.STATE):
                return

    def say_behind(self, reached: int) -> None:
        """The log ended before what is kept."""
        assert self.snapshot is not None
        self._findings.add(
            Check.STATE,
            "Redis goes on beyond the end of the log: records that were applied are gone",
            offset=self.snapshot.next,
            expected={"at most": reached},
            found=self.snapshot.next,
        )

    def look(self, archive: Archive, extent: Extent) -> None:
        """What can be said where the log cannot be applied: whether Redis goes on in it."""
        if self.snapshot is None:
            return
        at, chain = self.snapshot.next, self.snapshot.meta.chain
        if not extent.start <= at <= extent.end:
            expected = {"from": extent.start, "to": extent.end}
            problem = "Redis goes on outside of the log"
            self._findings.add(Check.STATE, problem, offset=at, expected=expected, found=at)
        if chain.last >= extent.start:
            one = Extent(chain.last, chain.last + 1)
            records = list(archive.read(NORMS, self._findings.partition, one))
            if not records or not chain.ends_with(records[0].value):
                problem = "the last record that was applied is not in the log as it was applied"
                self._findings.add(Check.STATE, problem, offset=chain.last)
