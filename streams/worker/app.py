"""The worker: a Faust app that reads the topic norms, with the real implementation of every port.

The app hands each record to its partition. A record is done when its batch is in Redis; nothing is
acknowledged to Kafka. Any unexpected error ends the worker.
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
from streams.kafka.authentic import record_signer_of, verifier_of
from streams.kafka.fenced_producer import KafkaFencedProducer
from streams.kafka.log import KafkaLog
from streams.kafka.private_names import check_private_names
from streams.kafka.publisher import KafkaPublisher
from streams.kafka.results import TopicsUnavailable, log_name
from streams.kafka.snapshot_topic import KafkaSnapshotTopic
from streams.kafka.topics import NORMS, KafkaTopics, Topics
from streams.records import MAX_REQUEST_BYTES
from streams.store.store_port import StoreUnavailable
from streams.worker.faust_app import EXIT_RESTART, end_process, new_app, run_app
from streams.worker.health import HealthServer
from streams.worker.metrics import CountingPublisher, Metrics, PartitionsCollector, TimedStore
from streams.worker.ownership import OwnedPartitions
from streams.worker.ports import Ending, World
from streams.worker.transport import StreamRecord, TurnstileApp

if TYPE_CHECKING:
    from streams.worker.traces import DecisionTraces

logger = logging.getLogger("turnstile.worker")

_FETCHED_RECORDS = 256
_SESSION_SECONDS = 6.0
_HEARTBEAT_SECONDS = 0.5
"""A worker learns of a new distribution of partitions from its next heartbeat.

Until all workers have learned of it, the partitions are not decided.
"""


class _Record:
    """Adapts a record of the stream to ``LogRecord``."""

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
    """Return the Faust app of a worker, with all of its ports.

    Args:
        config: the settings.
        topics: the topics.
        log: the topic id of norms; if the topic has another id later, every partition is suspended.

    Raises:
        ConfigurationError: a signing key or a trust store cannot be used.
        StoreUnavailable: the address of Redis cannot be used.
    """
    signer = record_signer_of(config, log)
    verifier = verifier_of(config, log)
    app = _faust_app(config)
    metrics = Metrics(log_name(config.topic(NORMS), log))
    store = TimedStore.of(config)
    store.metrics = metrics
    traces = _traces() if config.traces else None
    publisher = KafkaPublisher(config, signer, traces.answered if traces else None)
    watched = KafkaTopics(topics)
    world = World(
        owner=f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:12]}",
        prefix=config.prefix,
        store=store,
        topics=watched,
        read_log=lambda: KafkaLog(config),
        publisher=CountingPublisher(publisher, metrics),
        odometer_producer_of=lambda partition: KafkaFencedProducer(
            config, partition, signer, verifier
        ),
        snapshots_of=lambda partition: KafkaSnapshotTopic(config, partition, signer, verifier),
        snapshot_every=config.snapshot_seconds,
        erasure_keys=config.erasure_keys,
        end=end_process,
    )
    app.end = world.end
    app.owned = owned = OwnedPartitions(world)
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
        await owned.acquire([])
        await publisher.stop()
        await store.close()
        await watched.close()

    app.connect, app.disconnect = connect, disconnect
    return app


def _faust_app(config: Config) -> TurnstileApp:
    """Return the app; every Faust setting is given here, so the environment has no effect."""
    return new_app(
        config,
        f"{config.prefix}worker",
        config.topic(NORMS),
        _FETCHED_RECORDS,
        consumer_max_fetch_size=MAX_REQUEST_BYTES + 1024 * 1024,
        broker_session_timeout=_SESSION_SECONDS,
        broker_heartbeat_interval=_HEARTBEAT_SECONDS,
        broker_commit_interval=5.0,
    )


def _traces() -> DecisionTraces:
    """Return what traces decisions.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """
    try:
        from streams.worker.traces import DecisionTraces
    except ImportError as error:
        raise lacking("traces", "otel", error) from error
    return DecisionTraces()


def _drive(app: TurnstileApp, metrics: Metrics, traces: DecisionTraces | None) -> None:
    """Connect Faust to the partitions; an exception in a call ends the worker."""
    owned = app.owned

    def background(work: Callable[[], Awaitable[None]], what: str) -> None:
        @app.task(on_leader=False)
        async def keep() -> None:
            with _or_end(app, what):
                await work()

    background(owned.keep_merged, "merging deltas")
    background(owned.keep_snapshots, "writing snapshots")
    background(owned.keep_cleanable, "appending to the compacted topics")
    background(lambda: owned.keep_alive(app.end_of), "the heartbeat")
    background(owned.keep_watch, "watching the topics")

    async def take(fetched: StreamRecord) -> None:
        with _or_end(app, "taking records"):
            if traces is not None:
                traces.arrived(fetched.partition, fetched.offset, fetched.headers)
            await owned.arrive(fetched.partition, _Record(fetched, metrics, traces))

    app.take = take

    @app.on_partitions_revoked.connect
    async def pause(*_: Any, **__: Any) -> None:
        with _or_end(app, "pausing the partitions"):
            await owned.pause()


@contextmanager
def _or_end(app: TurnstileApp, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        app.end(Ending.FAILED, f"{what} failed: {error}", error)


def partitions_warning(config: Config, there: int) -> str:
    """Return a warning if the setting ``partitions`` was changed and the topic has another number.

    An empty string means that there is nothing to warn about.
    """
    if config.partitions in (there, Config.partitions):
        return ""
    return (
        f"partitions is {config.partitions}, but {config.topic(NORMS)} has {there}: the setting "
        "has no effect on existing topics"
    )


def run_worker(config: Config, log_level: str = "INFO") -> None:
    """Run a worker until it is stopped or an unexpected error ends it.

    Raises:
        ConfigurationError: a package has another release than this one requires.
    """
    logging.basicConfig(
        level=log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    for chatty in ("kafka", "aiokafka"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    check_private_names()
    topics = Topics(config)
    try:
        seen = topics.ensure()
        if warning := partitions_warning(config, seen.partitions):
            logger.warning("%s", warning)
        app = create_app(config, topics, seen.topic)
    except (TopicsUnavailable, StoreUnavailable) as error:
        logger.critical("the worker exits: %s", error)
        sys.exit(EXIT_RESTART)
    run_app(app, log_level)
