"""Store the last facts of each source of a service, and return them for the views.

Facts about the service contain no data about people. Rejected records and numbers of users do, and
are returned separately.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

import msgspec

from streams.config import Unavailable
from streams.kafka.results import TopicsSeen
from streams.ledger.outputs import Channel
from streams.operations.check_tables import Level, Row, Table, findings_of
from streams.operations.doctor import of_partition, of_worker
from streams.operations.endpoints import WorkerSeen
from streams.operations.guarantees import budget_of
from streams.operations.rejected import readable
from streams.operations.run_progress import RunStatus, runs_of
from streams.operations.status import Overview, PartitionStatus, overview_of
from streams.sdk.followers import Followed, distinct_rejects
from streams.store.store_port import Glance
from streams.web.sources import NOT_YET, Source

K = TypeVar("K")

ESSENTIAL = ("Kafka", "Redis")
REJECTS = Channel.REJECTS.value


def alarms_of(
    sources: Iterable[Source],
    partitions: Iterable[PartitionStatus],
    workers: Iterable[WorkerSeen],
    now: float,
) -> list[dict[str, Any]]:
    """Return all alarms, the worst first: level, what is wrong, what to do, and the subject.

    Args:
        now: the time on the clock of the sources.
    """
    tables = [
        *(Table("sources", [_away(one, now)], {"side": one.name}) for one in sources),
        *map(of_partition, partitions),
        *map(of_worker, workers),
    ]
    found = [one for one in findings_of(tables) if one.level is not Level.OK]
    alarms = [
        {name: getattr(one, name) for name in ("level", "what", "do", "about")} for one in found
    ]
    return sorted(alarms, key=lambda alarm: alarm["level"] is not Level.WRONG)


def _away(source: Source, now: float) -> Row:
    name, is_essential = source.name, source.name in ESSENTIAL
    what = f"{name}: {source.problem or 'does not answer'}"
    if source.problem == NOT_YET:
        return is_essential and Level.WARNING, what, "", "Wait a moment"
    if not is_essential:
        return source.is_away(now) and Level.WARNING, what, "", "The other facts are still shown"
    old = f"The facts are {now - source.seen:.0f} s old. " if source.seen else ""
    do = (
        f"{old}Nothing is decided without it. Start {name}, or set TURNSTILE_{name.upper()}; "
        "`turnstile doctor` has details. This page recovers without a reload"
    )
    return source.is_away(now) and Level.WRONG, what, "", do


RATE_OVER = 10.0
"""The seconds over which the rate of decisions is measured."""
HISTORY = 120
"""The seconds for which rates are kept."""
_SHOWN = ("partition", "state", "reason", "owner", "lag", "snapshot")
"""The fields of a partition that need no login. The others depend on the users' charges."""
_SHOWN_REJECTS = 50
_ROOM = 600  # characters of a rejected record

MOST_RUNS = 200
"""The number of runs that are shown."""


class Look(NamedTuple):
    """The facts that one look at Kafka and Redis has found."""

    at: float  # on a monotonic clock
    overview: Overview
    runs: Sequence[RunStatus]  # none until all partitions have a summary


class ServiceFacts:
    """The last facts about a service. Any thread may call every method.

    Attributes:
        sources: Kafka, Redis and the topic of rejected records, by name.
        topics: when Kafka and Redis last answered; None before.
        workers: the last answers of the known workers.
    """

    def __init__(self, delta: float) -> None:
        """Begin without facts; ``delta`` is that of the epsilons."""
        self.sources = {name: Source(name) for name in (*ESSENTIAL, REJECTS)}
        self.topics: TopicsSeen | None = None
        self.workers: list[WorkerSeen] = []
        self._delta = delta
        self._lock = threading.Lock()
        self._looks: deque[Look] = deque([Look(0.0, Overview([], {}), [])])
        self._rates: deque[float] = deque(maxlen=HISTORY)
        self._reasons: Counter[str] = Counter()
        self._rejects: deque[dict[str, Any]] = deque(maxlen=_SHOWN_REJECTS)

    def see(
        self,
        prefix: str,
        topics: TopicsSeen,
        glances: Sequence[Glance],
        log: Sequence[tuple[int, int]],
    ) -> None:
        """Store the answers of Kafka and Redis.

        Args:
            log: where each partition of norms begins and ends, read after the glances.
        """
        now = time.monotonic()
        runs: Sequence[RunStatus] = []
        with suppress(Unavailable):
            runs = runs_of(glances, [end for _, end in log]).runs
        look = Look(now, overview_of(prefix, topics, log, glances), runs)
        with self._lock:
            self.topics = topics
            self._looks.append(look)
            while self._looks[0].at < now - RATE_OVER:
                self._looks.popleft()
            self._rates.append(sum(self._rates_of(_decided).values()))

    def service(self) -> dict[str, Any]:
        """Return the state of the service, without numbers of users or sizes of what they changed.

        On a loopback address the dashboard shows this without a login.
        """
        now = time.monotonic()
        with self._lock:
            overview, rates = self._looks[-1].overview, self._rates_of(_decided)
            rejects = dict(self._reasons.most_common())
        partitions = [
            {**{name: getattr(one, name) for name in _SHOWN}, "rate": rates.get(one.partition, 0.0)}
            for one in overview.partitions
        ]
        return {
            "alarms": alarms_of(self.sources.values(), overview.partitions, self.workers, now),
            "away": {name: self.sources[name].is_away(now) for name in ESSENTIAL},
            "partitions": partitions,
            "rate": sum(rates.values()),
            "rates": list(self._rates),
            "lag": sum(one.lag for one in overview.partitions),
            "datasets": [
                {
                    "dataset": name,
                    "measure": found.policy.measure,
                    "budget": budget_of(found.policy),
                    "epsilon": found.policy.epsilon(self._delta),
                    "delta": self._delta,
                }
                for name, found in sorted(overview.datasets.items())
            ],
            "workers": [asdict(worker) for worker in self.workers],
            "rejects": rejects,
        }

    def people(self) -> dict[str, Any]:
        """Return data about users: their numbers, runs and rejected records."""
        with self._lock:
            overview = self._looks[-1].overview
            return {
                "users": {
                    "partitions": {one.partition: one.users for one in overview.partitions},
                    "datasets": {name: found.users for name, found in overview.datasets.items()},
                    "exhausted": {
                        name: found.exhausted for name, found in overview.datasets.items()
                    },
                },
                "runs": self._runs(),
                "refused": sorted(self._rejects, key=lambda one: one["time"] or "", reverse=True),
            }

    def _rates_of(self, progress: Callable[[Look], Mapping[K, int]]) -> dict[K, float]:
        """Return how much each number of a look rises per second."""
        first, last = self._looks[0], self._looks[-1]
        before, after, seconds = progress(first), progress(last), last.at - first.at
        return {
            name: max(0, number - before.get(name, number)) / seconds if seconds > 0.0 else 0.0
            for name, number in after.items()
        }

    def _runs(self) -> list[dict[str, Any]]:
        """Return the runs, the fastest first."""
        rates = self._rates_of(lambda look: {(one.dataset, one.run): one.step for one in look.runs})
        shown = [
            {**asdict(run), "rate": rates[run.dataset, run.run]} for run in self._looks[-1].runs
        ]
        return sorted(shown, key=lambda run: -run["rate"])[:MOST_RUNS]

    def follow_rejects(self, records: Iterator[Followed]) -> None:
        """Count and keep rejected records, until the records end. Forget those seen before."""
        with self._lock:  # a new start reads some records again
            self._reasons.clear()
            self._rejects.clear()
        for written, rejected in distinct_rejects(records):
            shown = readable(written, rejected)
            record = shown.pop("record")
            whole = msgspec.json.encode(record, enc_hook=str).decode() if record else ""
            shown["bytes"] = len(rejected.record)
            shown["record"] = whole if len(whole) <= _ROOM else f"{whole[:_ROOM]} …"
            with self._lock:
                self._reasons[rejected.reason] += 1
                self._rejects.appendleft(shown)


def _decided(look: Look) -> dict[int, int]:
    return {one.partition: one.next for one in look.overview.partitions}
