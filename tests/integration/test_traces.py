"""One trace connects a norm and its HALT, on the real services; decisions do not depend on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from kafka import TopicPartition

from streams.config import Config
from streams.kafka.kafka_clients import new_reader
from streams.records import Decision, decode_answer
from streams.records.json_outputs import to_msgpack
from streams.sdk.client import Turnstile
from tests.integration.service import ServiceFactory, eventually

pytest.importorskip("opentelemetry.sdk")

WORKER = Path(__file__).with_name("tracing_worker.py")


def test_a_norm_and_its_halt_have_the_same_trace(
    start_service: ServiceFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    here, there = InMemorySpanExporter(), tmp_path / "spans"
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(here))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    command = [sys.executable, str(WORKER), str(there)]
    with start_service(
        partitions=2, worker_command=command, worker_environment={"TURNSTILE_TRACES": "otel"}
    ) as service:
        config = Config(kafka=service.kafka, prefix=service.prefix, traces="otel")
        with Turnstile(config=config) as client:
            client.create_dataset("d", measure="zcdp", budget=1.0)
            run = client.run("d", "r")
            here.clear()
            d = run.charge([7, 8], [9.0, 0.1], noise_stddev=1.0)
            assert d.halted.tolist() == [True, False]
        (charge,) = here.get_finished_spans()
        assert charge.name == "turnstile.charge"
        trace_id = f"{charge.context.trace_id:032x}"

        def decisions() -> list[dict[str, object]]:
            spans = [json.loads(line) for line in there.read_text().splitlines()]
            of_it = [s for s in spans if s["context"]["trace_id"] == f"0x{trace_id}"]
            return of_it if len(of_it) == service.partitions else []

        decided = eventually(decisions)
        assert {span["name"] for span in decided} == {"turnstile.decide"}
        assert {span["parent_id"] for span in decided} == {f"0x{charge.context.span_id:016x}"}
        assert all([event["name"] for event in span["events"]] == ["kept"] for span in decided)
        assert headers_of_the_decisions(service.config) == {trace_id}
        service.audit()


def headers_of_the_decisions(config: Config) -> set[str]:
    """Return the trace ids in the headers of the decisions in the topic halts."""
    name = config.topic("halts")
    reader = new_reader(config)
    try:
        places = [TopicPartition(name, number) for number in range(2)]
        reader.assign(places)
        reader.seek_to_beginning(*places)
        ends, found = reader.end_offsets(places), set()
        while any(reader.position(place) < ends[place] for place in places):
            for records in reader.poll(timeout_ms=200).values():
                for record in records:
                    if isinstance(decode_answer(to_msgpack(record.value)), Decision):
                        found.add(dict(record.headers)["traceparent"].decode().split("-")[1])
        return found
    finally:
        reader.close()
