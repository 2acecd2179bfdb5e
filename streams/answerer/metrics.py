"""What an answerer tells Prometheus, and whether it answers: for those who keep it running.

    turnstile_answerer_ready                        1 when the run is its own, and it answers
    turnstile_answerer_answers_total                published
    turnstile_answerer_close_seconds                to answer the windows that were due at once
    turnstile_answerer_passed_over_total{reason}    events that did not count
    turnstile_answerer_next_offset{partition}       of the input, the event to take next
    turnstile_answerer_lag{partition}               events of the input that are not taken yet
    turnstile_answerer_window_closes_seconds        when the next one closes, in seconds since 1970
    turnstile_answerer_clock_seconds                up to when all partitions have come
    turnstile_answerer_input_seconds{topic,clock}   for how long its input has to keep events

It has ``turnstile_client_*`` of its charges, too (``streams.sdk.observing``). Every sample has the
label ``log``, which names the log that is charged. No metric names a user or an answer. How many
events there are is data all the same: show the metrics only to people who may see the input.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streams.answerer.desk import Desk
from streams.worker.exposition import exposition_of
from streams.worker.partitions import PartitionView

STUCK_AFTER = 30.0
"""Seconds for which a window may be due, or events wait, before that is not healthy."""
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Progress(Protocol):
    """How an answerer is."""

    @property
    def desk(self) -> Desk:
        """What it knows of its input."""

    @property
    def is_taken_over(self) -> bool:
        """Whether it answers: the run is its own, and the input was read up to where it was."""

    def end_of(self, partition: int) -> int | None:
        """Where a partition of the input ends, as far as is known."""

    def partitions(self) -> Sequence[int]:
        """Of the input."""

    def source(self) -> tuple[str, str]:
        """The topic of the input, and whose clock closes windows."""

    def clock(self) -> int | None:
        """Up to when all partitions have come, in ms."""


class AnswererMetrics(Collector):
    """The metrics of one answerer, in a registry of its own.

    Args:
        progress: of the answerer.
        log: the name of the log that it charges.
    """

    def __init__(self, progress: Progress, log: str) -> None:
        self.registry = CollectorRegistry()
        self._progress, self._log = progress, log
        self.answers = Counter(
            "turnstile_answerer_answers", "Answers that were published", registry=self.registry
        )
        self.close_seconds = Histogram(
            "turnstile_answerer_close_seconds",
            "Time to answer the windows that were due at once",
            buckets=_SECONDS,
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def exposition(self) -> bytes:
        """Return all metrics, as Prometheus reads them."""
        return exposition_of(self.registry, self._log)

    def collect(self) -> Iterator[Metric]:
        """What is so now."""
        progress, desk = self._progress, self._progress.desk
        yield GaugeMetricFamily(
            "turnstile_answerer_ready", "The run is its own", value=progress.is_taken_over
        )
        passed = CounterMetricFamily(
            "turnstile_answerer_passed_over", "Events that did not count", labels=("reason",)
        )
        for reason, count in sorted(desk.passed_over.items()):
            passed.add_metric([str(reason)], count)
        yield passed
        place = GaugeMetricFamily(
            "turnstile_answerer_next_offset", "The event to take next", labels=("partition",)
        )
        lag = GaugeMetricFamily(
            "turnstile_answerer_lag", "Events that are not taken yet", labels=("partition",)
        )
        for partition in progress.partitions():
            offset, end = desk.positions.get(partition), progress.end_of(partition)
            if offset is not None:
                place.add_metric([str(partition)], offset)
            if offset is not None and end is not None:
                lag.add_metric([str(partition)], max(0, end - offset))
        yield place
        yield lag
        kept = GaugeMetricFamily(
            "turnstile_answerer_input_seconds",
            "For how long its input has to keep events",
            labels=("topic", "clock"),
        )
        kept.add_metric(progress.source(), desk.keeps / 1000)
        yield kept
        closes = desk.calendar.next.closes / 1000
        yield GaugeMetricFamily(
            "turnstile_answerer_window_closes_seconds", "When the next window closes", value=closes
        )
        if (clock := progress.clock()) is not None:
            yield GaugeMetricFamily(
                "turnstile_answerer_clock_seconds", "Up to when all have come", value=clock / 1000
            )


class Watched:
    """The partitions of the input, as /readyz and /healthz ask for them.

    A partition is not healthy while events have waited there and none was taken, and none is while
    a window has been due and was not answered, for ``STUCK_AFTER`` seconds.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._moved: dict[int, tuple[int, float]] = {}  # offset, and since when it was not behind
        self._due: tuple[float, int] | None = None  # since when, and which

    @property
    def is_assigned(self) -> bool:
        """Whether it answers."""
        return self._progress.is_taken_over

    def views(self) -> list[PartitionView]:
        """How the partitions are now; to be asked again and again."""
        now = time.monotonic()
        overdue = self._overdue(now)
        return [self._view(partition, now, overdue) for partition in self._progress.partitions()]

    def look(self) -> None:
        """See how it is, so that it is known since when: whoever answers does so all the time."""
        self.views()

    def _view(self, partition: int, now: float, overdue: float) -> PartitionView:
        position = self._progress.desk.positions.get(partition, 0)
        end = self._progress.end_of(partition)
        before, since = self._moved.get(partition, (-1, now))
        if position != before or end is None or position >= end:
            since = now
        self._moved[partition] = position, since
        waiting = now - since
        problem = None
        if not self._progress.is_taken_over:
            problem = "the run is not taken over yet"
        elif overdue > STUCK_AFTER:
            problem = f"a window has been due for {overdue:.0f} seconds, and was not answered"
        elif waiting > STUCK_AFTER:
            problem = f"events wait, and none was taken for {waiting:.0f} seconds"
        return PartitionView(partition, "running", problem, position, end)

    def _overdue(self, now: float) -> float:
        clock, closes = self._progress.clock(), self._progress.desk.calendar.next.closes
        if clock is None or clock < closes:
            self._due = None
        elif self._due is None or self._due[1] != closes:
            self._due = now, closes
        return 0.0 if self._due is None else now - self._due[0]
