"""Throughput and latency of the service against a no-op baseline, which does no accounting.

``python -m tests.benchmarks`` measures everything in one run, on one machine, with a real broker
and a real Redis (append-only file, fsync every second), and writes ``out/benchmarks.md``.
"""
