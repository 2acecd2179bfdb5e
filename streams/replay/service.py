"""A service in Kafka and Redis: the topics and the state that commands replay and compare.

``ServiceArchive`` only reads. ``append`` writes, for a budget file that is moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from kafka.errors import KafkaError

from streams.config import Config, ConfigurationError, Unavailable
from streams.kafka.authentic import RecordVerifier, header, verifier_of
from streams.kafka.batches import FetchedRecord, Gap
from streams.kafka.kafka_clients import new_producer
from streams.kafka.log import TopicReader
from streams.kafka.results import Extent, LogUnavailable, TopicsUnavailable
from streams.kafka.security import explained
from streams.kafka.snapshot_topic import read_snapshot
from streams.kafka.topics import NORMS, Topics
from streams.operations.status import read_glances
from streams.records.json_outputs import to_msgpack
from streams.records.signatures import SIGNATURE
from streams.replay.archive import (
    Archive,
    ArchivedRecord,
    HeadSource,
    MissingRecord,
    StoredHead,
    UnreadableService,
    other_log,
)
from streams.sdk.errors import TurnstileError
from streams.store.redis_store import RedisStore
from streams.store.snapshot import Snapshot, UnusableSnapshot
from streams.store.store_port import Glance, StoreUnavailable
from streams.store.stored_state import StoredState

if TYPE_CHECKING:
    from streams.answerer.published_answers import AnswerRecord

_RECORDS_AT_ONCE, _BYTES_AT_ONCE = 256, 8 * 1024 * 1024
"""The limits of what is read in one run of the event loop, or appended at once."""


class ServiceArchive(Archive):
    """The topics and the state under one prefix in Kafka and Redis.

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
        """Return where a topic begins and ends now."""
        with self._reader(topic) as (run, reader):
            return run.run(reader.extent(partition))

    def read(self, topic: str, partition: int, extent: Extent) -> Iterator[ArchivedRecord]:
        """Yield the records of an extent, in order."""
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
                        archived = stored(name, partition, record, verifier)
                        # Requests stay as they are: their hashes are those of the sent bytes.
                        yield archived if is_norms else _as_made(archived)
            except Gap as gap:
                found = run.run(reader.extent(partition))
                if is_norms and found.start <= gap.offset < found.end:
                    raise MissingRecord(partition, gap.offset) from gap
                raise UnreadableService(
                    f"partition {partition} of {name}: {gap}, and it has the offsets "
                    f"{found.start} to {found.end} now. Records were deleted or lost while they "
                    "were read; try again"
                ) from gap

    def answers(self) -> Iterator[AnswerRecord]:
        """Yield the published answers, up to one that cannot be read."""
        from streams.answerer.published_answers import read_answers

        with suppress(ConfigurationError, TurnstileError):  # no topic, no right to it, or no keys
            yield from read_answers(self._config)

    def heads(self, partition: int) -> Sequence[StoredHead]:
        """Return the heads in Redis and in the last snapshot; Redis is asked only once."""
        return [self._head_in_redis(partition), self._head_of_snapshot(partition)]

    def _head_in_redis(self, partition: int) -> StoredHead:
        if self._glances is None:
            try:
                self._glances = read_glances(self._config, self.partitions)
            except Unavailable as error:
                self._glances, self._silent = [], str(error)
        head = partial(StoredHead, partition, HeadSource.REDIS)
        if not self._glances:
            return head(lacking=self._silent)
        glance = self._glances[partition]
        if (meta := glance.state) is None:
            return head(lacking="its state is damaged" if glance.meta else "it holds no state")
        return head(meta.next, meta.chain.head)

    def _head_of_snapshot(self, partition: int) -> StoredHead:
        head = partial(StoredHead, partition, HeadSource.SNAPSHOT)
        try:
            snapshot = read_snapshot(self._config, partition, self._verifier, with_contents=False)
        except (LogUnavailable, UnusableSnapshot) as error:
            return head(lacking=str(error))
        if snapshot is None:
            return head(lacking="there is no snapshot")
        manifest = snapshot.manifest
        if lacking := other_log(self, partition, manifest):
            return head(lacking=lacking)
        return head(manifest.meta.next, manifest.meta.chain.head)

    def snapshot(self, partition: int) -> Snapshot | None:
        """Return the last snapshot of a partition's state; None if there never was one."""
        try:
            return read_snapshot(self._config, partition, self._verifier)
        except LogUnavailable as error:
            raise UnreadableService(str(error)) from error

    def load(self, partition: int) -> StoredState | None:
        """Return the state of a partition in Redis at one moment; None if there is none."""
        try:
            return asyncio.run(self._load(partition))
        except StoreUnavailable as error:
            raise UnreadableService(str(error)) from error

    async def _load(self, partition: int) -> StoredState | None:
        async with RedisStore.of(self._config) as store:
            return await store.load(partition)

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
    """Replace the contents of a list by the next records; return whether there are any.

    The records are not returned, because asyncio formats the result of each task that a runner
    runs, and discards the text. That took longer than reading the records.
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
    """Return a record with the result of verifying its signature, if there is a verifier."""
    written, content = record.timestamp / 1000, (record.key, record.value)
    if verifier is None:
        return ArchivedRecord(record.offset, *content, written)
    signed = header(record.headers, SIGNATURE) is not None
    problem = verifier.problem(topic, partition, content, record.headers)
    unsigned = str(problem) if signed and problem is not None else None
    return ArchivedRecord(record.offset, *content, written, signed, unsigned)


def _as_made(record: ArchivedRecord) -> ArchivedRecord:
    """Return a record of another topic than norms as the ledger made it."""
    return record._replace(value=None if record.value is None else to_msgpack(record.value))


def append(config: Config, partition: int, records: Iterable[ArchivedRecord]) -> None:
    """Append records with their times to norms, and wait until the broker has them.

    Raises:
        UnreadableService: it does not.
    """
    topic, rest = config.topic(NORMS), iter(records)
    try:
        with closing(new_producer(config)) as producer:
            send = partial(producer.send, topic, partition=partition)
            while some := list(islice(rest, _RECORDS_AT_ONCE)):
                sent = [send(value=r.value, timestamp_ms=int(1e3 * r.written)) for r in some]
                for future in sent:
                    future.get(config.timeout)
    except KafkaError as error:
        problem = f"partition {partition} of {topic}: {explained(error)}"
        raise UnreadableService(problem) from error
