"""Observers of a client's requests, for metrics and traces. Both are off by default.

``measure`` counts the requests of a client and times them, for Prometheus; ``docs/metrics.md``
lists the metrics. The time of a step that is charged ahead ends when the caller asks for its
decision.

The label ``log`` names the log (``Turnstile.log_name``). A request is a "charge" or "other": it
opens a run, creates a dataset or enrols users. No metric names a user, a dataset or a run, or
counts halted users.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from streams.sdk.errors import DecisionTimeout, RequestRejected

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Headers = list[tuple[str, bytes]]
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Observer(Protocol):
    """Wraps every request, from before it is published until all partitions have answered."""

    def asking(self, request: str) -> AbstractContextManager[Headers]:
        """Enter before a request; the returned headers are added to its records."""


class Observable(Protocol):
    """A client whose requests can be observed."""

    @property
    def log_name(self) -> str:
        """Return the name of its log in metrics."""

    def observe(self, observer: Observer) -> None:
        """Register an observer that wraps every request."""


class _Metrics:
    def __init__(self, log: str, registry: CollectorRegistry | None) -> None:
        from prometheus_client import REGISTRY, Counter, Histogram

        self._log = log
        where = REGISTRY if registry is None else registry
        self._requests = Counter(
            "turnstile_client_requests",
            "Requests by outcome: answered, refused, timeout or failed",
            ("log", "request", "outcome"),
            registry=where,
        )
        self._seconds = Histogram(
            "turnstile_client_request_seconds",
            "Time until all partitions have answered",
            ("log", "request"),
            buckets=_SECONDS,
            registry=where,
        )

    @contextmanager
    def asking(self, request: str) -> Iterator[Headers]:
        outcome = "failed"
        try:
            with self._seconds.labels(self._log, request).time():
                yield []
            outcome = "answered"
        except RequestRejected:
            outcome = "refused"
            raise
        except DecisionTimeout:
            outcome = "timeout"
            raise
        finally:
            self._requests.labels(self._log, request, outcome).inc()


def measure(client: Observable, registry: CollectorRegistry | None = None) -> None:
    """Count and time the requests of a client from now on.

    Args:
        client: the open client to measure.
        registry: of metrics; by default prometheus_client's own, in which one client per process
            can be measured.

    Raises:
        ValueError: the registry has these metrics already.
    """
    client.observe(_Metrics(client.log_name, registry))
