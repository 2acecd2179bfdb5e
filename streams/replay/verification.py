"""What was kept and published, compared with what the log gives: one partition after the other.

In this order, so that a service may go on meanwhile:

1. The last snapshot is read, then the state and the outbox from Redis, each as of one moment:
   they stand at offsets M <= N.
2. The ends of halts, rejects and odometer are taken, then that of the log. What led to a record
   below the first three is in the log below the fourth.
3. The log is applied up to its end. Where it comes to M and N, what stands there is compared.
4. What records below N gave was in the outbox at 1 or in its topic at 2. What later ones gave may
   be. Nothing else may be in a topic.

Where the log has a gap, or its hash chain another head at M or N than is stored there, nothing that
follows from it is compared: one finding says so.

A log that was trimmed is applied from the snapshot on, which is taken as it is: whole, and of
this log. What came before is not compared, but for the odometer, whose bounds the snapshot has.

Memory holds one partition: its state as applied, as Redis has it and as the snapshot does, and
eight bytes for every record of the other topics. The log itself passes by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

import msgspec

from streams.kafka.topics import NORMS
from streams.ledger.ledger import Ledger, Output, PartitionError
from streams.ledger.outputs import Channel
from streams.ledger.repartition import NEXT, imported
from streams.records import ChargeRoster
from streams.replay.archive import Archive, BrokenLog, HeadSource, States
from streams.replay.findings import Check, Findings
from streams.replay.fold import Applied, Beginning, Fold, HeadMismatch
from streams.replay.kept import KeptPartition
from streams.replay.odometers import Odometers
from streams.replay.prices import Prices
from streams.replay.published import HALTS, ODOMETER, REJECTS, Published
from streams.replay.receipts import Receipt
from streams.replay.results import PartitionProgress, PartitionVerified, Verified
from streams.store.stored_state import StoredState

_TOLD_EVERY = 0.5
"""Seconds between two reports of progress."""


def verify(
    archive: Archive,
    states: States,
    *,
    against: Receipt | None = None,
    origins: Sequence[Ledger] | None = None,
    progress: Callable[[PartitionProgress], None] = lambda _: None,
) -> Verified:
    """Compare all that a service has kept and published with what its log gives.

    Args:
        archive: the topics.
        states: what Redis keeps.
        against: the receipt of an earlier log, which this one has to continue.
        origins: the partitions of the retired log that this one continues. Their state is the one
            that this log is replayed from, instead of the last snapshot.
        progress: called now and then.

    Raises:
        Unreadable: Kafka or Redis does not answer.
    """
    prices = Prices()
    parts = [
        _Partition(archive, states, partition, against, origins, prices, progress).verify()
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
        origins: Sequence[Ledger] | None,
        prices: Prices,
        progress: Callable[[PartitionProgress], None],
    ) -> None:
        self.findings = Findings(partition)
        self.result = PartitionVerified(partition, self.findings)
        self._archive = archive
        self._partition = partition
        self._progress = progress
        # Step 1.
        self._snapshot = KeptPartition(Check.SNAPSHOT, self._load_snapshot, self.findings)
        self._kept = KeptPartition(Check.STATE, lambda: states.load(partition), self.findings)
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
        self._origins = origins
        self._receipt = against.head_of(partition) if against else None
        self._began = self._told = monotonic()

    def verify(self) -> PartitionVerified:
        """Compare it."""
        heads = self._kept.head, self._snapshot.head
        begun = None if self._origins is None else self._imported(self._origins)
        fold = Fold(self._archive, self._partition, self._extent, heads, begun)
        result = self.result
        result.start, result.began = self._extent.start, fold.began
        if self._kept.lacking and self._extent.end:
            result.impossible.append(self._kept.lacking)
        if fold.cut_off:
            self._say_cut_off(fold.cut_off)
            return result
        if fold.began:
            if begun is None:
                self._begin_at(fold.began)
            waiting = self._outbox_of(Channel.ODOMETER)
            self._odometers.compare_before(fold.began, waiting, fold.ledger)
        try:
            # Step 3.
            for applied in fold.steps(before=lambda offset: self._arrive(fold, offset)):
                self._take(fold, applied)
        except PartitionError as error:
            problem = str(error)
            self.findings.add(Check.LOG, problem, offset=fold.next)
            result.impossible.append(f"nothing from offset {fold.next} on can be applied")
        except BrokenLog as broken:
            self._arrive_at_receipt(fold, fold.next)
            self._say_broken(fold, broken)
            return result
        self._arrive(fold, fold.next)
        self._end(fold)
        return result

    def _take(self, fold: Fold, applied: Applied) -> None:
        offset = applied.record.offset
        required = self._kept.has_seen(offset)
        for output in applied.outputs:
            is_odometer = output.channel is Channel.ODOMETER
            # Compaction keeps the last of a user: that one is looked for by itself.
            must_be = required and not is_odometer
            self._published[output.channel].give(offset, output, required=must_be)
            if is_odometer and required:
                self._odometers.give(offset, output)
        if isinstance(request := applied.request, ChargeRoster):
            self._prices.check(offset, request, fold.ledger, self.findings)
            self.result.priced += 1
        if monotonic() - self._told >= _TOLD_EVERY:
            self._tell(fold)

    def _arrive(self, fold: Fold, offset: int) -> None:
        """What stands at an offset that the log has come to, or passed where it holds nothing."""
        self._snapshot.arrive(fold.ledger, offset)
        self._kept.arrive(fold.ledger, offset)
        self._arrive_at_receipt(fold, offset)

    def _arrive_at_receipt(self, fold: Fold, offset: int) -> None:
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
            published.end(fold.began)
        result = self.result
        outbox = self._outbox_of(Channel.ODOMETER)
        result.odometers = self._odometers.end(outbox, fold.ledger)
        result.snapshot_at = self._snapshot.at or fold.began or None
        result.state_at = self._kept.at
        self._end_receipt(fold)
        result.next, result.head = fold.next, fold.ledger.chain.head
        result.records = fold.records
        result.users = sum(map(len, fold.ledger.state.datasets.values()))
        result.halts = self._published[Channel.HALTS].matched
        result.rejects = self._published[Channel.REJECTS].matched
        result.awaited = sum(published.awaited for published in self._published.values())
        result.signed = sum(published.signed for published in self._published.values())
        result.bare = sum(published.bare for published in self._published.values())
        result.expired = sum(published.expired for published in self._published.values())
        result.policies = {
            name: msgspec.msgpack.encode(policy)
            for (name,), policy in fold.ledger.state.policies.items()
        }
        self._tell(fold)
        result.seconds = monotonic() - self._began

    def _end_receipt(self, fold: Fold) -> None:
        if self._receipt is not None:
            self.findings.add(
                Check.RECEIPT,
                "the log ends before the one that the receipt is of",
                offset=self._receipt.next,
                expected={"at least": self._receipt.next},
                found=fold.next,
            )

    def _load_snapshot(self) -> StoredState | None:
        snapshot = self._archive.snapshot(self._partition)
        if snapshot is None:
            return None
        ours = self._archive.topic.hex(), self._archive.partitions
        theirs = snapshot.manifest.topic, snapshot.manifest.partitions
        if ours != theirs:
            problem = "the last snapshot is of another log"
            self.findings.add(Check.SNAPSHOT, problem, expected=ours, found=theirs)
            return None
        return snapshot.state()

    def _imported(self, origins: Sequence[Ledger]) -> Beginning:
        topic, partitions = self._archive.topic, self._archive.partitions
        return Beginning(imported(origins, topic, self._partition, partitions).ledger, NEXT)

    def _begin_at(self, began: int) -> None:
        """The log was trimmed: say what is not known of what came before."""
        self._snapshot.look(self._archive, self._extent)
        self._snapshot.set_aside()
        at = self._kept.next
        if at is not None and at < began:
            what = f"what Redis keeps: it stands at {at}, before the snapshot, {began}"
            self.result.impossible.append(what)
            self._kept.set_aside()
        if self._receipt is not None and self._receipt.next < began:
            what = f"the receipt: it is of offset {self._receipt.next}, before the snapshot"
            self.result.impossible.append(f"{what}, {began}")
            self._receipt = None

    def _say_cut_off(self, why: str) -> None:
        start = self._extent.start
        self.findings.add(Check.LOG, why, offset=start)
        what = "state, answers, rejects, odometer, cost tables, receipts: these follow what is gone"
        self.result.impossible.append(what)
        self.result.next = start
        self._kept.look(self._archive, self._extent)

    def _say_broken(self, fold: Fold, broken: BrokenLog) -> None:
        if isinstance(broken, HeadMismatch):
            check = Check.STATE if broken.holder is HeadSource.REDIS else Check.SNAPSHOT
            self.findings.add(
                check,
                str(broken),
                offset=broken.offset,
                expected=broken.expected.hex(),
                found=broken.found.hex(),
            )
        else:
            self.findings.add(Check.LOG, str(broken), offset=fold.next)
        if fold.next >= self._extent.end:
            self._end_receipt(fold)
        self.result.impossible.append("what follows from the log, which is not the applied one")
        self.result.next, self.result.head = fold.next, fold.ledger.chain.head
        self.result.records = fold.records

    def _outbox_of(self, channel: Channel) -> list[Output]:
        return [output for output in self._kept.outbox if output.channel is channel]

    def _tell(self, fold: Fold) -> None:
        self._told = monotonic()
        self._progress(
            PartitionProgress(
                self._partition,
                self._archive.partitions,
                fold.next,
                self._extent.end,
                fold.records,
                self._told - self._began,
            )
        )


_CHANNELS = {Channel.HALTS: HALTS, Channel.REJECTS: REJECTS, Channel.ODOMETER: ODOMETER}
