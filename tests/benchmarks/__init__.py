"""Speed and latency of the whole pipe against the same pipe without accounting.

``python -m tests.benchmarks`` measures everything in one run, on one machine, with a real broker
and a real Redis (append-only file, fsync every second), and writes ``out/benchmarks.md``.
"""
