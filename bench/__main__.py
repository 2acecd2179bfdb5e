"""``python -m bench``: measure, print a table, write it to ``out/benchmarks.md``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from accounting import PoissonGaussian
from bench import (
    PARTS,
    PARTS_WITHOUT_SERVICE,
    budget_files,
    collecting,
    latency,
    memory,
    peers,
    restore,
    rosters,
    throughput,
)
from bench.report import document
from streams.local import LocalStack


def main() -> None:
    """Read the arguments, run the parts, write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement of throughput")
    parser.add_argument("--records", type=int, default=1500, help="a round")
    parser.add_argument("--users", type=int, nargs="+", default=[65_536, 1_048_576])
    parser.add_argument("--steps", type=int, default=2000, help="of each measurement of latency")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 4, 16], help="for latency")
    parser.add_argument("--members", type=int, nargs="+", default=[1_000, 1_000_000, 10_000_000])
    parser.add_argument("--resident", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--restored", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--collected", type=int, nargs=2, default=[50_000, 1_000_000])
    parser.add_argument("--only", choices=PARTS, help="leave the other parts out")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks.md"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    parts = (options.only,) if options.only else PARTS
    service = _service(options, parts) if not set(parts) <= set(PARTS_WITHOUT_SERVICE) else []
    text = document(service + _library(options, parts))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text, encoding="utf-8")
    print(text)


def _service(options: argparse.Namespace, parts: Sequence[str]) -> list[str]:
    lines: list[str] = []
    with LocalStack(workers=0, progress=_say) as stack:
        if "throughput" in parts:
            _say("Measuring throughput")
            rates = throughput.measure(stack, options.users, options.records, options.rounds)
            lines += throughput.lines(rates)
        if "latency" in parts:
            _say("Measuring latency")
            found = [latency.measure(stack, p, options.steps) for p in options.partitions]
            lines += latency.lines(found)
        if "rosters" in parts:
            _say("Measuring rosters")
            costs = [rosters.measure(stack, users, options.steps // 2) for users in options.members]
            lines += rosters.lines(costs)
        if "restore" in parts:
            _say("Measuring snapshots")
            lines += restore.lines([restore.measure(stack, users) for users in options.restored])
        if "collecting" in parts:
            _say("Measuring norm events")
            one, many = options.collected
            collected = [
                collecting.measure(stack, one, single=True),
                collecting.measure(stack, many, single=False),
            ]
            lines += collecting.lines(collected)
    return lines


def _library(options: argparse.Namespace, parts: Sequence[str]) -> list[str]:
    lines: list[str] = []
    if "files" in parts:
        _say("Measuring budget files")
        lines += budget_files.lines(budget_files.measure(200_000, 40 * options.rounds))
    if "memory" in parts:
        _say("Measuring memory")
        kinds = [(users, ids) for users in options.resident for ids in ("integers", "strings")]
        lines += memory.lines([memory.measure(users, ids) for users, ids in kinds])
    if "reports" in parts:
        _say("Measuring reports")
        lines += peers.lines(peers.Workload(1000, 1000, 100, PoissonGaussian(1.0, 0.01)), 1)
    return lines


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
