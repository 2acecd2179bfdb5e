"""Spans of decisions, by the API of OpenTelemetry; imported only where ``traces`` is set.

A record whose headers have a context makes a span, from when it has arrived until its first answer
is handed to the broker; "kept" is when Redis has it. The answers take the context along in their
headers, HALT events among them: so a norm and its HALT are of one trace. A record without a context
makes no span. Headers are no part of the log's truth: nothing that is decided depends on them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress

import msgspec
from opentelemetry import propagate, trace

from streams.ledger.ledger import Channel, Output

MOST = 4096
"""Records whose answers may still come."""
_LONGEST = 1024  # of a header that is read
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
        """A record has come; whoever wrote it says of which trace it is, if of any."""
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
        """What came of a record is in Redis."""
        if span := self._spans.get((partition, offset)):
            span.add_event("kept")

    def answered(self, partition: int, output: Output) -> list[tuple[str, bytes]]:
        """An answer is handed to the broker: the headers that it takes along."""
        if not self._spans or output.channel is Channel.ODOMETER:
            return []
        with suppress(msgspec.DecodeError):
            place = partition, msgspec.msgpack.decode(output.value, type=_Placed).offset
            if span := self._spans.get(place):
                span.end()  # the first time: a step of a roster has several
                carrier: dict[str, str] = {}
                propagate.inject(carrier, trace.set_span_in_context(span))
                return [(key, value.encode()) for key, value in carrier.items()]
        return []
