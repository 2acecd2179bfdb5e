"""What was kept and published, compared with what the log gives: one partition after the other.

In this order, so that a service may go on meanwhile:

1. The state and the outbox are read from Redis, as of one moment: they stand at an offset N.
2. The ends of halts, rejects and odometer are taken, then that of the log. What led to a record
   below the first three is in the log below the fourth.
3. The log is applied up to its end. Where it comes to N, the state is compared.
4. What records below N gave was in the outbox at 1 or in its topic at 2. What later ones gave may
   be. Nothing else may be in a topic.

Memory holds one partition: its state twice (as applied, and as Redis has it), and eight bytes for
every record of the other topics. The log itself passes by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import msgspec

from streams.ledger.ledger import LayoutMismatch, Output
from streams.ledger.outputs import Channel
from streams.offline.archive import Archive, States
from streams.offline.findings import Check, Finding, Findings
from streams.offline.fold import Applied, Beginnings, Fold, from_nothing
from streams.offline.kept import Kept
from streams.offline.odometers import Odometers
from streams.offline.prices import Prices
from streams.offline.published import HALTS, ODOMETER, REJECTS, Published
from streams.offline.receipts import Head, Receipt, policies_digest
from streams.schemas import ChargeRoster
from streams.topics.topics import NORMS

_TOLD_EVERY = 0.5
"""Seconds between two reports of progress."""


@dataclass(frozen=True)
class Progress:
    """How far a partition is."""

    partition: int
    partitions: int
    next: int
    end: int
    records: int
    seconds: float


@dataclass
class PartitionVerified:
    """What was compared in one partition, and what did not fit.

    Attributes:
        next: where the log was applied to.
        state_at: the offset at which the state of Redis was compared; None if it was not.
        checkpoints: users with an odometer checkpoint.
        priced: steps of rosters whose tariff was computed again.
        awaited: outputs that are not published yet, and are in the outbox.
        expired: answers and rejects that their topics may have deleted with time.
        impossible: what could not be compared, and why.
    """

    partition: int
    findings: Findings
    start: int = 0
    next: int = 0
    head: bytes = b""
    records: int = 0
    users: int = 0
    halts: int = 0
    rejects: int = 0
    checkpoints: int = 0
    priced: int = 0
    awaited: int = 0
    expired: int = 0
    state_at: int | None = None
    seconds: float = 0.0
    impossible: list[str] = field(default_factory=list)
    policies: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Verified:
    """All partitions."""

    topic: bytes
    partitions: Sequence[PartitionVerified]

    @property
    def findings(self) -> list[Finding]:
        """Those that are told of, by partition."""
        return [finding for part in self.partitions for finding in part.findings.kept]

    @property
    def wrong(self) -> int:
        """How many things do not fit, told of or not."""
        return sum(part.findings.counts.total() for part in self.partitions)

    @property
    def fits(self) -> bool:
        """Whether all of it was compared, and nothing is wrong."""
        return not self.wrong and not any(part.impossible for part in self.partitions)

    @property
    def heads(self) -> list[Head]:
        """Of the log, up to where it was applied."""
        return [Head(part.partition, part.next, part.head.hex()) for part in self.partitions]

    def policies_digest(self) -> str:
        """Of all policies, in all partitions."""
        return policies_digest([part.policies for part in self.partitions])


def verify(
    archive: Archive,
    states: States,
    *,
    beginnings: Beginnings | None = None,
    against: Receipt | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Verified:
    """Compare all that a service has kept and published with what its log gives.

    Args:
        archive: the topics.
        states: what Redis keeps.
        beginnings: from where partitions are applied; from nothing, at offset 0, if not given.
        against: the receipt of an earlier log, which this one has to continue.
        progress: called now and then.

    Raises:
        Unreadable: Kafka or Redis does not answer.
    """
    begin, prices = beginnings or from_nothing(archive), Prices()
    parts = [
        _Partition(archive, states, partition, against, prices, progress).verify(begin)
        for partition in range(archive.partitions)
    ]
    return Verified(archive.topic, parts)


class _Partition:
    """One of them, while it is compared."""

    def __init__(
        self,
        archive: Archive,
        states: States,
        partition: int,
        against: Receipt | None,
        prices: Prices,
        progress: Callable[[Progress], None],
    ) -> None:
        self.findings = Findings(partition)
        self.result = PartitionVerified(partition, self.findings)
        self._archive = archive
        self._partition = partition
        self._progress = progress
        # Step 1.
        self._kept = Kept(states, partition, self.findings)
        # Step 2.
        extents = {topic: archive.extent(topic.check, partition) for topic in _CHANNELS.values()}
        self._extent = archive.extent(NORMS, partition)
        self._published = {
            channel: Published(archive, partition, topic, extents[topic], self.findings)
            for channel, topic in _CHANNELS.items()
        }
        for channel, published in self._published.items():
            published.keep(self._outbox_of(channel))
        self._odometers = Odometers(self._published[Channel.ODOMETER], self.findings)
        self._prices = prices
        self._receipt = against.head_of(partition) if against else None
        self._began = self._told = monotonic()

    def verify(self, begin: Beginnings) -> PartitionVerified:
        """Compare it."""
        fold, result = Fold(self._archive, begin(self._partition), self._extent), self.result
        result.start = self._extent.start
        if self._kept.lacking and self._extent.end:
            result.impossible.append(self._kept.lacking)
        if fold.is_cut_off:
            self._say_cut_off(fold)
            return result
        try:
            # Step 3.
            for applied in fold.steps(before=lambda offset: self._arrive(fold, offset)):
                self._take(fold, applied)
        except LayoutMismatch as mismatch:
            problem = f"{mismatch.reason}. {mismatch.remedy}"
            self.findings.add(Check.LOG, problem, offset=fold.next)
            result.impossible.append(f"nothing from offset {fold.next} on can be applied")
        self._arrive(fold, fold.next)
        self._end(fold)
        return result

    def _take(self, fold: Fold, applied: Applied) -> None:
        offset = applied.record.offset
        required = self._kept.has_seen(offset)
        for output in applied.outputs:
            is_checkpoint = output.channel is Channel.ODOMETER
            # Compaction keeps the last of a user: that one is looked for by itself.
            must_be = required and not is_checkpoint
            self._published[output.channel].give(offset, output, required=must_be)
            if is_checkpoint and required:
                self._odometers.give(offset, output)
        if isinstance(request := applied.request, ChargeRoster):
            self._prices.check(offset, request, fold.ledger, self.findings)
            self.result.priced += 1
        if monotonic() - self._told >= _TOLD_EVERY:
            self._tell(fold)

    def _arrive(self, fold: Fold, offset: int) -> None:
        """What stands at an offset that the log has come to, or passed where it holds nothing."""
        if self.result.state_at is None and self._kept.is_before(offset):
            assert self._kept.snapshot is not None
            self.result.state_at = self._kept.snapshot.next
            self._kept.compare(fold.ledger)
        if self._receipt is not None and offset >= self._receipt.next:
            head = fold.ledger.chain.head.hex()
            if head != self._receipt.head:
                self.findings.add(
                    Check.RECEIPT,
                    "the log up to there is not the one that the receipt is of",
                    offset=self._receipt.next,
                    expected=self._receipt.head,
                    found=head,
                )
            self._receipt = None

    def _end(self, fold: Fold) -> None:
        # Step 4.
        for published in self._published.values():
            published.end()
        result = self.result
        outbox = self._outbox_of(Channel.ODOMETER)
        result.checkpoints = self._odometers.end(outbox, fold.ledger)
        if self._kept.snapshot is not None and result.state_at is None:
            self._kept.say_behind(fold.next)
        if self._receipt is not None:
            self.findings.add(
                Check.RECEIPT,
                "the log ends before the one that the receipt is of",
                offset=self._receipt.next,
                expected={"at least": self._receipt.next},
                found=fold.next,
            )
        result.next, result.head = fold.next, fold.ledger.chain.head
        result.records = fold.records
        result.users = sum(map(len, fold.ledger.datasets.values()))
        result.halts = self._published[Channel.HALTS].matched
        result.rejects = self._published[Channel.REJECTS].matched
        result.awaited = sum(published.awaited for published in self._published.values())
        result.expired = sum(published.expired for published in self._published.values())
        result.policies = {
            name: msgspec.msgpack.encode(policy) for (name,), policy in fold.ledger.policies.items()
        }
        self._tell(fold)
        result.seconds = monotonic() - self._began

    def _say_cut_off(self, fold: Fold) -> None:
        start = self._extent.start
        self.findings.add(
            Check.LOG,
            f"the log begins at offset {start}, and what is known begins at {fold.next}: the "
            "records between are gone, so that it cannot be applied",
            offset=start,
        )
        what = "state, answers, rejects, odometer, tariffs, receipts: they follow from what is gone"
        self.result.impossible.append(what)
        self.result.next = start
        self._kept.look(self._archive, self._extent)

    def _outbox_of(self, channel: Channel) -> list[Output]:
        return [output for output in self._kept.outbox if output.channel is channel]

    def _tell(self, fold: Fold) -> None:
        self._told = monotonic()
        self._progress(
            Progress(
                self._partition,
                self._archive.partitions,
                fold.next,
                self._extent.end,
                fold.records,
                self._told - self._began,
            )
        )


_CHANNELS = {Channel.HALTS: HALTS, Channel.REJECTS: REJECTS, Channel.ODOMETER: ODOMETER}
