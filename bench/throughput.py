"""User-charges per second: the worker against the no-op baseline, over the same records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import redis

from bench.baseline import raw_keys
from bench.servers import (
    check_running,
    create_topics,
    end_offset,
    next_offset,
    read_halts,
    start_module,
    unpublished,
    wait_until,
)
from bench.workload import Applied, DenseSteps, Workload, produce
from streams.config import Config
from streams.kafka.topics import HALTS, NORMS
from streams.local import LocalStack
from streams.records import decode_answer

_WITHIN = 300.0
_DENSE_USERS = 2**25
"""User-charges in a round of dense steps, if there are records for them."""
_DENSE_RECORDS = 16
"""The minimum number of records in a round."""


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

    def __init__(
        self, stack: LocalStack, users: int, records: int, kind: type[Workload] = Workload
    ) -> None:
        self._stack = stack
        self._workload = kind(users, seed=users)
        place = {"kafka": stack.kafka, "redis": stack.redis, "partitions": 1}
        name = f"{kind.__name__.lower()}{users}"
        self._config = Config(prefix=f"{name}-worker.", **place)
        self._baseline_config = Config(prefix=f"{name}-baseline.", **place)
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
        with LocalStack(
            workers=1,
            partitions=1,
            prefix=config.prefix,
            kafka=config.kafka,
            redis=config.redis,
        ) as stack:
            wait_until(
                lambda: next_offset(self._redis, config) == self._workload.next,
                _WITHIN,
                stack.check,
            )
            wait_until(lambda: not unpublished(self._redis, config), _WITHIN, stack.check)
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
    return _in_turns([Contest(stack, users, records) for users in populations], rounds)


def measure_dense(
    stack: LocalStack, populations: Sequence[int], records: int, rounds: int
) -> list[Throughput]:
    """Measure rosters whose steps change every level."""
    counts = {
        users: min(records, max(_DENSE_RECORDS, _DENSE_USERS // users)) for users in populations
    }
    contests = [Contest(stack, users, count, DenseSteps) for users, count in counts.items()]
    return _in_turns(contests, rounds)


def _in_turns(contests: Sequence[Contest], rounds: int) -> list[Throughput]:
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
