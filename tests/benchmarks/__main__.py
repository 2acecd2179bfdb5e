"""``python -m tests.benchmarks``: measure, print a table, write it to ``out/benchmarks.md``."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from streams.local import LocalStack
from tests.benchmarks import latency, soak, throughput
from tests.benchmarks.report import document

_PARTS = ("throughput", "latency")


def main() -> None:
    """Read the arguments, run the parts, write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement of throughput")
    parser.add_argument("--records", type=int, default=1500, help="a round")
    parser.add_argument("--users", type=int, nargs="+", default=[65_536, 1_048_576])
    parser.add_argument("--steps", type=int, default=2000, help="of each measurement of latency")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 4], help="for latency")
    parser.add_argument("--soak", type=float, default=0, metavar="SECONDS", help="off by default")
    parser.add_argument("--only", choices=[*_PARTS, "soak"], help="leave the other parts out")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks.md"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    parts = (options.only,) if options.only else (*_PARTS, "soak")
    with LocalStack(workers=0, progress=_say) as stack:
        rates, latencies, memory = [], [], None
        if "throughput" in parts:
            _say("Measuring throughput")
            rates = throughput.measure(stack, options.users, options.records, options.rounds)
        if "latency" in parts:
            _say("Measuring latency")
            latencies = [latency.measure(stack, p, options.steps) for p in options.partitions]
        if "soak" in parts and options.soak:
            memory = soak.measure(stack, options.soak, _say)
    text = document(rates, latencies, memory)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text, encoding="utf-8")
    print(text)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
