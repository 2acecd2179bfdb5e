"""Kafka in memory: topics with offsets and gaps, producers with epochs, the worker's ports on them.

A broker is what all clients share. A client is what one worker has of it: topics, log, publisher
and the producers of checkpoints. What it does to the broker happens at one moment, never half, and
``before`` is asked first: it can wait, or refuse.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum

from streams.ledger.ledger import Channel, Output
from streams.schemas import tombstone_offset
from streams.store.image import Image, Record, Search
from streams.topics.seen import TopicsSeen
from streams.worker.ports import Extent, Missing, NoRecord, NotSent, Origin, Sent, Stored

_STRETCH = 64
"""Records of a topic of images that are read at once, from its end on."""


class Effect(StrEnum):
    """What a client is about to do to the broker, or to hear from it."""

    LOOK = "look"  # at the topics
    OPEN = "open"  # the log
    MEASURE = "measure"  # where it begins and ends
    READ = "read"  # a record of it, or what is missing
    PUBLISH = "publish"  # answers
    BEGIN = "begin"  # an epoch
    SEND = "send"  # checkpoints, or parts of an image, in a transaction
    COMMIT = "commit"  # that transaction
    HEAR = "hear"  # that the broker has what was published


class MemoryTopic:
    """One partition of a topic.

    Attributes:
        start: the first offset that was not deleted.
        end: the offset of the next record.
        leader_epoch: which the next record has.
        records: offset -> (key, value). Offsets from start to end that are not in it are markers
            of transactions, or holes.
        leader_epochs: of the records, by offset.
        origins: of the checkpoints, by offset.
        tombstones: those of them that have no value, as workers keep them.
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
        """Of the records, in their order."""
        return [value for _, value in self.records.values()]

    def append(self, value: bytes | None, key: bytes | None = None) -> int:
        """Write a record; its offset."""
        self.records[self.end] = key, value
        self.leader_epochs[self.end] = self.leader_epoch
        self.end += 1
        return self.end - 1

    def mark(self) -> int:
        """Write the end of a transaction; its offset."""
        self.markers.add(self.end)
        self.end += 1
        return self.end - 1

    def remove(self, first: int, end: int) -> None:
        """Leave a hole, as a compaction or damage does."""
        for offset in range(first, end):
            self.records.pop(offset, None)
            self.leader_epochs.pop(offset, None)
            self.markers.discard(offset)

    def lose_from(self, offset: int) -> None:
        """Lose the end, in an election."""
        self.remove(offset, self.end)
        self.end = offset
        self.leader_epoch += 1

    def delete_before(self, offset: int) -> None:
        """Let it begin later."""
        self.remove(self.start, offset)
        self.start = offset

    def compact(self, stable: int) -> None:
        """Before an offset, keep the last record of each key and none that was aborted."""
        last = {
            self.records[offset][0]: offset
            for offset in sorted(self.records)
            if offset < stable and offset not in self.aborted
        }
        for offset in [offset for offset in self.records if offset < stable]:
            if last.get(self.records[offset][0]) != offset:
                self.remove(offset, offset + 1)


class MemoryBroker:
    """The topics norms, halts, odometer, rejects and checkpoints, and the epochs of producers.

    Attributes:
        topic: the id of norms.
        partitions: P.
        problem: why the topics cannot be used, if they cannot.
        epochs: (topic, partition) -> the latest epoch of who writes there.
        transactions: the same -> the offsets of the records of a transaction that has not ended.
    """

    def __init__(self, partitions: int, topic: bytes = b"topic in memory!") -> None:
        self.topic = topic
        self.partitions = partitions
        self.problem: str | None = None
        self.epochs: Counter[tuple[str, int]] = Counter()
        self.transactions: dict[tuple[str, int], list[int]] = {}
        self._topics: defaultdict[tuple[str, int], MemoryTopic] = defaultdict(MemoryTopic)

    def norms(self, partition: int) -> MemoryTopic:
        """The log of a partition."""
        return self._topics["norms", partition]

    def outputs(self, channel: Channel, partition: int) -> MemoryTopic:
        """What was published."""
        return self.of(channel.value, partition)

    def images(self, partition: int) -> MemoryTopic:
        """The images of a partition."""
        return self.of(IMAGES, partition)

    def of(self, topic: str, partition: int) -> MemoryTopic:
        """A partition of a topic."""
        return self._topics[topic, partition]

    def committed(self, topic: str, partition: int) -> list[int]:
        """The offsets of its records whose transaction has ended well."""
        found = self.of(topic, partition)
        is_open = set(self.transactions.get((topic, partition), ()))
        return sorted(found.records.keys() - found.aborted - is_open)

    def compact(self, topic: str, partition: int) -> None:
        """Clean it, as far as no transaction is open."""
        found = self.of(topic, partition)
        found.compact(min(self.transactions.get((topic, partition), ()), default=found.end))


IMAGES = "checkpoints"


async def _at_once(_: Effect) -> None:
    """Nothing is waited for."""


class MemoryClient:
    """What one worker has of a broker: the ports ``Topics``, ``Log`` and ``Publisher``."""

    def __init__(
        self, broker: MemoryBroker, before: Callable[[Effect], Awaitable[None]] = _at_once
    ) -> None:
        self.broker = broker
        self.before = before

    async def look(self) -> TopicsSeen:
        """The topics as they are now."""
        await self.before(Effect.LOOK)
        return TopicsSeen(self.broker.topic, self.broker.partitions, self.broker.problem)

    @asynccontextmanager
    async def read_log(self) -> AsyncIterator[MemoryClient]:
        """Open the log."""
        await self.before(Effect.OPEN)
        yield self

    async def extent(self, partition: int) -> Extent:
        """Where the log begins and ends now."""
        await self.before(Effect.MEASURE)
        log = self.broker.norms(partition)
        return Extent(log.start, log.end)

    async def record(self, partition: int, offset: int) -> Stored:
        """One record, as it is applied."""
        await self.before(Effect.READ)
        log = self.broker.norms(partition)
        try:
            return Stored(log.records[offset][1], log.leader_epochs[offset])
        except KeyError:
            raise NoRecord(f"partition {partition} has no record {offset}") from None

    async def missing(self, partition: int, first: int, end: int) -> Missing:
        """What the log has at the offsets first to end - 1."""
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
        """Write outputs; what comes back ends when the client has heard of it."""
        await self.before(Effect.PUBLISH)
        for output in outputs:
            self.broker.outputs(output.channel, partition).append(output.value, output.key)
        return [asyncio.ensure_future(self.before(Effect.HEAR))]

    def checkpoints_of(self, partition: int) -> MemoryFencedProducer:
        """The producer of a partition's checkpoints."""
        return MemoryFencedProducer(self, partition)

    def images_of(self, partition: int) -> MemoryImageTopic:
        """Where a partition's images are."""
        return MemoryImageTopic(self, partition)


class _Epochs:
    """One who writes to a partition of a topic, in transactions of the latest epoch."""

    def __init__(self, client: MemoryClient, topic: str, partition: int) -> None:
        self._before = client.before
        self._broker = client.broker
        self._partition = partition
        self._place = topic, partition
        self._epoch = 0

    async def start(self) -> None:
        """Begin a new epoch; a transaction of the one before is aborted."""
        await self._before(Effect.BEGIN)
        self._topic.aborted.update(self._broker.transactions.get(self._place, ()))
        self._end_transaction()
        self._broker.epochs[self._place] += 1
        self._epoch = self._broker.epochs[self._place]

    async def stop(self) -> None:
        """There is nothing to disconnect."""

    @property
    def _topic(self) -> MemoryTopic:
        return self._broker.of(*self._place)

    def _write(self, value: bytes | None, key: bytes | None) -> int:
        """Write a record of a transaction, which anybody can read before it ends."""
        offset = self._topic.append(value, key)
        self._broker.transactions.setdefault(self._place, []).append(offset)
        return offset

    def _check_epoch(self) -> None:
        if self._epoch != self._broker.epochs[self._place]:
            raise NotSent(f"partition {self._partition}: a later epoch has begun")

    def _end_transaction(self, *, has_begun: bool = False) -> None:
        """Append the end of a transaction, if one has begun, with records or without."""
        if self._broker.transactions.pop(self._place, None) is not None or has_begun:
            self._topic.mark()


class MemoryImageTopic(_Epochs):
    """One partition of the topic of images."""

    def __init__(self, client: MemoryClient, partition: int) -> None:
        super().__init__(client, IMAGES, partition)

    async def read(self, with_contents: bool) -> Image | None:
        """The last image that is out."""
        await self._before(Effect.READ)
        return last_image(self._broker, self._partition, with_contents)

    async def send(self, records: Sequence[Record]) -> None:
        """Send records in one transaction."""
        await self._before(Effect.SEND)
        self._check_epoch()
        for key, value in records:
            self._write(value, key)
        await self._before(Effect.COMMIT)
        self._check_epoch()
        self._end_transaction(has_begun=True)
        await self._before(Effect.HEAR)


def last_image(broker: MemoryBroker, partition: int, with_contents: bool = True) -> Image | None:
    """The last image of a partition that is out.

    Raises:
        UnusableImage: it is not whole.
    """
    search, records = Search(with_contents), broker.images(partition).records
    offsets = broker.committed(IMAGES, partition)
    while offsets and not search.is_over:
        stretch, offsets = offsets[-_STRETCH:], offsets[:-_STRETCH]
        search.take([(key or b"", value) for key, value in (records[at] for at in stretch)])
    return search.image()


class MemoryFencedProducer(_Epochs):
    """Writes the checkpoints of one partition."""

    def __init__(self, client: MemoryClient, partition: int) -> None:
        super().__init__(client, Channel.ODOMETER.value, partition)

    async def last(self) -> Sent | None:
        """The last record that was sent and committed."""
        await self._before(Effect.READ)
        topic = self._topic
        last = max(self._broker.committed(*self._place), default=None)
        if last is None or last not in topic.origins:
            return None
        value = topic.tombstones.get(last, topic.records[last][1])
        return Sent(topic.origins[last], value or b"")

    async def send(self, outputs: Sequence[tuple[Origin, Sequence[Output]]]) -> None:
        """Send records in one transaction, which anybody can read before it ends."""
        try:
            await self._send(outputs)
        except NotSent:
            self._epoch = -1  # which never is the latest
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
        await self._before(Effect.HEAR)

    def _append(self, origin: Origin, output: Output) -> None:
        is_tombstone = tombstone_offset(output.value) is not None
        offset = self._write(None if is_tombstone else output.value, output.key)
        self._topic.origins[offset] = origin
        if is_tombstone:
            self._topic.tombstones[offset] = output.value
