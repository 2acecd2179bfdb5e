"""Reads single records of the log, and what is there where a record is missing.

The stream delivers records and passes over the rest without a word. What the rest is has to be
known before it may be passed over: only the batches themselves tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest

from streams.config import Config
from streams.topics.topics import NORMS
from streams.worker.kafka.batches import EXPANDED_BYTES, UnreadBatch, records_of
from streams.worker.ports import LogUnavailable, Missing, NoRecord

_FETCH_WAIT_MS = 500
_ATTEMPTS, _PAUSE = 10, 0.1  # seconds between them
_READ_UNCOMMITTED = 0


class KafkaLog:
    """A short-lived reader of the topic norms, beside the stream."""

    def __init__(self, config: Config) -> None:
        self._topic = config.topic(NORMS)
        self._kafka = config.kafka
        self._client: Any

    async def __aenter__(self) -> KafkaLog:
        self._client = AIOKafkaClient(bootstrap_servers=self._kafka)
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

    async def record(self, partition: int, offset: int) -> bytes | None:
        """The value of one record, as it is applied.

        Raises:
            NoRecord: there is none at this offset.
        """
        async for batch in self._batches(partition, offset, offset + 1):
            if not batch.is_control_batch:
                for record in batch:
                    if record.offset == offset:
                        value: bytes | None = record.value
                        return value
        raise NoRecord(f"partition {partition} of {self._topic} has no record {offset}")

    async def missing(self, partition: int, first: int, end: int) -> Missing:
        """What the log has at the offsets first to end - 1."""
        reached = first
        async for batch in self._batches(partition, first, end):
            if batch.base_offset > reached:
                break
            if not batch.is_control_batch:
                if any(reached <= record.offset < end for record in batch):
                    return Missing.RECORDS
                if not isinstance(batch, UnreadBatch):
                    break  # records were taken out of it
            reached = batch.next_offset
        return Missing.NOTHING_TO_APPLY if reached >= end else Missing.HOLE

    async def _batches(self, partition: int, first: int, end: int) -> AsyncIterator[Any]:
        """The batches with any of the offsets first to end - 1, in order."""
        while first < end:
            found = records_of(await self._fetch(partition, first))
            if not found.has_next():
                return
            while found.has_next() and first < end:
                batch = found.next_batch()
                first = batch.next_offset
                yield batch

    async def _fetch(self, partition: int, offset: int) -> bytes:
        """Some batches from the one with this offset on; none if the log does not have it."""
        failure: KafkaError | None = None
        for _ in range(_ATTEMPTS):
            try:
                fetched = await self._fetch_once(partition, offset)
                if fetched:
                    return fetched
                failure = None
            except OffsetOutOfRangeError:
                return b""
            except KafkaError as error:
                failure = error
                if not error.retriable:
                    break
                await self._client.force_metadata_update()
            await asyncio.sleep(_PAUSE)
        if failure:
            where = f"partition {partition} of {self._topic}"
            raise LogUnavailable(f"cannot read {where}: {failure!r}") from failure
        return b""

    async def _fetch_once(self, partition: int, offset: int) -> bytes:
        leader = self._client.cluster.leader_for_partition(TopicPartition(self._topic, partition))
        if leader is None or leader == -1:
            raise LeaderNotAvailableError
        asked = [(self._topic, [(partition, offset, EXPANDED_BYTES)])]
        request = FetchRequest(_FETCH_WAIT_MS, 1, EXPANDED_BYTES, _READ_UNCOMMITTED, asked)
        answer = await self._client.send(leader, request)
        _, error_code, *_, fetched = answer.topics[0][1][0]
        if error_code:
            raise for_code(error_code)
        return bytes(fetched or b"")
