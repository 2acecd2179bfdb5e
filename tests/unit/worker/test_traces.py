"""Spans follow a record to its answers, whatever its headers are, and are off unless wanted."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streams.ledger.ledger import Channel, Output
from streams.records import Reason, Rejected, encode
from streams.worker import traces
from streams.worker.traces import MOST, DecisionTraces

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def answer(offset: int) -> Output:
    rejected = Rejected(
        partition=0, offset=offset, reason=Reason.MALFORMED, detail="", record=b"ada"
    )
    return Output(Channel.REJECTS, None, encode(rejected))


def test_an_answer_takes_the_trace_of_its_record_along(spans: InMemorySpanExporter) -> None:
    made = DecisionTraces()
    made.arrived(0, 5, [("other", b"x"), PARENT])
    made.arrived(0, 6, [])
    made.kept(0, 5)
    assert spans.get_finished_spans() == ()
    headers = dict(made.answered(0, answer(5)))
    (span,) = spans.get_finished_spans()
    assert headers["traceparent"].split(b"-")[1] == TRACE.encode()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert [event.name for event in span.events] == ["kept"]
    assert made.answered(0, answer(6)) == made.answered(1, answer(5)) == []
    assert dict(made.answered(0, answer(5))) == headers  # another part of the same answer
    assert len(spans.get_finished_spans()) == 1
    assert "ada" not in str(span.attributes)


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", b"")],
        [("traceparent", None)],
        [("traceparent", b"00-zz-zz-01")],
        [("traceparent", b"\xff" * 55)],
        [("traceparent", b"0" * 10_000)],
        [("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")],
        [("tracestate", b"a=b")],
    ],
)
def test_headers_that_are_none_of_a_trace_make_no_span(
    spans: InMemorySpanExporter, headers: list[tuple[str, bytes | None]]
) -> None:
    made = DecisionTraces()
    made.arrived(0, 5, headers)
    assert made.answered(0, answer(5)) == []
    assert spans.get_finished_spans() == ()


def test_records_that_are_never_answered_are_forgotten(spans: InMemorySpanExporter) -> None:
    made = DecisionTraces()
    for offset in range(MOST + 3):
        made.arrived(0, offset, [PARENT])
    assert len(spans.get_finished_spans()) == 3
    assert made.answered(0, answer(0)) == []
    assert made.answered(0, Output(Channel.HALTS, None, b"\xc1")) == []


@pytest.mark.process
def test_traces_are_not_imported_unless_configured() -> None:
    # Redis' client looks for it by itself: what counts is that nothing of ours does.
    program = (
        "import sys, streams, streams.worker.app, streams.sdk.kafka_connection; "
        "sys.exit(any(name.endswith('.traces') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert traces.__name__.endswith(".traces")
