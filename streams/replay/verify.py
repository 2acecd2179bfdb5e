"""Compares everything that a service has stored and published with its replayed log.

Each partition is compared in these steps, while the service may continue:

1. Read the last snapshot, then the state and the outbox in Redis, each as of one moment. They
   continue at offsets M <= N.
2. Read the ends of halts, rejects and odometer, then the end of the log. So the log includes every
   record that led to an output before these ends.
3. Replay the log to its end. At M and N, compare the snapshot and the state.
4. Compare the topics. The outputs of records before N must be in their topics, or in the outbox.
   The outputs of later records may be. A topic may contain nothing else.

If the log has a gap, or another hash chain head at M or N than the stored one, one finding says so,
and nothing derived from the log is compared.

A trimmed log is replayed from the snapshot, which must be complete and belong to this log. Earlier
records are not compared, except those of the odometer, because the snapshot has their bounds.

Memory holds one partition: the replayed state, the one in Redis and the one in the snapshot, and
eight bytes for every record of the other topics. The log is not held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput
from streams.kafka.topics import NORMS
from streams.ledger.ledger import Ledger, Output, PartitionError
from streams.ledger.outputs import Channel
from streams.ledger.repartition import NEXT, imported
from streams.records import ChargeRoster, Policy
from streams.replay.archive import Archive, BrokenLog, HeadSource, States, other_log
from streams.replay.findings import (
    Check,
    Findings,
    PartitionVerified,
    Verified,
)
from streams.replay.odometers import Odometers
from streams.replay.published import HALTS, ODOMETER, REJECTS, Published
from streams.replay.receipts import Receipt
from streams.replay.replay import (
    Applied,
    Beginning,
    HeadMismatch,
    LogReplay,
    Progress,
    mechanism_of_step,
)
from streams.replay.stored import StoredPartition
from streams.sdk.arguments import price
from streams.sdk.errors import InvalidRequest
from streams.store.stored_state import StoredState

_KEPT_COST_TABLES = 256


def verify(
    archive: Archive,
    states: States,
    *,
    against: Receipt | None = None,
    origins: Sequence[Ledger] | None = None,
    progress: Progress = lambda _: None,
) -> Verified:
    """Compare everything that a service has stored and published with its log.

    Args:
        archive: the topics.
        states: the stored state.
        against: the receipt of an earlier log, which this one must continue.
        origins: the partitions of the retired log that this one continues. The log is replayed
            from their state instead of the last snapshot.
        progress: called with the replay of each partition; see ``LogReplay.steps``.

    Raises:
        UnreadableService: Kafka or Redis does not answer.
    """
    cost_tables = CostTables()
    parts = [
        _Partition(archive, states, partition, against, origins, cost_tables, progress).verify()
        for partition in range(archive.partitions)
    ]
    return Verified(archive.topic, parts)


class _Partition:
    def __init__(
        self,
        archive: Archive,
        states: States,
        partition: int,
        against: Receipt | None,
        origins: Sequence[Ledger] | None,
        cost_tables: CostTables,
        progress: Progress,
    ) -> None:
        self.findings = Findings(partition)
        self.result = PartitionVerified(partition, self.findings)
        self._archive = archive
        self._partition = partition
        self._progress = progress
        # Step 1.
        self._snapshot = StoredPartition(HeadSource.SNAPSHOT, self._load_snapshot, self.findings)
        self._redis = StoredPartition(states.holder, lambda: states.load(partition), self.findings)
        # Step 2.
        extents = {topic: archive.extent(topic.name, partition) for topic in _CHANNELS.values()}
        self._extent = archive.extent(NORMS, partition)
        self._published = {
            channel: Published(archive, partition, topic, extents[topic], self.findings)
            for channel, topic in _CHANNELS.items()
        }
        for channel, published in self._published.items():
            published.excuse(self._outbox_of(channel))
        self._odometers = Odometers(self._published[Channel.ODOMETER], self.findings)
        self._cost_tables = cost_tables
        self._origins = origins
        self._receipt = against.head_of(partition) if against else None
        self._began = monotonic()

    def verify(self) -> PartitionVerified:
        heads = self._redis.head, self._snapshot.head
        begun = None if self._origins is None else self._imported(self._origins)
        replay = LogReplay(self._archive, self._partition, self._extent, heads, begun)
        result = self.result
        result.start, result.began = self._extent.start, replay.began
        if self._redis.lacking and self._extent.end:
            result.impossible.append(self._redis.lacking)
        if replay.cut_off:
            self._end_cut_off(replay.cut_off)
            return result
        if replay.began:
            if begun is None:
                self._begin_at(replay.began)
            waiting = self._outbox_of(Channel.ODOMETER)
            self._odometers.compare_before(replay.began, waiting, replay.ledger)
        try:
            # Step 3.
            compare = partial(self._compare_at, replay)
            for applied in replay.steps(compare, self._progress):
                self._take(replay, applied)
        except PartitionError as error:
            problem = str(error)
            self.findings.add(Check.LOG, problem, offset=replay.next)
            result.impossible.append(f"records from offset {replay.next}: they cannot be applied")
        except BrokenLog as broken:
            self._compare_receipt(replay, replay.next)
            self._end_broken(replay, broken)
            return result
        self._compare_at(replay, replay.next)
        self._end(replay)
        return result

    def _take(self, replay: LogReplay, applied: Applied) -> None:
        offset = applied.record.offset
        required = self._redis.has_applied(offset)
        for output in applied.outputs:
            is_odometer = output.channel is Channel.ODOMETER
            # Compaction keeps a user's last odometer record, which is looked up separately.
            must_exist = required and not is_odometer
            self._published[output.channel].expect(offset, output, required=must_exist)
            if is_odometer and required:
                self._odometers.expect(offset, output)
        if isinstance(request := applied.request, ChargeRoster):
            self._cost_tables.check(offset, request, replay.ledger, self.findings)
            self.result.priced += 1

    def _compare_at(self, replay: LogReplay, offset: int) -> None:
        self._snapshot.compare_at(replay.ledger, offset)
        self._redis.compare_at(replay.ledger, offset)
        self._compare_receipt(replay, offset)

    def _compare_receipt(self, replay: LogReplay, offset: int) -> None:
        if self._receipt is not None and offset >= self._receipt.next:
            head = replay.ledger.chain.head.hex()
            if head != self._receipt.head:
                self.findings.add(
                    Check.RECEIPT,
                    "the receipt is of another log up to this offset",
                    offset=self._receipt.next,
                    expected=self._receipt.head,
                    found=head,
                )
            self._receipt = None

    def _end(self, replay: LogReplay) -> None:
        # Step 4.
        for published in self._published.values():
            published.end(replay.began)
        result = self.result
        outbox = self._outbox_of(Channel.ODOMETER)
        result.odometers = self._odometers.end(outbox, replay.ledger)
        result.snapshot_at = self._snapshot.at or replay.began or None
        result.state_at = self._redis.at
        self._end_receipt(replay)
        result.next, result.head = replay.next, replay.ledger.chain.head
        result.records = replay.records
        result.users = sum(map(len, replay.ledger.state.datasets.values()))
        result.halts = self._published[Channel.HALTS].matched
        result.rejects = self._published[Channel.REJECTS].matched
        result.awaited = sum(published.awaited for published in self._published.values())
        result.signed = sum(published.signed for published in self._published.values())
        result.bare = sum(published.bare for published in self._published.values())
        result.expired = sum(published.expired for published in self._published.values())
        result.policies = {
            name: msgspec.msgpack.encode(policy)
            for (name,), policy in replay.ledger.state.policies.items()
        }
        result.seconds = monotonic() - self._began

    def _end_receipt(self, replay: LogReplay) -> None:
        if self._receipt is not None:
            self.findings.add(
                Check.RECEIPT,
                "the log ends before the offset of the receipt",
                offset=self._receipt.next,
                expected={"at least": self._receipt.next},
                found=replay.next,
            )

    def _load_snapshot(self) -> StoredState | None:
        snapshot = self._archive.snapshot(self._partition)
        if snapshot is None:
            return None
        if problem := other_log(self._archive, self._partition, snapshot.manifest):
            self.findings.add(Check.SNAPSHOT, problem, found=snapshot.manifest.identity)
            return None
        return snapshot.state()

    def _imported(self, origins: Sequence[Ledger]) -> Beginning:
        topic, partitions = self._archive.topic, self._archive.partitions
        return Beginning(imported(origins, topic, self._partition, partitions).ledger, NEXT)

    def _begin_at(self, began: int) -> None:
        """Exclude what lies before the snapshot from which a trimmed log is replayed."""
        self._snapshot.check_position(self._archive, self._extent)
        self._snapshot.discard()
        at = self._redis.next
        if at is not None and at < began:
            what = f"the state in Redis: it continues at {at}, before the snapshot, {began}"
            self.result.impossible.append(what)
            self._redis.discard()
        if self._receipt is not None and self._receipt.next < began:
            what = f"the receipt: it is of offset {self._receipt.next}, before the snapshot"
            self.result.impossible.append(f"{what}, {began}")
            self._receipt = None

    def _end_cut_off(self, why: str) -> None:
        start = self._extent.start
        self.findings.add(Check.LOG, why, offset=start)
        what = "state, answers, rejects, odometer, cost tables, receipts: records are deleted"
        self.result.impossible.append(what)
        self.result.next = start
        self._redis.check_position(self._archive, self._extent)

    def _end_broken(self, replay: LogReplay, broken: BrokenLog) -> None:
        if isinstance(broken, HeadMismatch):
            is_snapshot = broken.holder is HeadSource.SNAPSHOT
            check = Check.SNAPSHOT if is_snapshot else Check.STATE
            self.findings.add(
                check,
                str(broken),
                offset=broken.offset,
                expected=broken.expected.hex(),
                found=broken.found.hex(),
            )
        else:
            self.findings.add(Check.LOG, str(broken), offset=replay.next)
        if replay.next >= self._extent.end:
            self._end_receipt(replay)
        self.result.impossible.append(
            "everything derived from the log: it is not the one that was applied"
        )
        self.result.next, self.result.head = replay.next, replay.ledger.chain.head
        self.result.records = replay.records

    def _outbox_of(self, channel: Channel) -> list[Output]:
        return [output for output in self._redis.outbox if output.channel is channel]


_CHANNELS = {Channel.HALTS: HALTS, Channel.REJECTS: REJECTS, Channel.ODOMETER: ODOMETER}


class CostTables:
    """Computes the cost tables of roster steps again, for all partitions.

    A roster's cost table is part of the request, because the last digits of exp and log differ
    between machines. A ledger checks its form only, so a trainer could send the units of another
    noise. Here the table is computed from the mechanism, the scale and the sampling rate that the
    request names, from the roster's clip norm and levels, and from the policies.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Any, ...], bytes | str] = OrderedDict()

    def check(self, offset: int, charge: ChargeRoster, ledger: Ledger, findings: Findings) -> None:
        """Compare the cost table of a step that the ledger has just applied."""
        terms = ledger.state.rosters[charge.address]
        policies = ledger.state.policies.budgets(charge.dataset).policies
        key = (
            (charge.mechanism, charge.scale, charge.sampling_rate),
            (terms.clip_norm, terms.levels),
            tuple((policy.dataset, policy.row, *policy.orders) for policy in policies),
        )
        units = self._known.get(key)
        if units is None:
            try:
                mechanism = mechanism_of_step(charge)
                units = price(mechanism, policies, terms.clip_norm, terms.levels).units
            except (InvalidInput, InvalidRequest) as error:
                units = str(error)  # why there is no table
            self._known[key] = units
        self._known.move_to_end(key)
        if len(self._known) > _KEPT_COST_TABLES:
            self._known.popitem(last=False)
        if units != terms.units:
            about = {
                "dataset": charge.dataset,
                "run": charge.run,
                "step": charge.step,
                "mechanism": charge.mechanism,
                "scale": charge.scale,
                "sampling rate": charge.sampling_rate,
            }
            fields = _cost_difference(policies, units, terms.units)
            fields["about"] = about | fields.get("about", {})
            findings.add(Check.COST_TABLES, offset=offset, **fields)


def _cost_difference(
    policies: list[Policy], computed: bytes | str, charged: bytes
) -> dict[str, Any]:
    """Return the problem, and the first entry in which the tables differ."""
    if isinstance(computed, str):
        return {"problem": f"the cost table of this step cannot be computed: {computed}"}
    expected, found = (np.frombuffer(units, dtype="<i8") for units in (computed, charged))
    below = bool((found < expected).any())
    at = int(np.flatnonzero(found < expected if below else found > expected)[0])
    return {
        "problem": (
            "the step was charged less than its mechanism costs"
            if below
            else "the step was charged more than this version computes"
        ),
        "about": _entry(at, policies, expected),
        "expected": int(expected[at]),
        "found": int(found[at]),
    }


def _entry(at: int, policies: list[Policy], units: NDArray[np.int64]) -> Mapping[str, Any]:
    """Return the level, the order and the budget of an entry of a cost table."""
    levels = len(units) // sum(len(policy.budget) for policy in policies)
    for policy in policies:
        orders = len(policy.budget)
        if at < levels * orders:
            order = {"order": policy.orders[at % orders]} if policy.orders else {}
            return {"level": at // orders, **order, "budget of": policy.dataset}
        at -= levels * orders
    raise AssertionError("the entry belongs to one of the budgets")
