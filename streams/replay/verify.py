"""Compares everything that a service has stored and published with its replayed log.

Each partition is compared in these steps, while the service may continue:

1. Read the last snapshot, then the state and the outbox in Redis, each as of one moment. They
   continue at offsets M <= N.
2. Read the ends of halts, rejects and odometer, then the end of the log. So the log includes every
   record that led to an output before these ends.
3. Replay the log to its end. At M and N, compare the snapshot and the state. At N, also compare
   each user's last odometer record, which shows what the state has.
4. Compare the topics. The outputs of records before N must be in their topics, or in the outbox.
   The outputs of later records may be. A topic may contain nothing else.

If the log has a gap, or another hash chain head at M or N than the stored one, one finding says so,
and nothing derived from the log is compared.

A trimmed log is replayed from the snapshot, which must be complete and belong to this log. Earlier
records are not compared, except those of the odometer, because the snapshot has their bounds.

Memory holds one partition: the replayed state, the one in Redis and the one in the snapshot, and
nine bytes for every record of the other topics, and for every user. The log is not held.
"""

from __future__ import annotations

from functools import lru_cache, partial
from time import monotonic
from typing import Any

import msgspec
import numpy as np

from accounting import InvalidInput, Mechanism
from streams.kafka.topics import NORMS
from streams.ledger.ledger import Ledger, PartitionError
from streams.ledger.outputs import Channel
from streams.ledger.validation import mechanism_of
from streams.records import ChargeRoster, Policy, encode
from streams.replay.archive import (
    DAMAGED,
    Archive,
    BrokenLog,
    HeadSource,
    other_log,
)
from streams.replay.findings import Check, PartitionVerified, Verified
from streams.replay.log_replay import (
    Applied,
    HeadMismatch,
    LogReplay,
    Progress,
)
from streams.replay.odometer_comparison import PublishedOdometers
from streams.replay.output_comparison import Published
from streams.replay.receipts import Receipt
from streams.replay.state_comparison import StoredPartition
from streams.sdk.arguments import price
from streams.sdk.errors import InvalidRequest
from streams.store.stored_state import StoredState


def verify(
    archive: Archive,
    *,
    against: Receipt | None = None,
    progress: Progress = lambda _: None,
) -> Verified:
    """Compare everything that a service has stored and published with its log.

    Args:
        against: the receipt of an earlier log, which this one must continue.
        progress: called with the replay of each partition; see ``LogReplay.steps``.

    Raises:
        UnreadableService: Kafka or Redis does not answer.
    """
    parts = []
    for partition in range(archive.partitions):
        began = monotonic()
        part = _Partition(archive, partition, against)
        part.verify(progress)
        part.result.seconds = monotonic() - began
        parts.append(part.result)
    for table, offset in archive.damaged_answers():
        parts[0].add(Check.ANSWERS, DAMAGED, offset=offset, about={"table": table})
    return Verified(archive.topic, parts)


class _Partition:
    def __init__(self, archive: Archive, partition: int, against: Receipt | None) -> None:
        self.result = PartitionVerified(partition)
        self._archive, self._partition = archive, partition
        self._receipt = against.head_of(partition) if against else None
        # Step 1.
        self._snapshot = StoredPartition(HeadSource.SNAPSHOT, self._load_snapshot, self.result)
        self._redis = StoredPartition(archive.holder, partial(archive.load, partition), self.result)
        # Step 2.
        outbox, result = self._redis.outbox, self.result
        self._odometers = PublishedOdometers(archive, outbox, result)
        self._published = {
            Channel.HALTS: Published(archive, Channel.HALTS, outbox, result),
            Channel.ODOMETER: self._odometers,
            Channel.REJECTS: Published(archive, Channel.REJECTS, outbox, result),
        }
        self._extent = archive.extent(NORMS, partition)

    def verify(self, progress: Progress) -> None:
        result, heads = self.result, (self._redis.head, self._snapshot.head)
        replay = LogReplay(self._archive, self._partition, self._extent, heads)
        result.start, result.began = self._extent.start, replay.began
        if self._redis.lacking and self._extent.end:
            result.impossible.append(self._redis.lacking)
        if replay.cut_off:
            self._end_cut_off(replay.cut_off)
            return
        if replay.began:
            self._begin_at(replay.began)
            self._odometers.compare_before(replay.began, replay.ledger)
            if self._redis.next is None:
                self._odometers.compare_last(replay.began, replay.ledger)
        try:
            # Step 3.
            for applied in replay.steps(partial(self._compare_at, replay), progress):
                self._take(replay, applied)
        except PartitionError as error:
            self.result.add(Check.LOG, str(error), offset=replay.next)
            result.impossible.append(f"records from offset {replay.next}: they cannot be applied")
        except BrokenLog as broken:
            self._compare_receipt(replay, replay.next)
            self._end_broken(replay, broken)
            return
        self._compare_at(replay, replay.next)
        self._end(replay)

    def _take(self, replay: LogReplay, applied: Applied) -> None:
        offset = applied.record.offset
        if applied.record.is_damaged:
            self.result.add(Check.LOG, DAMAGED, offset=offset)
        required = self._redis.has_applied(offset)
        for output in applied.outputs:
            self._published[output.channel].expect(offset, output, required=required)
        if isinstance(request := applied.request, ChargeRoster):
            _check_cost_table(offset, request, replay.ledger, self.result)
            self.result.cost_tables += 1

    def _compare_at(self, replay: LogReplay, offset: int) -> None:
        self._snapshot.compare_at(replay.ledger, offset)
        if (at := self._redis.compare_at(replay.ledger, offset)) is not None:
            self._odometers.compare_last(at, replay.ledger)
        self._compare_receipt(replay, offset)

    def _compare_receipt(self, replay: LogReplay, offset: int) -> None:
        if self._receipt is None or offset < self._receipt.next:
            return
        head, receipt = replay.ledger.chain.head.hex(), self._receipt
        if head != receipt.head:
            problem = "the receipt is of another log up to this offset"
            both = {"expected": receipt.head, "found": head}
            self.result.add(Check.RECEIPT, problem, offset=receipt.next, **both)
        self._receipt = None

    def _end(self, replay: LogReplay) -> None:
        # Step 4.
        result, published = self.result, self._published
        for topic in published.values():
            topic.end(replay.began)
        result.snapshot_at = self._snapshot.at or replay.began or None
        result.state_at = self._redis.at
        self._end_receipt(replay)
        result.users = sum(map(len, replay.ledger.state.datasets.values()))
        result.answers = published[Channel.HALTS].matched
        result.rejects = published[Channel.REJECTS].matched
        policies = replay.ledger.state.policies.items()
        result.policies = {name: encode(policy) for (name,), policy in policies}

    def _end_receipt(self, replay: LogReplay) -> None:
        result = self.result
        result.next, result.head = replay.next, replay.ledger.chain.head
        result.records = replay.records
        if self._receipt is not None and replay.next >= self._extent.end:
            problem = "the log ends before the offset of the receipt"
            at = self._receipt.next
            both = {"expected": {"at least": at}, "found": replay.next}
            self.result.add(Check.RECEIPT, problem, offset=at, **both)

    def _load_snapshot(self) -> StoredState | None:
        snapshot = self._archive.snapshot(self._partition)
        if snapshot is None:
            return None
        if problem := other_log(self._archive, self._partition, snapshot.manifest):
            self.result.add(Check.SNAPSHOT, problem, found=snapshot.manifest.identity)
            return None
        return snapshot.state()

    def _begin_at(self, began: int) -> None:
        """Exclude what lies before the snapshot from which a trimmed log is replayed."""
        self._snapshot.check_position(self._archive, self._extent)
        self._snapshot.discard()
        at, before = self._redis.next, f"before the snapshot, {began}"
        if at is not None and at < began:
            self.result.impossible.append(f"the state in Redis: it continues at {at}, {before}")
            self._redis.discard()
        if self._receipt is not None and self._receipt.next < began:
            what = f"the receipt: it is of offset {self._receipt.next}, {before}"
            self.result.impossible.append(what)
            self._receipt = None

    def _end_cut_off(self, why: str) -> None:
        start = self._extent.start
        self.result.add(Check.LOG, why, offset=start)
        what = "state, answers, rejects, odometer, cost tables, receipts: records are deleted"
        self.result.impossible.append(what)
        self.result.next = start
        self._redis.check_position(self._archive, self._extent)

    def _end_broken(self, replay: LogReplay, broken: BrokenLog) -> None:
        check, fields = Check.LOG, dict[str, Any]({"offset": replay.next})
        if isinstance(broken, HeadMismatch):
            stored = broken.stored
            is_snapshot = stored.holder is HeadSource.SNAPSHOT
            check = Check.SNAPSHOT if is_snapshot else Check.STATE
            heads = {"expected": stored.head.hex(), "found": broken.found.hex()}
            fields = {"offset": stored.next, **heads}
        self.result.add(check, str(broken), **fields)
        self._end_receipt(replay)
        what = "everything derived from the log: it is not the one that was applied"
        self.result.impossible.append(what)


@lru_cache(maxsize=256)
def _cost_table(mechanism: Mechanism, policies: bytes, clip_norm: float, levels: int) -> bytes:
    decoded = msgspec.msgpack.decode(policies, type=list[Policy])
    return price(mechanism, decoded, clip_norm, levels).units


def _check_cost_table(
    offset: int, charge: ChargeRoster, ledger: Ledger, result: PartitionVerified
) -> None:
    """Compute the cost table of a roster step that the ledger has just applied, and compare it.

    A cost table is part of the request, because the last digits of exp and log differ between
    machines. A ledger checks its form only, so a trainer could send the units of another noise.
    Here the table is computed from the mechanism, the scale and the sampling rate that the request
    names, from the roster's clip norm and levels, and from the policies.
    """
    terms = ledger.state.rosters[charge.address]
    policies = ledger.state.policies.budgets(charge.dataset).policies
    names = ("dataset", "run", "step", "mechanism", "scale", "sampling_rate")
    about = {name.replace("_", " "): getattr(charge, name) for name in names}
    try:
        mechanism = mechanism_of(charge)
        units = _cost_table(mechanism, encode(policies), terms.clip_norm, terms.levels)
    except (InvalidInput, InvalidRequest) as error:
        problem = f"the cost table of this step cannot be computed: {error}"
        result.add(Check.COST_TABLES, problem, offset=offset, about=about)
        return
    if units == terms.units:
        return
    expected, found = (np.frombuffer(table, dtype="<i8") for table in (units, terms.units))
    problem = "the step was charged more than this version computes"
    if (differs := found < expected).any():
        problem = "the step was charged less than its mechanism costs"
    else:
        differs = found > expected
    at = int(np.flatnonzero(differs)[0])
    result.add(
        Check.COST_TABLES,
        problem,
        offset=offset,
        about=about,
        expected=int(expected[at]),
        found=int(found[at]),
    )
