"""The worker: a Faust app with one agent on the topic `norms`, in the real world.

The agent hands each record to the partition it came from and acknowledges nothing by itself: a
record is done when its batch is in Redis. All that is unexpected ends the worker.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from streams.config import Config, lacking
from streams.schemas import MAX_REQUEST_BYTES
from streams.store.port import StoreUnavailable
from streams.topics.authentic import inspector_of, operator_keys_of, seal_of
from streams.topics.seen import TopicsUnavailable
from streams.topics.topics import NORMS, Topics
from streams.worker.exits import EXIT_RESTART, end_process
from streams.worker.health import HealthServer
from streams.worker.kafka.batches import read_as_written
from streams.worker.kafka.faust_app import new_app, run_app
from streams.worker.kafka.fenced_producer import KafkaFencedProducer
from streams.worker.kafka.images import KafkaImageTopic
from streams.worker.kafka.log import KafkaLog
from streams.worker.kafka.publisher import KafkaPublisher
from streams.worker.kafka.topics import KafkaTopics
from streams.worker.kafka.transport import TurnstileApp
from streams.worker.metrics import CountingPublisher, Metrics, PartitionsCollector, TimedStore
from streams.worker.partitions import Partitions
from streams.worker.ports import World

if TYPE_CHECKING:
    from streams.worker.traces import DecisionTraces

logger = logging.getLogger("turnstile.worker")

_BUFFERED_RECORDS = 256
_SESSION_SECONDS = 6.0


class _Record:
    """A Faust event as a record of the log."""

    __slots__ = ("_event", "_metrics", "_traces", "leader_epoch", "offset", "value")

    def __init__(self, event: Any, metrics: Metrics, traces: DecisionTraces | None) -> None:
        self._event, self._metrics, self._traces = event, metrics, traces
        self.offset: int = event.message.offset
        self.value: bytes | None = event.message.value
        self.leader_epoch: int = event.message.checksum  # see ``kafka.batches``

    def done(self) -> None:
        self._event.ack()
        message = self._event.message
        self._metrics.applied(message.partition, message.timestamp, time.time())
        if self._traces is not None:
            self._traces.kept(message.partition, message.offset)


def create_app(config: Config, topics: Topics, log: bytes) -> TurnstileApp:
    """The Faust app of a worker, and the world that the worker is in.

    Args:
        config: its settings.
        topics: the topics.
        log: the id of norms as it was found; another one stops every partition.

    Raises:
        ConfigurationError: keys that cannot be used.
        StoreUnavailable: an address of Redis that cannot be used.
    """
    seal = seal_of(config, log)
    inspector = inspector_of(config, log)
    app = _faust_app(config)
    metrics = Metrics()
    store = TimedStore.of(config)
    store.metrics = metrics
    traces = _traces() if config.traces else None
    publisher = KafkaPublisher(config, seal, traces.answered if traces else None)
    watched = KafkaTopics(topics)
    world = World(
        owner=f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:12]}",
        prefix=config.prefix,
        store=store,
        topics=watched,
        read_log=lambda: KafkaLog(config),
        publisher=CountingPublisher(publisher, metrics),
        checkpoints_of=lambda partition: KafkaFencedProducer(config, partition, seal, inspector),
        images_of=lambda partition: KafkaImageTopic(config, partition, seal, inspector),
        image_every=config.checkpoint_seconds,
        erasure_keys=config.erasure_keys,
        operator_keys=operator_keys_of(config),
        end=end_process,
    )
    app.end = world.end
    app.owned = owned = Partitions(world)
    metrics.register(PartitionsCollector(app.norms_topic, app.conf.id, owned))
    health = HealthServer(config.health, metrics, owned) if config.health else None
    _drive(app, metrics, traces)

    async def connect() -> None:
        await store.connect()
        if unknown := await store.check():
            logger.warning("%s", unknown)
        await publisher.start()
        if health:
            await health.start()

    async def disconnect() -> None:
        if health:
            await health.stop()
        await owned.claim([])
        await publisher.stop()
        await store.close()
        await watched.close()

    app.connect, app.disconnect = connect, disconnect
    return app


def _faust_app(config: Config) -> TurnstileApp:
    """Everything is set here, so that no environment changes what it does."""
    return new_app(
        config,
        f"{config.prefix}worker",
        config.topic(NORMS),
        _BUFFERED_RECORDS,
        consumer_max_fetch_size=MAX_REQUEST_BYTES + 1024 * 1024,
        broker_session_timeout=_SESSION_SECONDS,
        broker_heartbeat_interval=_SESSION_SECONDS / 3,
        broker_commit_interval=5.0,
    )


def _traces() -> DecisionTraces:
    """Makes spans of decisions.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """
    try:
        from streams.worker.traces import DecisionTraces
    except ImportError as error:
        raise lacking("traces", "otel", error) from error
    return DecisionTraces()


def _drive(app: TurnstileApp, metrics: Metrics, traces: DecisionTraces | None) -> None:
    """Let Faust call the partitions; whatever they raise ends the worker."""
    owned = app.owned

    def background(work: Callable[[], Awaitable[None]], what: str) -> None:
        @app.task(on_leader=False)
        async def keep() -> None:
            with _or_end(app, what):
                await work()

    background(owned.keep_compacted, "compaction")
    background(owned.keep_imaged, "writing checkpoints")
    background(lambda: owned.keep_alive(app.end_of), "the heartbeat")
    background(owned.keep_watch, "watching the topics")

    @app.agent(app.topic(app.norms_topic, key_type=bytes, value_type=bytes, allow_empty=True))
    async def decide(stream: Any) -> None:
        # Faust would start the agent again, without the record that it had in hand.
        with _or_end(app, "the stream"):
            async for event in stream.noack().events():
                message = event.message
                if message.generation_id == app.consumer_generation_id:
                    app.arrived(message.partition, len(message.value or b""))
                    if traces is not None:
                        traces.arrived(message.partition, message.offset, _listed(message.headers))
                    await owned.arrive(message.partition, _Record(event, metrics, traces))

    @app.on_partitions_revoked.connect
    async def suspend(*_: Any, **__: Any) -> None:
        with _or_end(app, "suspending the partitions"):
            await owned.suspend()


def _listed(headers: Any) -> Iterable[tuple[str, bytes | None]]:
    """Headers as Kafka has them, which Faust may give as a mapping."""
    listed: Iterable[tuple[str, bytes | None]]
    listed = headers.items() if isinstance(headers, Mapping) else headers or ()
    return listed


@contextmanager
def _or_end(app: TurnstileApp, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        app.end(f"{what} failed: {error}", error)


def run_worker(config: Config, log_level: str = "INFO") -> None:
    """Run a worker until it is told to stop, or something is not as expected."""
    logging.basicConfig(
        level=log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    for chatty in ("kafka", "aiokafka"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    read_as_written()
    topics = Topics(config)
    try:
        app = create_app(config, topics, topics.ensure().topic)
    except (TopicsUnavailable, StoreUnavailable) as error:
        logger.critical("worker ends: %s", error)
        sys.exit(EXIT_RESTART)
    run_app(app, log_level)
