"""What a snapshot of a partition takes, and how long it is until one takes the place of Redis.

Users with integer ids, all of them charged, live in one partition. A worker decides them and writes
a snapshot; the log is trimmed up to it, Redis emptied, and another worker started. Its rebuild
lasts from the log line at its start to the first offset that it would decide. The start of the
process is reported separately.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime

import redis

from bench.report import section
from bench.servers import create_topics, wait_until, work_off, worker_of
from bench.workload import Workload, produce
from streams.config import Config
from streams.kafka.snapshot_topic import read_snapshot
from streams.kafka.topics import NORMS
from streams.local import LocalStack
from streams.operations.trimming import plan_trims, trim

_WITHIN = 600.0
_WRITTEN = re.compile(r"wrote the snapshot at offset (\d+): .* in ([0-9.]+) s")
_BEGINS, _GOES_ON = "Redis does not have the state", "is owned and continues at"


@dataclass
class Rebuild:
    """What one population gave.

    Attributes:
        users: of the partition.
        bytes: of its snapshot.
        written: seconds that writing all of it took.
        read: seconds to read and verify it, without anything else.
        rebuilt: seconds until a worker goes on from it.
    """

    users: int
    bytes: int
    written: float
    read: float
    rebuilt: float


def measure(stack: LocalStack, users: int) -> Rebuild:
    """Measure one population once."""
    config = Config(kafka=stack.kafka, redis=stack.redis, partitions=1, prefix=f"rebuild{users}.")
    client = redis.Redis.from_url(stack.redis, decode_responses=True)
    create_topics(config)
    workload = Workload(users, seed=users)
    # No odometer rises.
    produce(config.kafka, config.topic(NORMS), workload.enrolment(of_budget=0.1))
    with worker_of(config, TURNSTILE_SNAPSHOT_SECONDS="0") as running:
        work_off(running, client, config, workload.next)
    with worker_of(config, TURNSTILE_SNAPSHOT_SECONDS="1") as running:
        wait_until(lambda: _seconds_to_write(running, workload.next), _WITHIN, running.check)
        written = _seconds_to_write(running, workload.next)
    began = time.perf_counter()
    snapshot = read_snapshot(config, 0, None)
    read = time.perf_counter() - began
    assert snapshot is not None
    size = sum(map(len, snapshot.pages.values()))
    del snapshot
    for planned in plan_trims(config):
        trim(config, planned)
    client.flushdb()
    with worker_of(config, TURNSTILE_SNAPSHOT_SECONDS="0") as running:
        wait_until(lambda: _GOES_ON in _log(running), _WITHIN, running.check)
        rebuilt = _seconds_between(_log(running), _BEGINS, _GOES_ON)
    client.flushdb()
    return Rebuild(users, size, written, read, rebuilt)


def _log(running: LocalStack) -> str:
    return (running.directory / "logs" / "worker-0.log").read_text()


def _seconds_to_write(running: LocalStack, end: int) -> float:
    """Return the seconds that writing the snapshots took; 0 until they cover everything."""
    found = _WRITTEN.findall(_log(running))
    if not found or int(found[-1][0]) != end:
        return 0.0
    return max(float(seconds) for _, seconds in found)


def _seconds_between(log: str, first: str, last: str) -> float:
    """Between the lines of a log with these words."""
    stamps = [
        datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f")
        for words in (first, last)
        for line in [next(line for line in log.splitlines() if words in line)]
    ]
    return (stamps[1] - stamps[0]).total_seconds()


def lines(rebuilds: list[Rebuild]) -> list[str]:
    """Return the table of the report."""
    return section(
        "Snapshots of partitions",
        "One partition, integer ids, every user charged, all pages new; broker, Redis and worker "
        "on this machine. Rebuilt: from the start of reading to the first offset that is decided.",
        ["users", "snapshot", "written", "read and verified", "rebuilt"],
        [
            [
                f"{r.users:,}",
                f"{r.bytes / 1e6:,.1f} MB",
                *(f"{seconds:.1f} s" for seconds in (r.written, r.read, r.rebuilt)),
            ]
            for r in rebuilds
        ],
    )
