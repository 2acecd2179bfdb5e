"""The Prometheus metrics of a worker.

No metric names a user, a dataset or a run. No metric depends on how many users were halted or
whose odometer rose: this is as secret as the data, and anyone with access to the port can read
metrics. So no metric measures sizes or counts published records, because a roster step publishes
one more record when it halts a user. Times are rounded up to the next bound of a histogram.

Every sample has the label ``log``, which names the log that the worker reads.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from streams.config import release
from streams.ledger.ledger import Channel, Output
from streams.worker.ownership import OwnedPartitions
from streams.worker.ports import StreamRecord

SECONDS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Bounds of the histograms. Finer ones would reveal how many users a step halted."""
_STATES = ("running", "paused", "suspended", "closed")
_GAUGES: tuple[tuple[str, str, str], ...] = (
    ("next_offset", "next", "The offset to apply next"),
    ("log_end_offset", "end", "The end of the log, as last seen"),
    ("waiting_seconds", "waiting", "Whole seconds for which records wait and none is applied"),
)


class Metrics:
    """The metrics of one worker, in their own registry.

    ``log`` is the name of the log (``log_name``), and ``clock`` returns the seconds since 1970.
    """

    def __init__(self, log: str, clock: Callable[[], float] = time.time) -> None:
        self._log, self._clock = log, clock
        self._registry = CollectorRegistry()
        self._records = Counter(
            "turnstile_records",
            "Records of the log that were applied",
            ("partition",),
            registry=self._registry,
        )
        self._rejects = Counter(
            "turnstile_rejects",
            "Rejected records",
            ("reason",),
            registry=self._registry,
        )
        self._commit = self._histogram("commit", "Time of one write to Redis")
        self._decision = self._histogram(
            "decision", "Time from a record's timestamp until its outcome is in Redis"
        )
        ProcessCollector(registry=self._registry)

    def register(self, collector: Collector) -> None:
        """Include the metrics of a collector."""
        self._registry.register(collector)

    def committed(
        self,
        partition: int,
        records: Sequence[StreamRecord],
        outputs: Sequence[Output],
        seconds: float,
    ) -> None:
        """Count a batch whose outcome is in Redis, and the seconds that the write took."""
        self._commit.observe(_rounded_up(seconds))
        self._records.labels(partition).inc(len(records))
        now = self._clock()
        for record in records:
            self._decision.observe(_rounded_up(now - record.timestamp / 1000))
        for output in outputs:
            if output.channel is Channel.REJECTS:
                self._rejects.labels(_reason_of(output.value)).inc()

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return exposition_of(self._registry, self._log)

    def _histogram(self, name: str, help_: str) -> Histogram:
        return Histogram(
            f"turnstile_{name}_seconds", help_, buckets=SECONDS, registry=self._registry
        )


class PartitionsCollector(Collector):
    """Collects the present state of a worker's partitions."""

    def __init__(self, topic: str, group: str, owned: OwnedPartitions) -> None:
        """Collect from ``owned``; ``topic`` and ``group`` become labels of the consumer lag."""
        self._topic, self._group, self._owned = topic, group, owned

    def collect(self) -> Iterator[Metric]:
        """Yield one sample for each partition that is assigned to the worker."""
        build = InfoMetricFamily("turnstile_build", "The release")
        build.add_metric([], {"version": release()})
        yield build
        if self._owned.count is not None:
            yield GaugeMetricFamily(
                "turnstile_partitions", "Partitions of norms", value=self._owned.count
            )
        views = self._owned.views()
        state = GaugeMetricFamily(
            "turnstile_partition_state", "1 for the present state", labels=("partition", "state")
        )
        for view in views:
            for name in _STATES:
                state.add_metric([str(view.partition), name], float(view.state == name))
        yield state
        for name, field, help_ in _GAUGES:
            gauge = GaugeMetricFamily(f"turnstile_{name}", help_, labels=("partition",))
            for view in views:
                if (value := getattr(view, field)) is not None:
                    gauge.add_metric([str(view.partition)], math.floor(value))
            yield gauge
        # Kafka dashboards use this name and these labels.
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


def _rounded_up(seconds: float) -> float:
    """Return the next bound of the histograms, so that sums are as coarse as the buckets."""
    place = bisect_left(SECONDS, seconds)
    return SECONDS[place] if place < len(SECONDS) else 10 * SECONDS[-1]


def _reason_of(reject: bytes) -> str:
    with suppress(msgspec.DecodeError):
        return str(msgspec.msgpack.decode(reject).get("reason", "unknown"))
    return "unknown"


class _OfLog(Collector):
    """Adds the label ``log`` to the samples of another collector, and drops creation times."""

    def __init__(self, collector: Collector, log: str) -> None:
        self._collector, self._log = collector, log

    def collect(self) -> Iterator[Metric]:
        for family in self._collector.collect():
            family.samples = [
                sample._replace(labels={**sample.labels, "log": self._log})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield family


def exposition_of(registry: Collector, log: str) -> bytes:
    """Return the metrics of a registry in the Prometheus text format, with the label ``log``."""
    return generate_latest(_OfLog(registry, log))
