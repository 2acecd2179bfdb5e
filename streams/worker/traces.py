"""Traces decisions with OpenTelemetry; imported only if ``traces`` is set.

A record with a trace context in its headers starts a span when it arrives. The span ends when its
first decision is handed to the broker; the event "kept" marks the commit to Redis. The decisions
and HALT events carry the context on in their headers, so a norm and its HALT belong to one trace.
A record without a context has no span. Headers are not part of the log's content: no decision
depends on them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress

import msgspec
from opentelemetry import propagate, trace

from streams.ledger.ledger import Channel, Output

MOST = 4096
"""The largest number of open spans; the oldest ends first."""
_LONGEST = 1024  # bytes of a header; longer ones are ignored
_READ = ("traceparent", "tracestate")


class _Placed(msgspec.Struct):
    offset: int


class DecisionTraces:
    """The spans of one worker."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("turnstile")
        self._spans: OrderedDict[tuple[int, int], trace.Span] = OrderedDict()

    def arrived(
        self, partition: int, offset: int, headers: Iterable[tuple[str, bytes | None]]
    ) -> None:
        """Start a span for an arrived record, if its headers have a valid trace context."""
        carrier = {
            key: value.decode("ascii", "replace")
            for key, value in headers
            if key in _READ and value is not None and len(value) <= _LONGEST
        }
        if "traceparent" not in carrier:
            return
        context = propagate.extract(carrier)
        if not trace.get_current_span(context).get_span_context().is_valid:
            return
        self._spans[partition, offset] = self._tracer.start_span(
            "turnstile.decide",
            context=context,
            kind=trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "kafka",
                "messaging.destination.partition.id": str(partition),
                "messaging.kafka.offset": offset,
            },
        )
        while len(self._spans) > MOST:
            _, oldest = self._spans.popitem(last=False)
            oldest.end()

    def kept(self, partition: int, offset: int) -> None:
        """Mark that the outcome of a record is in Redis."""
        if span := self._spans.get((partition, offset)):
            span.add_event("kept")

    def answered(self, partition: int, output: Output) -> list[tuple[str, bytes]]:
        """End the span of the record that led to an output; return the headers for the output."""
        if not self._spans or output.channel is Channel.ODOMETER:
            return []
        with suppress(msgspec.DecodeError):
            place = partition, msgspec.msgpack.decode(output.value, type=_Placed).offset
            if span := self._spans.get(place):
                span.end()  # has an effect only once: a roster step has several outputs
                carrier: dict[str, str] = {}
                propagate.inject(carrier, trace.set_span_in_context(span))
                return [(key, value.encode()) for key, value in carrier.items()]
        return []
