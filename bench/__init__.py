"""Throughput and latency of the service against a no-op baseline, which does no accounting.

``python -m bench`` measures everything in one run, on one machine, with a real broker
and a real Redis (append-only file, fsync every second), and writes ``out/benchmarks.md``.
"""

from typing import Final

PARTS_WITHOUT_SERVICE: Final = ("files", "memory", "reports")
PARTS: Final = ("throughput", "latency", "rosters", "restore", "collecting", *PARTS_WITHOUT_SERVICE)
