"""The tables of the benchmark report."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from bench.latency import USERS_PER_STEP as USERS_PER_SMALL_STEP
from bench.latency import Latency, percentile
from bench.servers import spread
from bench.throughput import Throughput
from bench.workload import BUDGET_STEPS, ODOMETER_STEPS, USERS_PER_STEP

_PERCENTS = (50, 90, 99)


def throughput_lines(results: Sequence[Throughput]) -> list[str]:
    """Million users a second, median (smallest to largest)."""
    if not results:
        return []
    first = results[0]
    lines = [
        "## Throughput: one worker, one partition",
        "",
        f"Million users per second, {USERS_PER_STEP:,} users a record, median of "
        f"{len(first.worker)} rounds of {first.records:,} records (smallest to largest), from the "
        "first to the last decision as the broker stamped them. The no-op baseline reads the same "
        "records, appends the same bytes to Redis and publishes the same decisions and odometer "
        f"records, without accounting. Budgets last for {BUDGET_STEPS:,} steps of the largest "
        f"norm and begin partly spent; odometer steps are 1/{ODOMETER_STEPS} of the budget.",
        "",
        "| users of the partition | worker | no-op baseline | ratio | odometer records |",
        "|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        worker = spread([rate / 1e6 for rate in result.worker])
        baseline = spread([rate / 1e6 for rate in result.baseline])
        per_record = result.odometers / result.records / len(result.worker)
        lines.append(
            f"| {result.users:,} | {worker} | {baseline} | {result.ratio:.2f} "
            f"| {result.odometers:,} ({per_record:.1f} a record) |"
        )
    return [*lines, ""]


def dense_lines(results: Sequence[Throughput]) -> list[str]:
    """Million users a second, median (smallest to largest)."""
    if not results:
        return []
    lines = [
        "## Dense steps by roster: one worker, one partition",
        "",
        "Million users per second: every step brings the levels of all users, a byte each, in one "
        "record; measure renyi, orders of one's own, sampled. The log is there before the worker "
        f"starts. Median of {len(results[0].worker)} rounds (smallest to largest), from the first "
        "to the last decision as the broker stamped them; the no-op baseline as above.",
        "",
        "| users of the partition, and of a record | records | worker | no-op baseline "
        "| worker / no-op baseline |",
        "|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        worker = spread([rate / 1e6 for rate in result.worker])
        baseline = spread([rate / 1e6 for rate in result.baseline])
        lines.append(
            f"| {result.users:,} | {result.records:,} | {worker} | {baseline} "
            f"| {result.ratio:.2f} |"
        )
    return [*lines, ""]


def latency_lines(results: Sequence[Latency]) -> list[str]:
    """Milliseconds by percentile."""
    if not results:
        return []
    lines = [
        "## Latency of one step",
        "",
        f"Milliseconds, {USERS_PER_SMALL_STEP} users a step, "
        f"{len(results[0].turnstile.milliseconds):,} steps "
        "each, in alternating blocks. The echo goes the same two hops through the same broker: "
        "kafka-python producer, plain aiokafka relay, kafka-python consumer.",
        "",
        "| partitions | | p50 | p90 | p99 |",
        "|---:|---|---:|---:|---:|",
    ]
    for result in results:
        mine = [percentile(result.turnstile.milliseconds, percent) for percent in _PERCENTS]
        baseline = [percentile(result.echo.milliseconds, percent) for percent in _PERCENTS]
        ratios = [a / b for a, b in zip(mine, baseline, strict=True)]
        for name, numbers in (("charge", mine), ("no-op baseline", baseline), ("ratio", ratios)):
            cells = " | ".join(f"{number:.2f}" for number in numbers)
            lines.append(f"| {result.partitions} | {name} | {cells} |")
    lines += [
        "",
        "Where the time goes, in milliseconds per step (means): until the last partition has "
        "answered; in the client and back to it; CPU time of each process.",
        "",
        "| partitions | | to the answer | the rest | CPU |",
        "|---:|---|---:|---:|---|",
    ]
    for result in results:
        for name, path in (("charge", result.turnstile), ("no-op baseline", result.echo)):
            cpu = ", ".join(f"{process} {spent:.2f}" for process, spent in path.cpu.items())
            cells = f"{path.there:.2f} | {path.rest:.2f} | {cpu}"
            lines.append(f"| {result.partitions} | {name} | {cells} |")
    return [*lines, ""]


def document(lines: Sequence[str]) -> str:
    """Return the report as Markdown."""
    machine = (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}; broker, Redis (append-only file, fsync every "
        "second), worker and load all on this machine."
    )
    return "\n".join(["# Benchmarks", "", machine, "", *lines])
