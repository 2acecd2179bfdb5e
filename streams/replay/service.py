"""The archive of a running service: its topics in Kafka, its state in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from streams.config import Config
from streams.kafka.authentic import RecordVerifier, header, verifier_of
from streams.kafka.batches import FetchedRecord, Gap
from streams.kafka.log import TopicReader
from streams.kafka.results import Extent, LogUnavailable
from streams.kafka.seen import TopicsUnavailable
from streams.kafka.snapshot_reader import SnapshotsUnavailable, read_snapshot
from streams.kafka.topics import NORMS, Topics
from streams.operations.errors import Unavailable
from streams.operations.status import read_glances
from streams.records.signatures import SIGNATURE
from streams.replay.archive import (
    Archive,
    ArchivedRecord,
    HeadSource,
    MissingRecord,
    States,
    StoredHead,
    UnreadableService,
)
from streams.store.port import Glance, StoreUnavailable
from streams.store.redis_store import RedisStore
from streams.store.snapshot import Snapshot, UnusableSnapshot
from streams.store.stored_state import StoredState

_RECORDS_AT_ONCE, _BYTES_AT_ONCE = 256, 8 * 1024 * 1024
"""Read in one go of the event loop: of many small records, or of few large ones."""


class KafkaArchive(Archive):
    """The topics of one prefix, as Kafka has them.

    Raises:
        UnreadableService: no broker, or no log.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        try:
            with Topics(config) as topics:
                seen = topics.look()
        except TopicsUnavailable as error:
            raise UnreadableService(str(error)) from error
        if not seen.partitions:
            raise UnreadableService(
                f"topic {config.topic(NORMS)} does not exist: there is no log of this prefix. The "
                "first worker creates it"
            )
        self.topic, self.partitions = seen.topic, seen.partitions
        self.erasure_keys = config.erasure_keys
        self._verifier = verifier_of(config, seen.topic)
        self._glances: list[Glance] | None = None
        self._silent = ""

    def extent(self, topic: str, partition: int) -> Extent:
        """Where one of the topics begins and ends now."""
        with self._reader(topic) as (run, reader):
            return run.run(reader.extent(partition))

    def read(self, topic: str, partition: int, extent: Extent) -> Iterator[ArchivedRecord]:
        """The records of an extent, in their order; see ``streams.kafka.batches``."""
        if extent.start >= extent.end:
            return
        name, is_norms = self._config.topic(topic), topic == NORMS
        verifier = None if is_norms else self._verifier
        with self._reader(topic) as (run, reader):
            records = reader.records(partition, extent, may_have_gaps=not is_norms)
            try:
                some: list[FetchedRecord] = []
                while run.run(_take_some(records, some)):
                    for record in some:
                        yield stored(name, partition, record, verifier)
            except Gap as gap:
                found = run.run(reader.extent(partition))
                if is_norms and found.start <= gap.offset < found.end:
                    raise MissingRecord(partition, gap.offset) from gap
                raise UnreadableService(
                    f"partition {partition} of {name}: {gap}, and it has the offsets "
                    f"{found.start} to {found.end} now. Records were deleted or lost while they "
                    "were read; try again"
                ) from gap

    def heads(self, partition: int) -> Sequence[StoredHead]:
        """What Redis and the last snapshot say; Redis is asked once for all partitions."""
        return [self._head_in_redis(partition), self._head_of_snapshot(partition)]

    def _head_in_redis(self, partition: int) -> StoredHead:
        if self._glances is None:
            try:
                self._glances = read_glances(self._config, self.partitions)
            except Unavailable as error:
                self._glances, self._silent = [], str(error)
        if not self._glances:
            return StoredHead(HeadSource.REDIS, lacking=self._silent)
        meta = self._glances[partition].meta
        try:
            return StoredHead(HeadSource.REDIS, int(meta["next"]), bytes.fromhex(meta["head"]))
        except (KeyError, ValueError):
            why = "what Redis keeps is not whole" if meta else "Redis keeps nothing"
            return StoredHead(HeadSource.REDIS, lacking=why)

    def _head_of_snapshot(self, partition: int) -> StoredHead:
        try:
            snapshot = read_snapshot(self._config, partition, self._verifier, with_contents=False)
        except (SnapshotsUnavailable, UnusableSnapshot) as error:
            return StoredHead(HeadSource.SNAPSHOT, lacking=str(error))
        if snapshot is None:
            return StoredHead(HeadSource.SNAPSHOT, lacking="there is no snapshot")
        manifest = snapshot.manifest
        if (manifest.topic, manifest.partitions) != (self.topic.hex(), self.partitions):
            return StoredHead(HeadSource.SNAPSHOT, lacking="the last snapshot is of another log")
        return StoredHead(HeadSource.SNAPSHOT, manifest.next, manifest.chain.head)

    def snapshot(self, partition: int) -> Snapshot | None:
        """The last snapshot of the state of a partition; None if there never was one."""
        try:
            return read_snapshot(self._config, partition, self._verifier)
        except SnapshotsUnavailable as error:
            raise UnreadableService(str(error)) from error

    @contextmanager
    def _reader(self, topic: str) -> Iterator[tuple[asyncio.Runner, TopicReader]]:
        with asyncio.Runner() as run:
            try:
                reader = TopicReader(self._config, self._config.topic(topic))
                run.run(reader.__aenter__())
                try:
                    yield run, reader
                finally:
                    run.run(reader.__aexit__(None, None, None))
            except LogUnavailable as error:
                raise UnreadableService(f"Kafka at {self._config.kafka}: {error}") from error


async def _take_some(records: AsyncIterator[FetchedRecord], some: list[FetchedRecord]) -> bool:
    """Replace what a list has by the next records; return whether there are any.

    The records are not the result: asyncio formats the result of each task that a runner runs, and
    discards the text. That took longer than reading the records.
    """
    some.clear()
    size = 0
    async for record in records:
        some.append(record)
        size += len(record.value or b"")
        if len(some) == _RECORDS_AT_ONCE or size >= _BYTES_AT_ONCE:
            break
    return bool(some)


def stored(
    topic: str, partition: int, record: FetchedRecord, verifier: RecordVerifier | None
) -> ArchivedRecord:
    """A record, with what is to be said of its signature if there is somebody to look at it."""
    written, content = record.timestamp / 1000, (record.key, record.value)
    if verifier is None:
        return ArchivedRecord(record.offset, *content, written)
    signed = header(record.headers, SIGNATURE) is not None
    problem = verifier.problem(topic, partition, content, record.headers)
    unsigned = str(problem) if signed and problem is not None else None
    return ArchivedRecord(record.offset, *content, written, signed, unsigned)


class RedisStates(States):
    """What one Redis keeps; a context manager."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._runner = asyncio.Runner()
        self._store: RedisStore | None = None

    def __enter__(self) -> RedisStates:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._store is not None:
            self._runner.run(self._store.close())
        self._runner.close()

    def load(self, partition: int) -> StoredState | None:
        """All that is kept of a partition, as of one moment; None if nothing ever was."""
        try:
            return self._runner.run(self._load(partition))
        except StoreUnavailable as error:
            raise UnreadableService(str(error)) from error

    async def _load(self, partition: int) -> StoredState | None:
        if self._store is None:
            self._store = RedisStore.of(self._config)
        return await self._store.load(partition)
