"""What a snapshot of a partition takes, and how long it is until one takes the place of Redis.

Users with integer ids, all of them charged, live in one partition. A worker decides them and writes
a snapshot; the log is trimmed up to it, Redis emptied, and another worker started. Its rebuild
lasts from the log line at its start to the first offset that it would decide. The start of the
process is reported separately.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

import redis

from bench.servers import (
    create_topics,
    end_offset,
    next_offset,
    read_halts,
    spread,
    unpublished,
    wait_until,
)
from bench.throughput import rate_of
from bench.workload import CLIP_NORM, USERS_PER_STEP, Applied, Workload, produce
from streams.config import Config
from streams.kafka.snapshot_topic import read_snapshot
from streams.kafka.topics import HALTS, NORMS
from streams.local import LocalStack
from streams.operations.trimming import plan_trims, trim
from streams.records import Charge

_WITHIN = 600.0
_WRITTEN = re.compile(r"wrote the snapshot at offset (\d+): .* in ([0-9.]+) s")
_OFTEN, _NEVER = 1.0, 0.0
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


@dataclass
class Slowdown:
    """Users decided per second while snapshots are written, and while none are; per round."""

    users: int
    often: list[float] = field(default_factory=list)
    never: list[float] = field(default_factory=list)
    snapshots: int = 0

    @property
    def share(self) -> float:
        """By which decisions are slower, by medians."""
        return 1.0 - median(self.often) / median(self.never)


class Neighbours(Workload):
    """Steps of users who were enrolled together: long logs of them are made in little time."""

    def _random_step(self) -> Charge:
        size = min(USERS_PER_STEP, len(self._ids))
        first = self._random.integers(0, len(self._ids) - size + 1)
        norms = self._random.uniform(0, CLIP_NORM, size)
        return self._charge(self._ids[first : first + size], norms, CLIP_NORM)


class Partition:
    """A partition with a log, and workers that are started for it."""

    def __init__(self, stack: LocalStack, name: str, workload: Workload) -> None:
        self.workload = workload
        self.config = Config(kafka=stack.kafka, redis=stack.redis, partitions=1, prefix=f"{name}.")
        self.redis = redis.Redis.from_url(stack.redis, decode_responses=True)
        create_topics(self.config)

    def produce(self, applied: list[Applied]) -> None:
        produce(self.config.kafka, self.config.topic(NORMS), applied)

    def worker(self, snapshot_seconds: float) -> LocalStack:
        config = self.config
        return LocalStack(
            workers=1,
            partitions=1,
            prefix=config.prefix,
            kafka=config.kafka,
            redis=config.redis,
            worker_environment={"TURNSTILE_SNAPSHOT_SECONDS": str(snapshot_seconds)},
        )

    def work_off(self, stack: LocalStack) -> None:
        """Wait until all records are decided and published."""
        wait_until(self._is_decided, _WITHIN, stack.check)
        wait_until(lambda: not unpublished(self.redis, self.config), _WITHIN, stack.check)

    def _is_decided(self) -> bool:
        return next_offset(self.redis, self.config) == self.workload.next


def measure(stack: LocalStack, users: int) -> Rebuild:
    """Measure one population once."""
    partition = Partition(stack, f"rebuild{users}", Workload(users, seed=users))
    partition.produce(partition.workload.enrolment(of_budget=0.1))  # no odometer rises
    with partition.worker(_NEVER) as running:
        partition.work_off(running)
    with partition.worker(_OFTEN) as running:
        wait_until(lambda: _covered(partition, running) is not None, _WITHIN, running.check)
        written = _covered(partition, running)
    began = time.perf_counter()
    snapshot = read_snapshot(partition.config, 0, None)
    read = time.perf_counter() - began
    if snapshot is None or written is None:
        raise AssertionError("there is no snapshot")
    size = sum(map(len, snapshot.pages.values()))
    del snapshot
    for planned in plan_trims(partition.config):
        trim(partition.config, planned)
    partition.redis.flushdb()
    with partition.worker(_NEVER) as running:
        wait_until(lambda: _GOES_ON in _log(running), _WITHIN, running.check)
        rebuilt = _seconds_between(_log(running), _BEGINS, _GOES_ON)
    partition.redis.flushdb()
    return Rebuild(users, size, written, read, rebuilt)


def measure_slowdown(stack: LocalStack, users: int, records: int, rounds: int) -> Slowdown:
    """Measure decisions with and without snapshots in turns, after an uncounted round."""
    workload, result = Neighbours(users, seed=users), Slowdown(users)
    contests = {
        every: Partition(stack, name, workload) for name, every in (("on", _OFTEN), ("off", _NEVER))
    }
    applied = workload.enrolment()
    for number in range(rounds + 1):
        applied += workload.steps(records)
        for every, partition in contests.items():
            partition.produce(applied)
            halts = end_offset(partition.config, HALTS)
            with partition.worker(every) as running:
                partition.work_off(running)
                snapshots = len(_WRITTEN.findall(_log(running)))
            if number:
                rates = result.often if every else result.never
                decisions = read_halts(partition.config, halts, records)
                rates.append(rate_of(decisions, applied, partition.workload.users_per_step))
                result.snapshots += snapshots
        applied = []
    return result


def _log(running: LocalStack) -> str:
    return (running.directory / "logs" / "worker-0.log").read_text()


def _covered(partition: Partition, running: LocalStack) -> float | None:
    """Seconds that the snapshots took that were written, once they cover everything."""
    found = _WRITTEN.findall(_log(running))
    if not found or int(found[-1][0]) != partition.workload.next:
        return None
    return max(float(seconds) for _, seconds in found)


def _seconds_between(log: str, first: str, last: str) -> float:
    """Between the lines of a log with these words."""
    stamps = [
        datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f")
        for words in (first, last)
        for line in [next(line for line in log.splitlines() if words in line)]
    ]
    return (stamps[1] - stamps[0]).total_seconds()


def lines(rebuilds: list[Rebuild], slowdown: Slowdown | None) -> list[str]:
    """Return the tables of the report."""
    if not rebuilds and not slowdown:
        return []
    rows = [
        f"| {r.users:,} | {r.bytes / 1e6:,.1f} MB | {r.written:.1f} s | {r.read:.1f} s | "
        f"{r.rebuilt:.1f} s |"
        for r in rebuilds
    ]
    lines = [
        "## Snapshots of partitions",
        "",
        "One partition, integer ids, every user charged, all pages new; broker, Redis and worker "
        "on this machine. Rebuilt: from the start of reading to the first offset that is decided.",
        "",
        "| users | snapshot | written | read and verified | rebuilt |",
        "|---:|---:|---:|---:|---:|",
        *rows,
        "",
    ]
    if slowdown:
        lines += [
            f"{slowdown.users:,} users, snapshots as often as they may be (at most 5 % of the "
            f"time, {slowdown.snapshots} in {len(slowdown.often)} rounds): "
            f"{spread([rate / 1e6 for rate in slowdown.often])} million users decided per second; "
            f"without: {spread([rate / 1e6 for rate in slowdown.never])}, which is "
            f"{slowdown.share:.0%} of difference.",
            "",
        ]
    return lines
