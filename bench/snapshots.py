"""By how much decisions are slower while snapshots of the partition are written, and how often.

    python -m bench.snapshots
    python -m bench.snapshots --users 1000000 --blocks 10 --seconds 20

One worker, one partition in which everybody was charged, and a trainer that charges 4,096 of them
at random, step after step. In turns the worker writes snapshots as often as it may, and none: it
is the same process with the same state, which looks whether a file is there. Told are medians of
blocks, and percentiles of all steps; and those of steps that a snapshot was written beside.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.latency import percentile
from streams import Turnstile
from streams.local import LocalStack
from streams.sdk.run import Run

_A_STEP, _ENROLLED_AT_ONCE = 4096, 65_536
_NOT_COUNTED = 2.0
"""Seconds at the beginning of a block: what began in the one before it has ended by then."""
_WRITTEN = re.compile(r"^(\S+ \S+) .*wrote the snapshot at offset \d+: .* in ([0-9.]+) s")
_WORKER = """
import pathlib, sys
from streams.cli.main import main
from streams.worker.snapshot_writer import SnapshotWriter
flag, is_due = pathlib.Path({flag!r}), SnapshotWriter.is_due
SnapshotWriter.is_due = lambda writer, position: flag.exists() and is_due(writer, position)
sys.exit(main(["worker"]))
"""


@dataclass
class Block:
    """Steps in a row: when each ended, by the clock of the logs, and how long it took."""

    seconds: float = 0.0
    ended: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)  # milliseconds

    @property
    def rate(self) -> float:
        """Steps per second."""
        return len(self.took) / self.seconds


@dataclass
class Slowdown:
    """What one population gave."""

    users: int
    written: list[Block] = field(default_factory=list)  # with snapshots
    never: list[Block] = field(default_factory=list)  # without
    snapshots: Sequence[tuple[float, float]] = ()  # when each began and ended

    @property
    def beside(self) -> list[float]:
        """Milliseconds of the steps that a snapshot was written beside."""
        return [
            took
            for block in self.written
            for ended, took in zip(block.ended, block.took, strict=True)
            if any(first < ended and ended - took / 1e3 < last for first, last in self.snapshots)
        ]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.snapshots")
    parser.add_argument("--users", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--blocks", type=int, default=6, help="of each kind")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each block")
    options = parser.parse_args()
    table = Table(title="A step of 4,096 users, with snapshots and without")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for users in options.users:
        for row in _rows(measure(users, options.blocks, options.seconds)):
            table.add_row(*row)
    Console(width=100).print(table)


def measure(users: int, blocks: int, seconds: float) -> Slowdown:
    """Blocks with snapshots and without, in turns; which of them comes first alternates."""
    found = Slowdown(users)
    with TemporaryDirectory() as directory:
        flag = Path(directory, "snapshots")
        with (
            LocalStack(
                partitions=1,
                worker_command=(sys.executable, "-c", _WORKER.format(flag=str(flag))),
                worker_environment={"TURNSTILE_SNAPSHOT_SECONDS": "1"},
            ) as stack,
            Turnstile(stack.kafka, prefix=stack.prefix, timeout=120.0) as client,
        ):
            run = _enrolled(client, users)
            random = np.random.default_rng(users)
            for number in range(blocks):
                for is_written in (True, False) if number % 2 else (False, True):
                    flag.touch() if is_written else flag.unlink(missing_ok=True)
                    _block(run, users, random, _NOT_COUNTED)
                    kind = found.written if is_written else found.never
                    kind.append(_block(run, users, random, seconds))
            found.snapshots = list(_written(stack.directory / "logs" / "worker-0.log"))
    return found


def _enrolled(client: Turnstile, users: int) -> Run:
    client.create_dataset("d", measure="zcdp", budget=1e5)
    run = client.run("d", "r")
    for first in range(0, users, _ENROLLED_AT_ONCE):
        some = np.arange(first, min(first + _ENROLLED_AT_ONCE, users))
        run.charge(some, np.ones(len(some)), noise_stddev=10.0)
    return run


def _block(run: Run, users: int, random: np.random.Generator, seconds: float) -> Block:
    block, size = Block(), min(_A_STEP, users)
    spread = np.arange(size) * (users // size)  # over all pages
    began = time.perf_counter()
    while block.seconds < seconds:
        some = (spread + random.integers(users)) % users
        norms = random.uniform(0, 1, size)
        step = time.perf_counter()
        run.charge(some, norms, noise_stddev=10.0, clip_norm=1.0)
        block.took.append((time.perf_counter() - step) * 1e3)
        block.ended.append(time.time())
        block.seconds = time.perf_counter() - began
    return block


def _written(log: Path) -> Iterator[tuple[float, float]]:
    for line in log.read_text().splitlines():
        if found := _WRITTEN.match(line):
            ended = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
            yield ended - float(found[2]), ended


_COLUMNS = ("users", "snapshots", "steps/s", "p50 ms", "p99 ms", "written")


def _rows(found: Slowdown) -> Iterator[tuple[str, ...]]:
    users, shown = f"{found.users:,}", []
    for kind, blocks in (("written", found.written), ("none", found.never)):
        took = [step for block in blocks for step in block.took]
        rate = median(block.rate for block in blocks)
        shown.append((rate, percentile(took, 50), percentile(took, 99)))
        count = str(len(found.snapshots)) if kind == "written" else ""
        yield (users, kind, f"{rate:.1f}", *(f"{each:.1f}" for each in shown[-1][1:]), count)
    ratios = [one / other for one, other in zip(*shown, strict=True)]
    yield users, "ratio", *(f"{ratio:.3f}" for ratio in ratios), ""
    if beside := found.beside:
        percentiles = (f"{percentile(beside, share):.1f}" for share in (50, 99))
        yield users, "just being written", "", *percentiles, ""


if __name__ == "__main__":
    main()
