"""Reads single records of the log, and what is there where a record is missing.

The stream delivers records and passes over the rest without a word. What the rest is has to be
known before it may be passed over: only the batches themselves tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

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
from streams.topics.topics import NORMS
from streams.worker.kafka.batches import EXPANDED_BYTES, UnreadBatch, epoch_of, records_of
from streams.worker.kafka.connection import connection_settings
from streams.worker.ports import Extent, LogUnavailable, Missing, NoRecord, Stored

T = TypeVar("T")

_FETCH_WAIT_MS = 500
_ATTEMPTS, _PAUSE = 10, 0.1  # seconds between them
_READ_UNCOMMITTED = 0


class KafkaLog:
    """A short-lived reader of the topic norms, beside the stream."""

    def __init__(self, config: Config) -> None:
        self._topic = config.topic(NORMS)
        self._config = config
        self._client: Any

    async def __aenter__(self) -> KafkaLog:
        self._client = AIOKafkaClient(**connection_settings(self._config))
        try:
            await self._client.bootstrap()
            await self._client._wait_on_metadata(self._topic)
        except KafkaError as error:
            await self._client.close()
            raise LogUnavailable(f"cannot read {self._topic}: {error!r}") from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.close()

    async def extent(self, partition: int) -> Extent:
        """Where the log begins and ends now."""

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

    async def record(self, partition: int, offset: int) -> Stored:
        """One record, as it is applied.

        Raises:
            NoRecord: there is none at this offset.
        """
        async for batch, leader_epoch in self._batches(partition, offset, offset + 1):
            if not batch.is_control_batch:
                for record in batch:
                    if record.offset == offset:
                        return Stored(record.value, leader_epoch)
        raise NoRecord(f"partition {partition} of {self._topic} has no record {offset}")

    async def missing(self, partition: int, first: int, end: int) -> Missing:
        """What the log has at the offsets first to end - 1."""
        reached = first
        async for batch, _ in self._batches(partition, first, end):
            if batch.base_offset > reached:
                break
            if not batch.is_control_batch:
                if any(reached <= record.offset < end for record in batch):
                    return Missing.RECORDS
                if not isinstance(batch, UnreadBatch):
                    break  # records were taken out of it
            reached = batch.next_offset
        return Missing.NOTHING_TO_APPLY if reached >= end else Missing.HOLE

    async def _batches(
        self, partition: int, first: int, end: int
    ) -> AsyncIterator[tuple[Any, int]]:
        """The batches with any of the offsets first to end - 1, in order, and their epochs."""
        while first < end:
            found = records_of(await self._fetch(partition, first))
            if not found.has_next():
                return
            while found.has_next() and first < end:
                batch = found.next_batch()
                first = batch.next_offset
                yield batch, epoch_of(found)

    async def _fetch(self, partition: int, offset: int) -> bytes:
        """Some batches from the one with this offset on; none if the log does not have it."""

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
        """What the leader of a partition answers, after some attempts."""
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
