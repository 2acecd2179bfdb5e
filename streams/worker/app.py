"""The worker: a Faust app that reads the topic `norms`, in the real world.

Each record goes to the partition it came from, and is done when its batch is in Redis: nothing is
acknowledged to Kafka. All that is unexpected ends the worker.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from streams.config import Config, lacking
from streams.schemas import MAX_REQUEST_BYTES
from streams.store.port import StoreUnavailable
from streams.topics.authentic import inspector_of, operator_keys_of, seal_of
from streams.topics.seen import TopicsUnavailable, log_name
from streams.topics.topics import NORMS, Topics
from streams.worker.exits import EXIT_RESTART, end_process
from streams.worker.health import HealthServer
from streams.worker.kafka.faust_app import new_app, run_app
from streams.worker.kafka.fenced_producer import KafkaFencedProducer
from streams.worker.kafka.images import KafkaImageTopic
from streams.worker.kafka.log import KafkaLog
from streams.worker.kafka.publisher import KafkaPublisher
from streams.worker.kafka.topics import KafkaTopics
from streams.worker.kafka.transport import StreamRecord, TurnstileApp
from streams.worker.metrics import CountingPublisher, Metrics, PartitionsCollector, TimedStore
from streams.worker.partitions import Partitions
from streams.worker.ports import World

if TYPE_CHECKING:
    from streams.worker.traces import DecisionTraces

logger = logging.getLogger("turnstile.worker")

_FETCHED_RECORDS = 256
_SESSION_SECONDS = 6.0


class _Record:
    """A record of the stream as one of the log."""

    __slots__ = ("_fetched", "_metrics", "_traces", "leader_epoch", "offset", "value")

    def __init__(
        self, fetched: StreamRecord, metrics: Metrics, traces: DecisionTraces | None
    ) -> None:
        self._fetched, self._metrics, self._traces = fetched, metrics, traces
        self.offset = fetched.offset
        self.value = fetched.value
        self.leader_epoch = fetched.leader_epoch

    def done(self) -> None:
        fetched = self._fetched
        self._metrics.applied(fetched.partition, fetched.timestamp / 1000, time.time())
        if self._traces is not None:
            self._traces.kept(fetched.partition, fetched.offset)


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
    metrics = Metrics(log_name(config.topic(NORMS), log))
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
        _FETCHED_RECORDS,
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
    background(owned.keep_cleanable, "letting Kafka clean the topics")
    background(lambda: owned.keep_alive(app.end_of), "the heartbeat")
    background(owned.keep_watch, "watching the topics")

    async def take(fetched: StreamRecord) -> None:
        with _or_end(app, "taking records"):
            if traces is not None:
                traces.arrived(fetched.partition, fetched.offset, fetched.headers)
            await owned.arrive(fetched.partition, _Record(fetched, metrics, traces))

    app.take = take

    @app.on_partitions_revoked.connect
    async def suspend(*_: Any, **__: Any) -> None:
        with _or_end(app, "suspending the partitions"):
            await owned.suspend()


@contextmanager
def _or_end(app: TurnstileApp, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        app.end(f"{what} failed: {error}", error)


def unheeded_partitions(config: Config, there: int) -> str:
    """What to tell whoever asks for another number of partitions than there is; empty if nobody
    does: what the setting is by itself nobody has asked for."""
    if config.partitions in (there, Config.partitions):
        return ""
    return (
        f"partitions is {config.partitions}, and {config.topic(NORMS)} has {there}, which counts: "
        "the setting is for topics that do not exist yet"
    )


def run_worker(config: Config, log_level: str = "INFO") -> None:
    """Run a worker until it is told to stop, or something is not as expected."""
    logging.basicConfig(
        level=log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    for chatty in ("kafka", "aiokafka"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    topics = Topics(config)
    try:
        seen = topics.ensure()
        if unheeded := unheeded_partitions(config, seen.partitions):
            logger.warning("%s", unheeded)
        app = create_app(config, topics, seen.topic)
    except (TopicsUnavailable, StoreUnavailable) as error:
        logger.critical("worker ends: %s", error)
        sys.exit(EXIT_RESTART)
    run_app(app, log_level)
