"""The archive of a running service: its topics in Kafka, its state in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from time import monotonic
from types import TracebackType
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError

from streams.config import Config
from streams.offline.archive import Archive, Extent, States, Stored, Unreadable
from streams.operations.images import ImagesUnavailable, read_image
from streams.store.image import Image
from streams.store.port import StoreUnavailable
from streams.store.redis_store import RedisStore
from streams.store.snapshot import Snapshot
from streams.topics.authentic import Inspector, header, inspector_of, operator_keys_of
from streams.topics.clients import new_reader
from streams.topics.seen import TopicsUnavailable
from streams.topics.topics import NORMS, Topics
from streams.wire.signatures import SIGNATURE

_POLL_MS = 500
_BYTES_AT_A_TIME = 32 * 1024 * 1024


class KafkaArchive(Archive):
    """The topics of one prefix, as Kafka has them.

    Raises:
        Unreadable: no broker, or no log.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        try:
            with Topics(config) as topics:
                seen = topics.look()
        except TopicsUnavailable as error:
            raise Unreadable(str(error)) from error
        if not seen.partitions:
            raise Unreadable(
                f"topic {config.topic(NORMS)} does not exist: there is no log of this prefix. The "
                "first worker creates it"
            )
        self.topic, self.partitions = seen.topic, seen.partitions
        self.erasure_keys = config.erasure_keys
        self.operator_keys = operator_keys_of(config)
        self._inspector = inspector_of(config, seen.topic)

    def extent(self, topic: str, partition: int) -> Extent:
        """Where one of the topics begins and ends now."""
        place = TopicPartition(self._config.topic(topic), partition)
        with self._reader() as consumer:
            start, end = consumer.beginning_offsets([place]), consumer.end_offsets([place])
            return Extent(start[place], end[place])

    def read(self, topic: str, partition: int, extent: Extent) -> Iterator[Stored]:
        """The records of an extent, in their order."""
        place = TopicPartition(self._config.topic(topic), partition)
        if extent.start >= extent.end:
            return
        with self._reader() as consumer:
            consumer.assign([place])
            consumer.seek(place, extent.start)
            came = monotonic()
            while (reached := consumer.position(place)) < extent.end:
                for record in consumer.poll(timeout_ms=_POLL_MS).get(place, ()):
                    if record.offset >= extent.end:
                        return
                    yield stored(record, self._inspector if topic != NORMS else None)
                if consumer.position(place) > reached:
                    came = monotonic()
                elif monotonic() - came > self._config.timeout:
                    raise Unreadable(
                        f"nothing comes of partition {partition} of {place.topic} from offset "
                        f"{reached} on, and it had {extent.end} a while ago: see `turnstile status`"
                    )

    def image(self, partition: int) -> Image | None:
        """The last checkpoint of the state of a partition; None if there never was one."""
        try:
            return read_image(self._config, partition, self._inspector)
        except ImagesUnavailable as error:
            raise Unreadable(str(error)) from error

    @contextmanager
    def _reader(self) -> Iterator[KafkaConsumer]:
        config = self._config
        try:
            # What was deleted since it was measured is an error, and not passed over.
            settings = {"auto_offset_reset": "none", "fetch_max_bytes": _BYTES_AT_A_TIME}
            with closing(new_reader(config, **settings)) as consumer:
                yield consumer
        except OffsetOutOfRangeError as error:
            raise Unreadable(
                f"records were deleted while they were read; try again: {error}"
            ) from error
        except KafkaError as error:
            raise Unreadable(f"Kafka at {config.kafka} does not answer: {error}") from error


def stored(record: Any, inspector: Inspector | None) -> Stored:
    """A record, with what is to be said of its signature if there is somebody to look at it."""
    written, content = record.timestamp / 1000, (record.key, record.value)
    if inspector is None:
        return Stored(record.offset, *content, written)
    signed = header(record.headers, SIGNATURE) is not None
    problem = inspector.problem(record.topic, record.partition, content, record.headers)
    unsigned = str(problem) if signed and problem is not None else None
    return Stored(record.offset, *content, written, signed, unsigned)


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

    def load(self, partition: int) -> Snapshot | None:
        """All that is kept of a partition, as of one moment; None if nothing ever was."""
        try:
            return self._runner.run(self._load(partition))
        except StoreUnavailable as error:
            raise Unreadable(str(error)) from error

    async def _load(self, partition: int) -> Snapshot | None:
        if self._store is None:
            self._store = RedisStore.of(self._config)
        return await self._store.load(partition)
