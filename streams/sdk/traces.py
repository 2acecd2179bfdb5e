"""OpenTelemetry spans of a client's requests; imported only if the setting ``traces`` is on.

A charge is a span from before its norms are published until all partitions have answered. The
span's context travels in the headers of the records, so the workers' spans belong to the same
trace. The hash chain, signatures and decisions do not cover it. No attribute identifies a user.
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
        """Make a span around a request, as a child of the current span.

        The span does not become the current one: other work happens between charging a step ahead
        and reading its decision.
        """
        span = self._tracer.start_span(f"turnstile.{request}", kind=trace.SpanKind.PRODUCER)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        try:
            yield [(key, value.encode()) for key, value in carrier.items()]
        except Exception as error:  # its text may contain a user's id
            span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            span.end()
