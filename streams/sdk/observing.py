"""Observers of a client's requests, for metrics and traces. Both are off by default.

``measure`` counts and times a client's requests for Prometheus
(``docs/reference/metrics.md``). The time of a step that is charged ahead ends when the caller asks
for its decision. The label ``log`` is ``Turnstile.log_name``. A request is a "charge" or "other",
for example the opening of a run.

``ClientTraces`` makes an OpenTelemetry span of each request, if the setting ``traces`` is on. The
span's context travels in the headers of the records, so that the workers' spans belong to the same
trace. The hash chain, signatures and decisions do not cover it.

No metric or span names a user, a dataset or a run, or counts halted users.
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
        registry: the registry of metrics; by default prometheus_client's own, in which one client
            per process can be measured.

    Raises:
        ValueError: the registry has these metrics already.
    """
    client.observe(_Metrics(client.log_name, registry))


class ClientTraces:
    """An observer that makes a span of every request.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """

    def __init__(self) -> None:
        from opentelemetry import propagate, trace

        self._trace, self._inject = trace, propagate.inject
        self._tracer = trace.get_tracer("turnstile")

    @contextmanager
    def asking(self, request: str) -> Iterator[Headers]:
        """Make a span around a request, as a child of the current span.

        The span does not become the current one: other work happens between charging a step ahead
        and reading its decision.
        """
        trace = self._trace
        span = self._tracer.start_span(f"turnstile.{request}", kind=trace.SpanKind.PRODUCER)
        carrier: dict[str, str] = {}
        self._inject(carrier, trace.set_span_in_context(span))
        try:
            yield [(key, value.encode()) for key, value in carrier.items()]
        except Exception as error:  # its text may contain a user's id
            span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            span.end()
