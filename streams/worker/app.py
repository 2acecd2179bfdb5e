"""The worker: a Faust app that reads the topic norms, with the real implementation of every port.

The app hands each record to its partition. A record is done when its batch is in Redis; nothing is
acknowledged to Kafka. Any unexpected error ends the worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from streams.config import Config, lacking
from streams.kafka.authentic import record_signer_of, verifier_of
from streams.kafka.fenced_producer import KafkaFencedProducer
from streams.kafka.log import KafkaLog
from streams.kafka.private_names import check_private_names
from streams.kafka.publisher import KafkaPublisher
from streams.kafka.results import TopicsUnavailable, log_name
from streams.kafka.snapshot_producer import KafkaSnapshotTopic
from streams.kafka.topics import NORMS, Topics
from streams.ledger.ledger import Output
from streams.records import MAX_REQUEST_BYTES
from streams.store.redis_store import RedisStore
from streams.store.store_port import StoreUnavailable
from streams.worker.faust_app import EXIT_RESTART, TurnstileApp, end_process, run_app
from streams.worker.health import HealthServer
from streams.worker.metrics import Metrics, PartitionsCollector
from streams.worker.ownership import OwnedPartitions
from streams.worker.ports import StreamRecord, World

if TYPE_CHECKING:
    from streams.worker.traces import DecisionTraces

logger = logging.getLogger("turnstile.worker")

_FETCHED_RECORDS = 256
_SESSION_SECONDS = 6.0
_HEARTBEAT_SECONDS = 0.5
"""A worker learns of a new distribution of partitions from its next heartbeat.

Until all workers have learned of it, the partitions are not decided.
"""


def create_app(config: Config, topics: Topics, log: bytes) -> TurnstileApp:
    """Return the Faust app of a worker, with all of its ports.

    Args:
        log: the topic id of norms; if the topic has another id later, every partition is suspended.

    Raises:
        ConfigurationError: a signing key or a trust store cannot be used.
        StoreUnavailable: the address of Redis cannot be used.
    """
    signer = record_signer_of(config, log)
    verifier = verifier_of(config, log)
    topic, group = config.topic(NORMS), f"{config.prefix}worker"
    metrics = Metrics(log_name(topic, log))
    store = RedisStore.of(config)
    traces = _traces() if config.traces else None
    publisher = KafkaPublisher(config, signer, traces.answered if traces else None)

    def committed(
        partition: int, records: Sequence[StreamRecord], outputs: Sequence[Output], seconds: float
    ) -> None:
        metrics.committed(partition, records, outputs, seconds)
        if traces is not None:
            for record in records:
                traces.kept(partition, record.offset)

    owned = OwnedPartitions(
        World(
            owner=f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:12]}",
            prefix=config.prefix,
            store=store,
            look=partial(asyncio.to_thread, topics.look),
            read_log=lambda: KafkaLog(config),
            publisher=publisher,
            odometer_producer_of=lambda partition: KafkaFencedProducer(
                config, partition, signer, verifier
            ),
            snapshots_of=lambda partition: KafkaSnapshotTopic(config, partition, signer, verifier),
            snapshot_every=config.snapshot_seconds,
            erasure_keys=config.erasure_keys,
            committed=committed,
            end=end_process,
        )
    )
    metrics.register(PartitionsCollector(topic, group, owned))
    health = HealthServer(config.health, metrics.exposition, owned) if config.health else None

    async def take(record: StreamRecord) -> None:
        if traces is not None:
            traces.arrived(record.partition, record.offset, record.headers)
        await owned.arrive(record.partition, record)

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
        await asyncio.to_thread(topics.close)

    app = TurnstileApp(
        config,
        group,
        at_once=_FETCHED_RECORDS,
        topic=topic,
        partitions=owned,
        take=take,
        connect=connect,
        disconnect=disconnect,
        end=end_process,
        consumer_max_fetch_size=MAX_REQUEST_BYTES + 1024 * 1024,
        broker_session_timeout=_SESSION_SECONDS,
        broker_heartbeat_interval=_HEARTBEAT_SECONDS,
        broker_commit_interval=5.0,
    )
    app.background("merging deltas", owned.keep_merged)
    app.background("writing snapshots", owned.keep_snapshots)
    app.background("appending to the compacted topics", owned.keep_cleanable)
    app.background("the heartbeat", lambda: owned.keep_alive(app.end_of))
    app.background("watching the topics", owned.keep_watch)

    @app.on_partitions_revoked.connect
    async def pause(*_: Any, **__: Any) -> None:
        with app.or_end("pausing the partitions"):
            await owned.pause()

    return app


def _traces() -> DecisionTraces:
    """Return what traces decisions; ``ConfigurationError`` without OpenTelemetry."""
    try:
        from streams.worker.traces import DecisionTraces
    except ImportError as error:
        raise lacking("traces", "otel", error) from error
    return DecisionTraces()


def run_worker(config: Config, log_level: str = "INFO") -> None:
    """Run a worker until it is stopped or an unexpected error ends it.

    Raises:
        ConfigurationError: a package has another release than this one requires.
    """
    for chatty in ("kafka", "aiokafka"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    check_private_names()
    topics = Topics(config)
    try:
        app = create_app(config, topics, topics.ensure().topic)
    except (TopicsUnavailable, StoreUnavailable) as error:
        logger.critical("the worker exits: %s", error)
        sys.exit(EXIT_RESTART)
    run_app(app, log_level)
