"""What a worker tells Prometheus: counters of what it did, and how its partitions are right now.

Nothing here names a user, a dataset or a run, and nothing counts who was halted or is exhausted:
that is as secret as the data. Counters are fed where the worker touches the world, by what stands
around the ports (``CountingPublisher``, ``TimedStore``); gauges are read when somebody asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from streams.ledger.ledger import Channel, Output
from streams.store.port import Commit, Guard, Verdict
from streams.store.redis_store import RedisStore
from streams.worker.partitions import Partitions
from streams.worker.ports import Publisher

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STATES = ("running", "suspended", "stopped", "closed")
_GAUGES = (
    ("next_offset", "next", "The offset to apply next"),
    ("log_end_offset", "end", "Where the log ends, as last seen"),
    ("waiting_seconds", "waiting", "For which records wait and none is applied"),
    ("changes", "changes", "Entries in Redis that are not compacted"),
    ("changes_bytes", "changes_bytes", "What these entries take"),
)


class Metrics:
    """The metrics of one worker, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter, histogram = self._counter, self._histogram
        self._records = counter("records", "Records of the log that were applied", "partition")
        self._published = counter("published", "Records queued for a topic", "topic", "partition")
        self._rejects = counter("rejects", "Records that were refused", "reason")
        self.commit_seconds = histogram("commit", "Time that one write to Redis takes")
        self._decision = histogram("decision", "Time from a record's timestamp until it is kept")
        ProcessCollector(registry=self._registry)

    def register(self, collector: Collector) -> None:
        """Ask a collector, too, whenever somebody asks."""
        self._registry.register(collector)

    def applied(self, partition: int, written: float | None, now: float) -> None:
        """Count a record that is applied and kept.

        Args:
            partition: of the record.
            written: seconds since 1970, by the clock of whoever wrote it; None: it does not say.
            now: by the clock here.
        """
        self._records.labels(partition).inc()
        if written is not None:
            self._decision.observe(max(0.0, now - written))

    def published(self, partition: int, outputs: Sequence[Output]) -> None:
        """Count what is queued for the broker; what is sent again counts again."""
        for output in outputs:
            self._published.labels(output.channel.value, partition).inc()
            if output.channel is Channel.REJECTS:
                self._rejects.labels(_reason_of(output.value)).inc()

    def exposition(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(f"turnstile_{name}", help_, labels, registry=self._registry)

    def _histogram(self, name: str, help_: str) -> Histogram:
        return Histogram(
            f"turnstile_{name}_seconds", help_, buckets=_SECONDS, registry=self._registry
        )


class CountingPublisher:
    """A publisher that counts what goes through it."""

    def __init__(self, publisher: Publisher, metrics: Metrics) -> None:
        self._publisher, self._metrics = publisher, metrics

    async def publish(
        self, partition: int, outputs: Sequence[Output]
    ) -> Sequence[Awaitable[object]]:
        """Queue outputs, and count them."""
        self._metrics.published(partition, outputs)
        return await self._publisher.publish(partition, outputs)


class TimedStore(RedisStore):
    """A store that says how long its commits take.

    Attributes:
        metrics: whom it says so.
    """

    metrics: Metrics

    async def commit(self, guard: Guard, commit: Commit) -> Verdict:
        """Append one batch, and note the time."""
        with self.metrics.commit_seconds.time():
            return await super().commit(guard, commit)


class PartitionsCollector(Collector):
    """How the partitions are, whenever somebody asks."""

    def __init__(self, topic: str, group: str, owned: Partitions) -> None:
        """Collect from ``owned``; the full name of norms and the group are labels of the lag."""
        self._topic, self._group, self._owned = topic, group, owned

    def collect(self) -> Iterator[Metric]:
        """One sample a partition that is assigned to this worker."""
        build = InfoMetricFamily("turnstile_build", "The release")
        build.add_metric([], {"version": _version()})
        yield build
        if self._owned.count is not None:
            yield GaugeMetricFamily(
                "turnstile_partitions", "Partitions of norms", value=self._owned.count
            )
        views = self._owned.views()
        state = GaugeMetricFamily(
            "turnstile_partition_state", "1 for the state it is in", labels=("partition", "state")
        )
        for view in views:
            for name in _STATES:
                state.add_metric([str(view.partition), name], float(view.state == name))
        yield state
        for name, field, help_ in _GAUGES:
            gauge = GaugeMetricFamily(f"turnstile_{name}", help_, labels=("partition",))
            for view in views:
                if (value := getattr(view, field)) is not None:
                    gauge.add_metric([str(view.partition)], value)
            yield gauge
        # By the name and the labels that dashboards for Kafka know.
        lag = GaugeMetricFamily(
            "kafka_consumergroup_lag",
            "Records of the log that are not decided",
            labels=("consumergroup", "topic", "partition"),
        )
        for view in views:
            if view.next is not None and view.end is not None:
                place = [self._group, self._topic, str(view.partition)]
                lag.add_metric(place, max(0, view.end - view.next))
        yield lag


def _reason_of(reject: bytes) -> str:
    with suppress(msgspec.DecodeError):
        return str(msgspec.msgpack.decode(reject).get("reason", "unknown"))
    return "unknown"


def _version() -> str:
    try:
        return version("dp-turnstile")
    except PackageNotFoundError:
        return "unknown"
