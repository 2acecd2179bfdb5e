"""Reads topics by offset, independently of any stream: records, extents and gaps.

The stream of a consumer delivers records and silently skips everything else. ``TopicReader``
fetches the batches themselves, so it knows what lies between two records: the end of a
transaction, an unreadable batch, or nothing, which is a gap. Workers use it to look into the log,
and the commands that replay the log use it to read all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest, OffsetResetStrategy

from streams.config import Config
from streams.kafka.aiokafka_settings import connection_settings
from streams.kafka.batches import (
    EXPANDED_BYTES,
    CorruptBatch,
    FetchedRecord,
    Gap,
    RecordBatch,
    batches_of,
    records_from,
)
from streams.kafka.results import Extent, LogUnavailable, Missing, StoredRecord
from streams.kafka.topics import NORMS

T = TypeVar("T")

_FETCH_WAIT_MS = 500
_ATTEMPTS, _PAUSE = 10, 0.1  # seconds between them
_READ_UNCOMMITTED = 0


class TopicReader:
    """A short-lived reader of one topic. Each method raises ``LogUnavailable``."""

    def __init__(self, config: Config, topic: str) -> None:
        """Prepare a reader; ``async with`` connects it."""
        self._topic = topic
        self._config = config
        self._client: Any

    async def __aenter__(self) -> Self:
        self._client = AIOKafkaClient(**connection_settings(self._config))
        try:
            await self._client.bootstrap()
            await self._client._wait_on_metadata(self._topic)
        except KafkaError as error:
            await self._client.close()
            raise LogUnavailable(f"cannot read {self._topic}: {error!r}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def extent(self, partition: int) -> Extent:
        """Return where a partition begins and ends now."""

        async def offset(leader: int, place: int) -> int:
            asked = [(self._topic, [(partition, place)])]
            answer = await self._client.send(leader, OffsetRequest(-1, _READ_UNCOMMITTED, asked))
            _, error_code, _, found = answer.topics[0][1][0]
            if error_code:
                raise for_code(error_code)
            return int(found)

        async def both(leader: int) -> Extent:
            start = await offset(leader, OffsetResetStrategy.EARLIEST)
            return Extent(start, await offset(leader, OffsetResetStrategy.LATEST))

        return await self._persistently(partition, both)

    async def records(
        self, partition: int, extent: Extent, *, may_have_gaps: bool = False
    ) -> AsyncIterator[FetchedRecord]:
        """Return the records of an extent, in order, committed or not.

        A missing offset is a ``Gap``, unless compaction or retention may have removed records; an
        end of the topic before that of the extent is one, too.
        """
        first = extent.start
        async for batch in self._batches(partition, extent):
            for record in records_from(batch, first, extent.end, may_have_gaps=may_have_gaps):
                yield record
            first = batch.next_offset
        if first < extent.end:
            raise Gap(first)

    async def _batches(self, partition: int, extent: Extent) -> AsyncIterator[RecordBatch]:
        """Return the batches with any of these offsets, in order."""
        fetched_from, first = -1, extent.start
        while fetched_from < first < extent.end:
            fetched_from = first
            try:
                for batch in batches_of(await self._fetch(partition, first)):
                    if first >= extent.end:
                        return
                    first = batch.next_offset
                    yield batch
            except CorruptBatch as corrupt:
                raise LogUnavailable(
                    f"cannot read partition {partition} of {self._topic}: {corrupt}"
                ) from corrupt

    async def _fetch(self, partition: int, offset: int) -> bytes:
        """Return some batches, the first of which has this offset; empty if there is none."""

        async def once(leader: int) -> bytes:
            asked = [(self._topic, [(partition, offset, EXPANDED_BYTES)])]
            request = FetchRequest(_FETCH_WAIT_MS, 1, EXPANDED_BYTES, _READ_UNCOMMITTED, asked)
            answer = await self._client.send(leader, request)
            _, error_code, *_, fetched = answer.topics[0][1][0]
            if error_code:
                raise for_code(error_code)
            return bytes(fetched or b"")

        try:
            for _ in range(_ATTEMPTS):
                if fetched := await self._persistently(partition, once):
                    return fetched
                await asyncio.sleep(_PAUSE)
        except OffsetOutOfRangeError:
            pass
        return b""

    async def _persistently(self, partition: int, ask: Callable[[int], Awaitable[T]]) -> T:
        """Return what the leader of a partition answers, after some attempts."""
        failure: KafkaError | None = None
        place = TopicPartition(self._topic, partition)
        for _ in range(_ATTEMPTS):
            try:
                leader = self._client.cluster.leader_for_partition(place)
                if leader is None or leader == -1:
                    raise LeaderNotAvailableError
                return await ask(leader)
            except OffsetOutOfRangeError:
                raise
            except KafkaError as error:
                failure = error
                if not error.retriable:
                    break
                await self._client.force_metadata_update()
            await asyncio.sleep(_PAUSE)
        where = f"partition {partition} of {self._topic}"
        raise LogUnavailable(f"cannot read {where}: {failure!r}") from failure


class KafkaLog(TopicReader):
    """Reads the topic norms for a worker."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.topic(NORMS))

    async def record(self, partition: int, offset: int) -> StoredRecord | None:
        """Return the record at an offset; None if there is none."""
        with suppress(Gap):
            async for record in self.records(partition, Extent(offset, offset + 1)):
                return StoredRecord(record.value, record.leader_epoch)
        return None

    async def missing(self, partition: int, first: int, end: int) -> Missing:
        """Return what the log holds at the offsets first to end - 1."""
        try:
            async for _ in self.records(partition, Extent(first, end)):
                return Missing.RECORDS
        except Gap:
            return Missing.HOLE
        return Missing.NOTHING_TO_APPLY
