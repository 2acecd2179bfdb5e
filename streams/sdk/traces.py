"""Spans of what a client asks, by the API of OpenTelemetry; imported only where ``traces`` is set.

A charge is a span from before its norms are published until all partitions have answered. Its
context goes along in the headers of the records, so that what workers do with them is of the same
trace. The chain over the log, signatures and decisions know nothing of it. No attribute names
anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import propagate, trace

from streams.sdk.observing import Headers


class ClientTraces:
    """An observer that makes a span of every request."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("turnstile")

    @contextmanager
    def asking(self, request: str) -> Iterator[Headers]:
        """Around a request, within whatever span is current.

        It is not the current one itself: of a step that is charged ahead, other work comes between.
        """
        span = self._tracer.start_span(f"turnstile.{request}", kind=trace.SpanKind.PRODUCER)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        try:
            yield [(key, value.encode()) for key, value in carrier.items()]
        except Exception as error:  # its text may name somebody
            span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            span.end()
