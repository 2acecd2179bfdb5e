"""A Faust app whose settings come from this module alone, and how it runs and ends.

Everything that Faust would read from the environment, store on disk, serve or declare is switched
off. An app reads one topic, and the owner of a partition decides where to start in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import faust
from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials
from faust.types import TP
from faust.worker import Worker

from streams.config import Config
from streams.kafka.aiokafka_settings import connection_settings
from streams.kafka.batches import RecordBatch
from streams.worker.ports import End, Ending, StreamRecord
from streams.worker.transport import (
    AcquiringTransport,
    NoTables,
    read_batches_within_limits,
)

logger = logging.getLogger("turnstile.worker")

EXIT_RESTART = 75
"""The exit status that asks to be restarted: fenced, Redis or Kafka unavailable, or a bug."""


_METADATA_MS = 5_000
"""The age at which the client asks for the topic's partitions again.

If its last request failed, the member that distributes the partitions knows none and gives none to
any worker. It corrects that only after its next request, which is five minutes later by default.
"""

_FOREVER = 10 * 365 * 86_400.0
"""The seconds for which a member of the group may fetch nothing.

After that, aiokafka leaves the group, and joins it again only if it is asked for records. Nothing
asks for them while a worker has no partition, or decides none of those that it has: by default, it
would not take over from another worker any more after a quarter of an hour.
"""


class Partitions(Protocol):
    """The partitions of a process: their owner says where to read, and whether to."""

    async def acquire(self, assigned: Collection[int]) -> Mapping[int, int]:
        """Own exactly these partitions; return the offset to fetch next of those to be read."""

    def decides(self, partition: int) -> bool:
        """Return whether records of a partition are wanted."""

    def has_room(self, partition: int) -> bool:
        """Return whether a wanted partition can queue more records."""


class TurnstileApp(faust.App):
    """A Faust app that acquires partitions and reads one topic.

    Args:
        name: the consumer group.
        at_once: the largest number of records to take from one fetch.
        take: receives each record of the topic; it may wait for room.
        connect: is called before anything is consumed.
        disconnect: is called at the end.
        end: ends the process; an exception in anything that the app calls leads to it.
        settings: further Faust settings.

    Raises:
        ConfigurationError: a certificate cannot be used.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        *,
        topic: str,
        at_once: int,
        partitions: Partitions,
        take: Callable[[StreamRecord], Awaitable[None]],
        connect: Callable[[], Awaitable[None]],
        disconnect: Callable[[], Awaitable[None]],
        end: End,
        batch: type[RecordBatch] = RecordBatch,
        **settings: Any,
    ) -> None:
        read_batches_within_limits(batch)
        super().__init__(
            name,
            broker=";".join(f"kafka://{address}" for address in config.kafka.split(",")),
            broker_credentials=_credentials(config),
            store="memory://",
            TableManager=NoTables,
            web_enabled=False,
            topic_disable_leader=True,
            table_standby_replicas=0,  # otherwise Faust's assignor leaves some of many workers idle
            topic_allow_declare=False,
            key_serializer="raw",
            value_serializer="raw",
            consumer_auto_offset_reset="none",  # never start at an offset that Redis did not give
            broker_max_poll_records=at_once,
            consumer_metadata_max_age_ms=_METADATA_MS,
            broker_max_poll_interval=_FOREVER,
            **settings,
        )
        self.norms_topic, self.owned, self.end = topic, partitions, end
        self._take, self._connect, self._disconnect = take, connect, disconnect

    def background(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` as long as the app; ``what`` says in an error what failed."""

        @self.task(on_leader=False)
        async def keep() -> None:
            with self.or_end(what):
                await work()

    @contextmanager
    def or_end(self, what: str) -> Iterator[None]:
        """End the process if an exception is raised."""
        try:
            yield
        except Exception as error:
            self.end(Ending.FAILED, f"{what} failed: {error}", error)

    async def take(self, record: StreamRecord) -> None:
        """Hand over a record of the topic."""
        with self.or_end("taking records"):
            await self._take(record)

    async def on_start(self) -> None:
        """Connect before anything is consumed, and subscribe to the topic."""
        with self.or_end("starting"):
            await self._connect()
        self.topics.add(self.topic(self.norms_topic, acks=False))
        await super().on_start()

    async def on_stop(self) -> None:
        """Close the connections."""
        await super().on_stop()
        await self._disconnect()

    def end_of(self, partition: int) -> int | None:
        """Return the end of a partition's log at the last fetch, or None if it is not known."""
        try:
            end: int | None = self.consumer.highwater(TP(self.norms_topic, partition))
        except (AssertionError, AttributeError):
            return None  # no longer assigned: another thread saw this first
        return end

    def _create_directories(self) -> None:
        """Do nothing: Faust would create directories for tables."""

    def _new_transport(self) -> AcquiringTransport:
        return AcquiringTransport(self.conf.broker_consumer, self)


def _credentials(
    config: Config,
) -> OAuthCredentials | SASLCredentials | SSLCredentials | None:
    """Return the credentials of the app in Faust's classes; None for a plaintext connection."""
    settings = connection_settings(config)
    context = settings.get("ssl_context")
    if "sasl_oauth_token_provider" in settings:
        return OAuthCredentials(oauth_cb=settings["sasl_oauth_token_provider"], ssl_context=context)
    if "sasl_mechanism" in settings:
        return SASLCredentials(
            username=config.kafka_username,
            password=config.kafka_password,
            mechanism=config.kafka_mechanism,
            ssl_context=context,
        )
    return None if context is None else SSLCredentials(context)


def run_app(app: TurnstileApp, log_level: str) -> None:
    """Run an app until it is stopped; the caller has configured logging."""
    worker = _Worker(app, loglevel=log_level, quiet=True, override_logging=False)
    worker.spinner = None  # it writes control characters between the lines
    worker.execute_from_commandline()


class _Worker(Worker):
    """A Faust worker without the one-second sleep at its end."""

    async def _sentinel_task(self) -> None:
        await asyncio.sleep(0)


def end_process(reason: Ending, why: str, error: BaseException | None = None) -> NoReturn:
    """End this process without clean-up, which could acknowledge or publish something."""
    logger.critical(
        "the worker exits (%s): %s", reason, why, exc_info=error, extra={"reason": reason}
    )
    logging.shutdown()
    sys.stderr.flush()
    os._exit(EXIT_RESTART)
