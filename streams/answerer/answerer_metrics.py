"""Prometheus metrics and health of an answerer, for its operator.

``docs/reference/metrics.md`` lists them. Its charges are in ``turnstile_client_*``
(``streams.sdk.observing``). Every sample has the label ``log``, which names the log that is
charged. No metric names a user or an answer. The number of events is data nevertheless: show the
metrics only to people who may see the input.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streams.answerer.spacing import NEVER
from streams.answerer.windows import InputState
from streams.store.misfit import Problem
from streams.worker.metrics import exposition_of
from streams.worker.ownership import PartitionView

STUCK_AFTER = 30.0
"""Seconds for which a window may be due, or events wait, before the answerer is unhealthy."""
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class AnswererProgress(Protocol):
    """The state of an answerer, as its metrics need it."""

    @property
    def state(self) -> InputState:
        """Return the state of the input."""

    @property
    def is_taken_over(self) -> bool:
        """Return whether it holds the run and has read the input up to the last journal entry."""

    def end_of(self, partition: int) -> int | None:
        """Return the end offset of a partition of the input, as far as is known."""

    def partitions(self) -> Sequence[int]:
        """Return the partitions of the input."""

    def source(self) -> tuple[str, str]:
        """Return the topic of the input, and the clock that closes windows."""

    def clock(self) -> int | None:
        """Return the time that all partitions have reached, in ms."""


class AnswererMetrics(Collector):
    """The metrics of one answerer, in a registry of its own.

    Args:
        progress: of the answerer.
        log: the name of the log that it charges.
    """

    def __init__(self, progress: AnswererProgress, log: str) -> None:
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
        """Yield the current values."""
        progress, state = self._progress, self._progress.state
        yield GaugeMetricFamily(
            "turnstile_answerer_ready",
            "1 if this answerer holds the run and answers",
            value=progress.is_taken_over,
        )
        passed = CounterMetricFamily(
            "turnstile_answerer_passed_over", "Events that were ignored", labels=("reason",)
        )
        for reason, count in sorted(state.skipped.items()):
            passed.add_metric([str(reason)], count)
        yield passed
        place = GaugeMetricFamily(
            "turnstile_answerer_next_offset",
            "The offset of the input to read next",
            labels=("partition",),
        )
        lag = GaugeMetricFamily(
            "turnstile_answerer_lag",
            "Events of the input that are not read yet",
            labels=("partition",),
        )
        for partition in progress.partitions():
            offset, end = state.positions.get(partition), progress.end_of(partition)
            if offset is not None:
                place.add_metric([str(partition)], offset)
            if offset is not None and end is not None:
                lag.add_metric([str(partition)], max(0, end - offset))
        yield place
        yield lag
        kept = GaugeMetricFamily(
            "turnstile_answerer_input_seconds",
            "Seconds for which the input must retain events",
            labels=("topic", "clock"),
        )
        kept.add_metric(progress.source(), state.keeps / 1000)
        yield kept
        if (closes := state.calendar.next.closes) < NEVER:
            yield GaugeMetricFamily(
                "turnstile_answerer_window_closes_seconds",
                "Time at which the next window closes, in seconds since 1970",
                value=closes / 1000,
            )
        if (clock := progress.clock()) is not None:
            yield GaugeMetricFamily(
                "turnstile_answerer_clock_seconds",
                "Time that all partitions have reached, in seconds since 1970",
                value=clock / 1000,
            )


class InputHealth:
    """The partitions of the input, as /readyz and /healthz report them.

    A partition is unhealthy if its events have waited for ``STUCK_AFTER`` seconds without being
    taken. All partitions are unhealthy if a window has been due for that long.
    """

    def __init__(self, progress: AnswererProgress) -> None:
        self._progress = progress
        self._moved: dict[int, tuple[int, float]] = {}  # offset, and when it was last not behind
        self._due: tuple[float, int] | None = None  # since when, and which window

    @property
    def is_assigned(self) -> bool:
        """Return whether this answerer holds the run."""
        return self._progress.is_taken_over

    def views(self) -> list[PartitionView]:
        """Return the state of the partitions; call it regularly."""
        now = time.monotonic()
        overdue = self._overdue(now)
        return [self._view(partition, now, overdue) for partition in self._progress.partitions()]

    def _view(self, partition: int, now: float, overdue: float) -> PartitionView:
        position = self._progress.state.positions.get(partition, 0)
        end = self._progress.end_of(partition)
        before, since = self._moved.get(partition, (-1, now))
        if position != before or end is None or position >= end:
            since = now
        self._moved[partition] = position, since
        waiting = now - since
        problem, remedy = None, "Read the answerer's log; start it again if it has exited"
        if not self._progress.is_taken_over:
            problem = Problem("not-taken-over", "the run is not taken over yet", remedy)
        elif overdue > STUCK_AFTER:
            text = f"a window has been due for {overdue:.0f} seconds and is not answered"
            problem = Problem("window-overdue", text, remedy)
        elif waiting > STUCK_AFTER:
            text = f"events have waited for {waiting:.0f} seconds and none was taken"
            problem = Problem("stalled", text, remedy)
        return PartitionView(partition, "running", problem, position, end)

    def _overdue(self, now: float) -> float:
        clock, closes = self._progress.clock(), self._progress.state.calendar.next.closes
        if clock is None or clock < closes:
            self._due = None
        elif self._due is None or self._due[1] != closes:
            self._due = now, closes
        return 0.0 if self._due is None else now - self._due[0]
