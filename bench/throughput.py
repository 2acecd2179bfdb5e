"""User-charges per second: the worker against the no-op baseline, over the same records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import redis

from bench.baseline import raw_keys
from bench.report import section, spread
from bench.servers import (
    check_running,
    create_topics,
    end_offset,
    read_halts,
    start_module,
    wait_until,
    work_off,
    worker_of,
)
from bench.workload import (
    BUDGET_STEPS,
    ODOMETER_STEPS,
    USERS_PER_STEP,
    Applied,
    Workload,
    produce,
)
from streams.config import Config
from streams.kafka.topics import HALTS, NORMS
from streams.local import LocalStack
from streams.records import decode_answer

_WITHIN = 300.0


@dataclass
class Throughput:
    """The rates of one population, in users per second, one per round."""

    users: int
    records: int
    worker: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    odometers: int = 0

    @property
    def ratio(self) -> float:
        """Return the ratio of the medians of worker and no-op baseline."""
        return statistics.median(self.worker) / statistics.median(self.baseline)


class Contest:
    """One population, with its log, worker and no-op baseline."""

    def __init__(self, stack: LocalStack, users: int, records: int) -> None:
        self._stack = stack
        self._workload = Workload(users, seed=users)
        place = {"kafka": stack.kafka, "redis": stack.redis, "partitions": 1}
        self._config = Config(prefix=f"{users}-worker.", **place)
        self._baseline_config = Config(prefix=f"{users}-baseline.", **place)
        self._redis = redis.Redis.from_url(stack.redis, decode_responses=True)
        self.result = Throughput(users, records)
        create_topics(self._config)
        create_topics(self._baseline_config)

    def prepare(self) -> None:
        """Enrol all users through the worker."""
        self._work_off(self._produced(self._workload.enrolment()))

    def round(self, counts: bool = True) -> None:
        """Append records; measure the worker, then the no-op baseline."""
        first = self._workload.next
        applied = self._produced(self._workload.steps(self.result.records))
        worker, baseline = self._work_off(applied), self._pass_through(first, applied)
        if not counts:
            return
        self.result.worker.append(worker)
        self.result.baseline.append(baseline)
        self.result.odometers += sum(record.odometers for record in applied)

    def _produced(self, applied: list[Applied]) -> list[Applied]:
        produce(self._config.kafka, self._config.topic(NORMS), applied)
        written = end_offset(self._config, NORMS)
        if written != self._workload.next:
            raise AssertionError(f"the log ends at {written}, not at {self._workload.next}")
        return applied

    def _work_off(self, applied: list[Applied]) -> float:
        halts = end_offset(self._config, HALTS)
        config = self._config
        with worker_of(config) as running:
            work_off(running, self._redis, config, self._workload.next)
        decisions = read_halts(config, halts, len(applied))
        return rate_of(decisions, applied, self._workload.users_per_step)

    def _pass_through(self, first: int, applied: list[Applied]) -> float:
        config = self._baseline_config
        halts = end_offset(config, HALTS)
        file = self._stack.directory / "applied"
        file.write_bytes(msgspec.msgpack.encode(applied))
        options = {
            "kafka": config.kafka,
            "redis": config.redis,
            "prefix": config.prefix,
            "source": self._config.prefix,
            "first": first,
            "applied": file,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        child = start_module(self._stack, "baseline", arguments)
        try:
            wait_until(lambda: child.exit_code == 0, _WITHIN, lambda: check_running(child))
            decisions = read_halts(config, halts, len(applied))
            return rate_of(decisions, applied, self._workload.users_per_step)
        finally:
            child.stop()
            self._redis.unlink(*raw_keys(config.prefix))


def measure(
    stack: LocalStack, populations: Sequence[int], records: int, rounds: int
) -> list[Throughput]:
    """Measure all populations in turns, after an uncounted round."""
    contests = [Contest(stack, users, records) for users in populations]
    for contest in contests:
        contest.prepare()
        contest.round(counts=False)
    for _ in range(rounds):
        for contest in contests:
            contest.round()
    return [contest.result for contest in contests]


def rate_of(
    decisions: list[tuple[int, bytes]], applied: list[Applied], users_per_step: int
) -> float:
    """Return the users per second from the first to the last decision, by the broker's
    timestamps.
    """
    for number, ((_, value), record) in enumerate(zip(decisions, applied, strict=True)):
        if value != record.decision:
            came, expected = decode_answer(value), decode_answer(record.decision)
            raise AssertionError(f"decision {number} is {came}, not {expected}")
    began, ended = decisions[0][0], decisions[-1][0]
    later = sum(stamp > began for stamp, _ in decisions)
    return later * users_per_step / max(ended - began, 1) * 1000


def lines(results: Sequence[Throughput]) -> list[str]:
    """Return million users per second: median (smallest to largest)."""
    first = results[0]
    return section(
        "Throughput: one worker, one partition",
        f"Million users per second, {USERS_PER_STEP:,} users per record, median of "
        f"{len(first.worker)} rounds of {first.records:,} records (smallest to largest), from the "
        "first to the last decision as the broker stamped them. The no-op baseline reads the same "
        "records, appends the same bytes to Redis and publishes the same decisions and odometer "
        f"records, without accounting. Budgets last for {BUDGET_STEPS:,} steps of the largest "
        f"norm and begin partly spent; odometer steps are 1/{ODOMETER_STEPS} of the budget.",
        ["users of the partition", "worker", "no-op baseline", "ratio", "odometer records"],
        [
            [
                f"{result.users:,}",
                *(spread([r / 1e6 for r in rates]) for rates in (result.worker, result.baseline)),
                f"{result.ratio:.2f}",
                f"{result.odometers:,}",
            ]
            for result in results
        ],
    )
