"""Kafka in memory: topics with offsets and gaps, producers with epochs, and the worker's ports.

All clients share one broker. A client has the ports of one worker: topics, log, publisher, and the
producers of odometer records and snapshots. Each of its effects on the broker is atomic. The client
awaits ``before`` first, which can delay or refuse the effect.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum

from streams.kafka.results import (
    Extent,
    Missing,
    NotSent,
    Origin,
    Sent,
    StoredRecord,
    TopicsSeen,
)
from streams.ledger.ledger import Channel, Output
from streams.records import tombstone_offset
from streams.store.snapshot import Record, Snapshot, find_last

_STRETCH = 64
"""Number of records that are read at a time, backwards from the end of a topic of snapshots."""


class Effect(StrEnum):
    """An effect of a client on the broker, or an answer to it."""

    LOOK = "look"  # describe the topics
    OPEN = "open"  # open the log
    MEASURE = "measure"  # read the first and the end offset of the log
    READ = "read"  # read a record, or find out what a gap is
    PUBLISH = "publish"  # write answers
    BEGIN = "begin"  # begin an epoch
    SEND = "send"  # write odometer records, or chunks of a snapshot, in a transaction
    COMMIT = "commit"  # commit that transaction
    ACKNOWLEDGE = "acknowledge"  # receive an acknowledgement


class MemoryTopic:
    """One partition of a topic.

    Attributes:
        start: the first offset that was not deleted.
        end: the offset of the next record.
        leader_epoch: of the next record.
        records: offset -> (key, value). The other offsets from start to end are transaction
            markers or holes.
        leader_epochs: of the records, by offset.
        origins: of the odometer records, by offset.
        tombstones: the values that workers store for records without a value, by offset.
        aborted: the offsets of records whose transaction was aborted.
        markers: the offsets of control records.
    """

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.leader_epoch = 0
        self.leader_epochs: dict[int, int] = {}
        self.origins: dict[int, Origin] = {}
        self.tombstones: dict[int, bytes] = {}
        self.aborted: set[int] = set()
        self.records: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.markers: set[int] = set()

    @property
    def values(self) -> list[bytes | None]:
        """The values of the records, in order."""
        return [value for _, value in self.records.values()]

    def append(self, value: bytes | None, key: bytes | None = None) -> int:
        """Write a record; return its offset."""
        self.records[self.end] = key, value
        self.leader_epochs[self.end] = self.leader_epoch
        self.end += 1
        return self.end - 1

    def mark(self) -> int:
        """Write a transaction marker; return its offset."""
        self.markers.add(self.end)
        self.end += 1
        return self.end - 1

    def remove(self, first: int, end: int) -> None:
        """Leave a hole, as compaction or damage does."""
        for offset in range(first, end):
            self.records.pop(offset, None)
            self.leader_epochs.pop(offset, None)
            self.markers.discard(offset)

    def lose_from(self, offset: int) -> None:
        """Lose the end of the log in a leader election."""
        self.remove(offset, self.end)
        self.end = offset
        self.leader_epoch += 1

    def delete_before(self, offset: int) -> None:
        """Delete the records before an offset."""
        self.remove(self.start, offset)
        self.start = offset

    def compact(self, stable: int) -> None:
        """Before an offset, keep only the last record of each key, and none that was aborted."""
        last = {
            self.records[offset][0]: offset
            for offset in sorted(self.records)
            if offset < stable and offset not in self.aborted
        }
        for offset in [offset for offset in self.records if offset < stable]:
            if last.get(self.records[offset][0]) != offset:
                self.remove(offset, offset + 1)


class MemoryBroker:
    """The topics norms, halts, odometer, rejects and snapshots, and the epochs of producers.

    Attributes:
        topic: the id of the topic norms.
        partitions: the number of partitions.
        problem: why the topics cannot be used, or None.
        epochs: (topic, partition) -> the latest epoch of its producer.
        transactions: (topic, partition) -> the offsets of the records in an open transaction.
    """

    def __init__(self, partitions: int, topic: bytes = b"topic in memory!") -> None:
        self.topic = topic
        self.partitions = partitions
        self.problem: str | None = None
        self.epochs: Counter[tuple[str, int]] = Counter()
        self.transactions: dict[tuple[str, int], list[int]] = {}
        self._topics: defaultdict[tuple[str, int], MemoryTopic] = defaultdict(MemoryTopic)

    def norms(self, partition: int) -> MemoryTopic:
        """Return the log of a partition."""
        return self._topics["norms", partition]

    def outputs(self, channel: Channel, partition: int) -> MemoryTopic:
        """Return a partition of an output topic."""
        return self.of(channel.value, partition)

    def snapshots(self, partition: int) -> MemoryTopic:
        """Return the snapshots of a partition."""
        return self.of(SNAPSHOTS, partition)

    def of(self, topic: str, partition: int) -> MemoryTopic:
        """Return a partition of a topic."""
        return self._topics[topic, partition]

    def committed(self, topic: str, partition: int) -> list[int]:
        """Return the offsets of committed records."""
        found = self.of(topic, partition)
        is_open = set(self.transactions.get((topic, partition), ()))
        return sorted(found.records.keys() - found.aborted - is_open)

    def compact(self, topic: str, partition: int) -> None:
        """Compact a partition up to its first open transaction."""
        found = self.of(topic, partition)
        found.compact(min(self.transactions.get((topic, partition), ()), default=found.end))


SNAPSHOTS = "snapshots"


async def _at_once(_: Effect) -> None:
    """Wait for nothing."""


class MemoryClient:
    """The ports ``Topics``, ``Log`` and ``Publisher`` of one worker."""

    def __init__(
        self, broker: MemoryBroker, before: Callable[[Effect], Awaitable[None]] = _at_once
    ) -> None:
        self.broker = broker
        self.before = before

    async def look(self) -> TopicsSeen:
        await self.before(Effect.LOOK)
        return TopicsSeen(self.broker.topic, self.broker.partitions, self.broker.problem)

    @asynccontextmanager
    async def read_log(self) -> AsyncIterator[MemoryClient]:
        await self.before(Effect.OPEN)
        yield self

    async def extent(self, partition: int) -> Extent:
        await self.before(Effect.MEASURE)
        log = self.broker.norms(partition)
        return Extent(log.start, log.end)

    async def record(self, partition: int, offset: int) -> StoredRecord | None:
        await self.before(Effect.READ)
        log = self.broker.norms(partition)
        if offset not in log.records:
            return None
        return StoredRecord(log.records[offset][1], log.leader_epochs[offset])

    async def missing(self, partition: int, first: int, end: int) -> Missing:
        await self.before(Effect.READ)
        log = self.broker.norms(partition)
        for offset in range(first, end):
            if offset in log.records:
                return Missing.RECORDS
            if offset not in log.markers:
                return Missing.HOLE
        return Missing.NOTHING_TO_APPLY

    async def publish(
        self, partition: int, outputs: Sequence[Output]
    ) -> Sequence[Awaitable[object]]:
        await self.before(Effect.PUBLISH)
        for output in outputs:
            self.broker.outputs(output.channel, partition).append(output.value, output.key)
        return [asyncio.ensure_future(self.before(Effect.ACKNOWLEDGE))]

    def odometer_producer_of(self, partition: int) -> MemoryFencedProducer:
        return MemoryFencedProducer(self, partition)

    def snapshots_of(self, partition: int) -> MemorySnapshotTopic:
        return MemorySnapshotTopic(self, partition)


class _Epochs:
    """A producer that writes to a partition in transactions of the latest epoch."""

    def __init__(self, client: MemoryClient, topic: str, partition: int) -> None:
        self._before = client.before
        self._broker = client.broker
        self._partition = partition
        self._place = topic, partition
        self._epoch = 0

    async def start(self) -> None:
        """Begin a new epoch; abort the open transaction of the previous one."""
        await self._before(Effect.BEGIN)
        self._topic.aborted.update(self._broker.transactions.get(self._place, ()))
        self._end_transaction()
        self._broker.epochs[self._place] += 1
        self._epoch = self._broker.epochs[self._place]

    async def stop(self) -> None:
        """Do nothing: there is no connection."""

    @property
    def _topic(self) -> MemoryTopic:
        return self._broker.of(*self._place)

    def _write(self, value: bytes | None, key: bytes | None) -> int:
        """Write a record of a transaction, which uncommitted readers see at once."""
        offset = self._topic.append(value, key)
        self._broker.transactions.setdefault(self._place, []).append(offset)
        return offset

    def _check_epoch(self) -> None:
        if self._epoch != self._broker.epochs[self._place]:
            raise NotSent(f"partition {self._partition}: a later epoch has begun")

    def _end_transaction(self, *, has_begun: bool = False) -> None:
        """Append a transaction marker if a transaction has begun, with or without records."""
        if self._broker.transactions.pop(self._place, None) is not None or has_begun:
            self._topic.mark()


class MemorySnapshotTopic(_Epochs):
    """One partition of the topic of snapshots."""

    def __init__(self, client: MemoryClient, partition: int) -> None:
        super().__init__(client, SNAPSHOTS, partition)

    async def read(self, with_contents: bool) -> Snapshot | None:
        await self._before(Effect.READ)
        return last_snapshot(self._broker, self._partition, with_contents)

    async def send(self, records: Sequence[Record]) -> None:
        await self._before(Effect.SEND)
        self._check_epoch()
        for key, value in records:
            self._write(value, key)
        await self._before(Effect.COMMIT)
        self._check_epoch()
        self._end_transaction(has_begun=True)
        await self._before(Effect.ACKNOWLEDGE)


def last_snapshot(
    broker: MemoryBroker, partition: int, with_contents: bool = True
) -> Snapshot | None:
    """Return the last committed snapshot of a partition.

    Raises:
        UnusableSnapshot: the snapshot is incomplete.
    """
    records = broker.snapshots(partition).records
    offsets = broker.committed(SNAPSHOTS, partition)
    stretches = (
        [
            (key or b"", value)
            for key, value in (records[at] for at in offsets[max(0, i) : i + _STRETCH])
        ]
        for i in range(len(offsets) - _STRETCH, -_STRETCH, -_STRETCH)
    )
    return find_last(stretches, with_contents)


class MemoryFencedProducer(_Epochs):
    """Writes the odometer records of one partition."""

    def __init__(self, client: MemoryClient, partition: int) -> None:
        super().__init__(client, Channel.ODOMETER.value, partition)

    async def last(self) -> Sent | None:
        await self._before(Effect.READ)
        topic = self._topic
        last = max(self._broker.committed(*self._place), default=None)
        if last is None or last not in topic.origins:
            return None
        value = topic.tombstones.get(last, topic.records[last][1])
        return Sent(topic.origins[last], value or b"")

    async def send(self, outputs: Sequence[tuple[Origin, Sequence[Output]]]) -> None:
        try:
            await self._send(outputs)
        except NotSent:
            self._epoch = -1  # never the latest
            raise

    async def _send(self, outputs: Sequence[tuple[Origin, Sequence[Output]]]) -> None:
        await self._before(Effect.SEND)
        self._check_epoch()
        for origin, group in outputs:
            for output in group:
                self._append(origin, output)
        await self._before(Effect.COMMIT)
        self._check_epoch()
        self._end_transaction(has_begun=True)
        await self._before(Effect.ACKNOWLEDGE)

    def _append(self, origin: Origin, output: Output) -> None:
        is_tombstone = tombstone_offset(output.value) is not None
        offset = self._write(None if is_tombstone else output.value, output.key)
        self._topic.origins[offset] = origin
        if is_tombstone:
            self._topic.tombstones[offset] = output.value
