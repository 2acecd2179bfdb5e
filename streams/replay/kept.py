"""What is kept of a partition, in Redis or as a snapshot, held against what the log leads to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from streams.kafka.results import Extent
from streams.kafka.topics import NORMS
from streams.ledger.ledger import (
    Ledger,
    Output,
    PartitionError,
    UnknownState,
    ledger_of,
)
from streams.replay.archive import Archive, HeadSource, StoredHead
from streams.replay.findings import Check, Findings
from streams.replay.states import differences
from streams.store.layout import LAYOUT, Damaged
from streams.store.stored_state import StoredState
from streams.worker.outbox import Packed

_NO_STATE = (
    *(PartitionError, UnknownState),
    *(ValueError, LookupError, msgspec.DecodeError),
)
"""What is raised where what is kept makes no state."""


class KeptPartition:
    """One partition, as it was at one moment.

    Attributes:
        stored: what is kept, proven to be whole; None if there is none that could be compared, or
            none any more.
        next: the offset at which it goes on.
        outbox: the outputs in it that are still to be published.
        lacking: why there is none, if so.
        at: the offset at which it was compared; None if it was not.
    """

    def __init__(
        self,
        check: Check,
        load: Callable[[], StoredState | None],
        findings: Findings,
    ) -> None:
        """Load it.

        Args:
            check: STATE, of Redis, or SNAPSHOT.
            load: what gives it, and raises ``Damaged`` if it is not whole.
            findings: of the partition.
        """
        self.stored: StoredState | None = None
        self.outbox: list[Output] = []
        self.lacking: str | None = None
        self.next: int | None = None
        self.at: int | None = None
        self._check = check
        self._who = "Redis" if check is Check.STATE else "the snapshot"
        self._findings = findings
        try:
            self.stored = load()
        except Damaged as damaged:
            findings.add(check, f"what {self._who} keeps is not whole: {damaged}")
            self.lacking = f"what {self._who} keeps: it is not whole"
            return
        if self.stored is None:
            self.lacking = f"what {self._who} keeps: there is nothing of this partition"
            return
        self.next = self.stored.next
        try:
            self.outbox = [
                output
                for _, packed in self.stored.outbox
                for output in msgspec.msgpack.decode(packed, type=Packed).outputs
            ]
        except msgspec.DecodeError as error:
            findings.add(check, f"the outbox cannot be read: {error}")

    @property
    def head(self) -> StoredHead:
        """The head of the hash chain that is kept."""
        holder = HeadSource.REDIS if self._check is Check.STATE else HeadSource.SNAPSHOT
        if self.stored is None:
            return StoredHead(holder, lacking=self.lacking or "")
        return StoredHead(holder, self.stored.next, self.stored.meta.chain.head)

    def arrive(self, ledger: Ledger, offset: int) -> None:
        """The log has come to an offset: compare, once, if that is where this stands."""
        if self.at is None and self.stored is not None and self.stored.next <= offset:
            self.at = self.stored.next
            self._compare(ledger, self.stored)
            self.stored = None  # a state takes as much as the ledger

    def has_seen(self, offset: int) -> bool:
        """Whether the record at an offset is applied in what is kept."""
        return self.next is not None and offset < self.next

    def set_aside(self) -> None:
        """Compare nothing with it."""
        self.stored, self.next, self.outbox = None, None, []

    def _compare(self, ledger: Ledger, stored: StoredState) -> None:
        meta, add = stored.meta, partial(self._findings.add, self._check, offset=stored.next)
        for name, ours, theirs in (
            ("layout", LAYOUT, meta.layout),
            ("id of norms", ledger.state.topic.hex(), meta.topic),
            ("number of partitions", ledger.state.partitions, meta.partitions),
        ):
            if ours != theirs:
                add(f"the state has another {name} than the log", expected=ours, found=theirs)
        if tuple(ledger.chain) != tuple(meta.chain):
            expected, found = ([c.before.hex(), c.last] for c in (ledger.chain, meta.chain))
            add("another last record of the hash chain", expected=expected, found=found)
        if meta.since > meta.next or meta.version < (self._check is Check.STATE):
            problem = "meta contradicts itself: changes end before they begin, or no write was made"
            add(problem, found={"since": meta.since, "version": meta.version})
        try:
            state = ledger_of(
                stored,
                ledger.state.partition,
                ledger.state.partitions,
                ledger.state.topic,
                meta.chain,
                ledger.erasure_keys,
            )
        except _NO_STATE as error:
            add(f"the state cannot be put together: {error!r}")
            return
        for difference in differences(ledger, state):
            add(
                difference.problem,
                about=difference.about,
                expected=difference.expected,
                found=difference.found,
            )
            if self._findings.is_full(self._check):
                return

    def look(self, archive: Archive, extent: Extent) -> None:
        """What can be said where the log is not applied up to here: whether this goes on in it."""
        if self.stored is None:
            return
        at, chain = self.stored.next, self.stored.meta.chain
        if not extent.start <= at <= extent.end:
            expected = {"from": extent.start, "to": extent.end}
            problem = f"{self._who} goes on outside of the log"
            self._findings.add(self._check, problem, offset=at, expected=expected, found=at)
        if chain.last >= extent.start:
            one = Extent(chain.last, chain.last + 1)
            records = list(archive.read(NORMS, self._findings.partition, one))
            if not records or not chain.ends_with(records[0].value):
                problem = "the last record that was applied is not in the log as it was applied"
                self._findings.add(self._check, problem, offset=chain.last)
