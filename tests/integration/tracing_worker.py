"""A worker that writes its spans to the file in its first argument, one per line."""

import sys
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from streams.cli.main import main

with Path(sys.argv.pop(1)).open("a", buffering=1) as spans:
    exporter = ConsoleSpanExporter(
        out=spans, formatter=lambda span: span.to_json(indent=None) + "\n"
    )
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    sys.exit(main(["worker"]))
