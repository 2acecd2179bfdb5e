"""Watches a service continuously, and returns its last known state at any time.

Each source has its own thread, so a source that does not answer does not delay the others. Its last
facts are kept and marked as old, and it is asked again.

    source    read             contents
    Kafka     every second     the topics, and where the log ends
    Redis     every second     three small keys of each partition
    workers   every 2 seconds  /healthz and /metrics, if their addresses are known
    halts     as written       steps of runs, from 64 records of each partition before the end
    rejects   as written       reason and record, from 200 of each partition before the end
    odometer  as written       the spent shares of the budgets, from the beginning

The first three contain no data about people. The others do, and are returned separately.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from threading import Event
from typing import Any, TypeVar

import msgspec
from kafka import TopicPartition
from msgspec import UnsetType

from streams.config import Config, failure_of
from streams.kafka.authentic import verifier_of
from streams.kafka.clients import new_reader
from streams.kafka.results import TopicsSeen
from streams.kafka.topics import Topics
from streams.ledger.outputs import Channel
from streams.operations.activity import Activity, Spending
from streams.operations.endpoints import WorkerSeen, ask_workers
from streams.operations.guarantees import budget_of, spent_share
from streams.operations.rejected import readable
from streams.operations.status import (
    Overview,
    PartitionState,
    Unavailable,
    look_at,
    overview_of,
    read_glances,
)
from streams.records import OdometerRecord, Policy, decode_answer
from streams.sdk.decisions import UNREADABLE
from streams.sdk.errors import ServiceUnavailable
from streams.sdk.followers import Followed, distinct_rejects
from streams.sdk.kafka import believing, reaching_kafka
from streams.store.port import Glance

_POLL_MS = 500


def tail(
    config: Config, channel: Channel, log: bytes, back: int | None, closed: Event
) -> Iterator[Followed | None]:
    """Yield records with valid signatures, and None whenever all present records were read.

    Args:
        config: the settings with the brokers.
        channel: the topic.
        log: the topic id of norms, for which the records are signed.
        back: the number of records before the end of each partition to begin with; None: all.
        closed: set by the caller to end the iteration.

    Raises:
        ServiceUnavailable: Kafka does not answer at the start, or denies access.
    """
    is_believed = believing(verifier_of(config, log))
    name = config.topic(channel.value)
    with reaching_kafka(config):
        consumer = new_reader(config)
    try:
        with reaching_kafka(config):
            numbers = sorted(consumer.partitions_for_topic(name) or ())
            places = [TopicPartition(name, number) for number in numbers]
            consumer.assign(places)
            starts, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
            for place in places:
                start = starts[place] if back is None else ends[place] - back
                consumer.seek(place, max(starts[place], start))
        while not closed.is_set():
            with reaching_kafka(config):
                polled = consumer.poll(timeout_ms=_POLL_MS)
            for place, records in polled.items():
                for record in records:
                    if record.value is not None and is_believed(record):
                        yield Followed(place.partition, record.value, record.timestamp / 1000)
            if not polled or all(consumer.position(place) >= ends[place] for place in places):
                yield None
    finally:
        consumer.close()


NOT_YET = "not looked at yet"
ESSENTIAL = ("Kafka", "Redis")
STALE_AFTER = 5.0
"""The seconds without an answer after which a source counts as away."""


@dataclass
class Side:
    """A source of facts about a service: Kafka, Redis or a topic."""

    problem: str | None = NOT_YET
    seen: float = 0.0  # when it last answered, on a monotonic clock; 0: never

    def is_away(self, now: float) -> bool:
        """Return whether its facts may be outdated."""
        return self.problem is not None or now - self.seen > STALE_AFTER


def alarms_of(
    sides: Mapping[str, Side],
    partitions: Sequence[Mapping[str, Any]],
    workers: Sequence[WorkerSeen],
    now: float,
) -> list[dict[str, Any]]:
    """Return all alarms, the worst first: level, what is wrong, what to do, and the subject.

    Args:
        sides: the sources, by name.
        partitions: with their ``state``, ``reason``, ``problem`` and ``remedy``.
        workers: their answers over HTTP.
        now: the time on the clock of the sources.
    """
    alarms = [
        alarm for name, side in sides.items() if (alarm := _away(name, side, now)) is not None
    ]
    for one in partitions:
        if one["state"] != PartitionState.DECIDING:
            level = "warning" if one["state"] == PartitionState.RESTORING else "wrong"
            what = f"Partition {one['partition']} is {one['state']}: {one['problem']}"
            about = {name: one[name] for name in ("partition", "state", "reason")}
            alarms.append(_alarm(level, what, one["remedy"], about))
    for worker in workers:
        if worker.problem:
            what = f"Worker {worker.address}: {worker.problem}"
            do = "Read its log; start it again if it is gone"
            alarms.append(_alarm("wrong", what, do, {"worker": worker.address}))
    return sorted(alarms, key=lambda alarm: alarm["level"] != "wrong")


def _away(name: str, side: Side, now: float) -> dict[str, Any] | None:
    is_essential = name in ESSENTIAL
    if side.problem == NOT_YET and not is_essential:
        return None
    is_stale = is_essential and side.seen > 0 and side.is_away(now)
    if side.problem is None and not is_stale:
        return None
    old = f"The facts are {now - side.seen:.0f} s old. " if side.seen and is_essential else ""
    do = (
        f"Nothing is decided without it. Start {name}, or set TURNSTILE_{name.upper()}; "
        "`turnstile doctor` has details. This page recovers without a reload"
        if is_essential
        else "The other facts are still shown"
    )
    if side.problem == NOT_YET:
        return _alarm("warning", f"{name}: {NOT_YET}", "Wait a moment", {"side": name})
    level = "wrong" if is_essential else "warning"
    what = f"{name}: {side.problem or 'does not answer'}"
    return _alarm(level, what, f"{old}{do}", {"side": name})


def _alarm(level: str, what: str, do: str, about: Mapping[str, Any]) -> dict[str, Any]:
    return {"level": level, "what": what, "do": do, "about": about}


logger = logging.getLogger("turnstile.watching")

T = TypeVar("T")

RATE_OVER = 10.0
"""The seconds over which the rate of decisions is measured."""
HISTORY = 120
"""The seconds for which rates are kept."""
_ANSWERS_WITHIN = 5.0
_AGAIN_AFTER = 3.0
_BACK = {Channel.HALTS: 64, Channel.REJECTS: 200, Channel.ODOMETER: None}
_SHOWN = (
    *("partition", "state", "reason", "problem", "remedy"),
    *("owner", "next", "lag", "seen", "snapshot"),
)
"""The fields of a partition that need no login. The others depend on the users' charges."""
_SHOWN_REJECTS = 50
_ROOM = 600  # characters of a rejected record


@dataclass
class _Seen:
    kafka: tuple[TopicsSeen, list[tuple[int, int]]] | None = None
    glances: list[Glance] | None = None
    ends: list[int] | None = None  # of the log, as they were when the glances were asked for
    before: list[Glance] | None = None  # as they were when the log's extents were asked for
    workers: list[WorkerSeen] = field(default_factory=list)


class Watch:
    """Observes a service. Any thread may call ``service`` and ``people``."""

    def __init__(
        self,
        config: Config,
        workers: Sequence[str],
        delta: float,
        channels: Sequence[Channel] = tuple(_BACK),
    ) -> None:
        """Prepare the watch.

        Args:
            config: the settings with the service's addresses.
            workers: host:port of the known workers' HTTP servers.
            delta: the delta of the epsilons.
            channels: the topics that are followed.
        """
        # An outage is shown soon.
        self._config = replace(config, timeout=min(config.timeout, _ANSWERS_WITHIN))
        self._addresses, self._delta = workers, delta
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._sides = {name: Side() for name in ("Kafka", "Redis", *(c.value for c in channels))}
        self._seen = _Seen()
        self._offsets: deque[tuple[float, list[int]]] = deque()
        self._policies: dict[str, Policy] = {}
        self._rates: deque[float] = deque(maxlen=HISTORY)
        self._activity, self._spending = Activity(), Spending()
        self._reasons: Counter[str] = Counter()
        self._rejects: deque[dict[str, Any]] = deque(maxlen=_SHOWN_REJECTS)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the threads."""
        followers = {
            Channel.HALTS: self._follow_halts,
            Channel.REJECTS: self._follow_rejects,
            Channel.ODOMETER: self._follow_odometer,
        }
        work: list[Callable[[], None]] = [self._look_at_kafka, self._look_at_redis]
        if self._addresses:
            work.append(self._look_at_workers)
        for channel, follow in followers.items():
            if channel.value not in self._sides:
                continue
            work.append(partial(self._follow, channel, follow))
        for one in work:
            thread = threading.Thread(target=one, name="turnstile-watch", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stop the threads."""
        self._closed.set()
        for thread in self._threads:
            thread.join(2 * _ANSWERS_WITHIN)

    def is_complete(self) -> bool:
        """Return whether every source has answered, or why it does not is known."""
        waiting = [s for s in self._sides.values() if not s.seen and s.problem == NOT_YET]
        has_rates = len(self._offsets) > 1 or self._is_away("Redis") or self._is_away("Kafka")
        return not waiting and has_rates and (bool(self._seen.workers) or not self._addresses)

    def service(self) -> dict[str, Any]:
        """Return the state of the service, without numbers of users or sizes of what they changed.

        On a loopback address the dashboard shows this without a login.
        """
        now = time.monotonic()
        with self._lock:
            overview, rates = self._overview(), self._rates_of_partitions()
            rejects = dict(self._reasons.most_common())
        partitions = [
            {
                **{name: getattr(one, name) for name in _SHOWN},
                "rate": rates.get(one.partition, 0.0),
            }
            for one in overview.partitions
        ]
        workers = [asdict(worker) for worker in self._seen.workers]
        return {
            "time": time.time(),
            "alarms": alarms_of(self._sides, partitions, self._seen.workers, now),
            "sides": {
                name: {"age": now - side.seen if side.seen else None, "away": side.is_away(now)}
                for name in ESSENTIAL
                for side in (self._sides[name],)
            },
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
            "workers": workers,
            "rejects": rejects,
        }

    def people(self) -> dict[str, Any]:
        """Return data about users: their numbers, runs, spending and rejected records."""
        with self._lock:
            overview = self._overview()
            users = {name: found.users for name, found in overview.datasets.items()}
            return {
                "users": {
                    "partitions": {one.partition: one.users for one in overview.partitions},
                    "datasets": users,
                },
                "runs": self._activity.runs(time.time()),
                "spending": self._spending.distribution(users),
                "refused": sorted(self._rejects, key=lambda one: one["time"] or "", reverse=True),
            }

    def _overview(self) -> Overview:
        """Combine the last facts.

        The lag comes from facts of Redis that are newer than the log's end, so that decided records
        do not seem to wait. Whether the log ends too early comes from older facts of Redis.
        """
        seen = self._seen
        if seen.kafka is None or seen.glances is None or seen.ends is None:
            return Overview([], {})
        topics, log = seen.kafka
        if not len(log) == len(seen.glances) == len(seen.ends):
            return Overview([], {})
        before = seen.before
        if before is None or self._is_away("Kafka") or len(before) != len(log):
            before = [Glance(0, {}, None, b"", b"", {})] * len(log)
        extents = [
            (start, end if _next(then) > end else max(known, _next(now)))
            for (start, end), then, known, now in zip(
                log, before, seen.ends, seen.glances, strict=True
            )
        ]
        return overview_of(topics, extents, seen.glances)

    def _is_away(self, name: str) -> bool:
        return self._sides[name].is_away(time.monotonic())

    def _rates_of_partitions(self) -> dict[int, float]:
        """Return the records decided per second, by partition."""
        if len(self._offsets) < 2:
            return {}
        (began, first), (ended, last) = self._offsets[0], self._offsets[-1]
        if len(first) != len(last) or ended <= began:
            return {}
        pairs = enumerate(zip(first, last, strict=True))
        return {
            number: max(0, after - before) / (ended - began) for number, (before, after) in pairs
        }

    def _look_at_kafka(self) -> None:
        with Topics(self._config) as topics:

            def look() -> None:
                before = self._seen.glances
                found = look_at(topics, self._config)
                with self._lock:
                    self._seen.kafka, self._seen.before = found, before

            self._repeat("Kafka", look, 1.0)

    def _look_at_redis(self) -> None:
        def look() -> None:
            kafka = self._seen.kafka
            count = len(kafka[1]) if kafka else len(self._seen.glances or ()) or 1
            glances = read_glances(self._config, count)
            now = time.monotonic()
            with self._lock:
                if kafka is None:
                    return
                self._seen.glances = glances
                self._seen.ends = [end for _, end in kafka[1]]
                datasets = self._overview().datasets
                self._policies = {name: found.policy for name, found in datasets.items()}
                offsets = [_next(glance) for glance in glances]
                self._offsets.append((now, offsets))
                while self._offsets[0][0] < now - RATE_OVER:
                    self._offsets.popleft()
                self._rates.append(sum(self._rates_of_partitions().values()))

        while self._sides["Kafka"].problem == NOT_YET and not self._closed.is_set():
            self._closed.wait(0.02)  # Kafka has the number of partitions
        self._repeat("Redis", look, 1.0)

    def _look_at_workers(self) -> None:
        while not self._closed.is_set():
            self._seen.workers = ask_workers(self._addresses)
            self._closed.wait(2.0)

    def _repeat(self, name: str, look: Callable[[], None], every: float) -> None:
        side = self._sides[name]
        while not self._closed.is_set():
            try:
                look()
                side.problem, side.seen = None, time.monotonic()
            except Unavailable as error:
                side.problem = str(error)
            except Exception as error:  # the other sources continue
                logger.error("%s: %s", name, failure_of(error))
                side.problem = f"it failed: {type(error).__name__}"
            self._closed.wait(every)

    def _follow(self, channel: Channel, follow: Callable[[Iterator[Followed]], None]) -> None:
        """Read a topic until the watch is closed; record errors, and try again."""
        side = self._sides[channel.value]
        while not self._closed.is_set():
            kafka = self._seen.kafka
            if kafka is None or self._seen.glances is None:  # the policies come first
                if kafka is None and self._sides["Kafka"].problem != NOT_YET:
                    side.problem = "not read, since Kafka does not answer"
                self._closed.wait(0.05)
                continue
            try:
                records = tail(self._config, channel, kafka[0].topic, _BACK[channel], self._closed)
                follow(self._noted(side, records))
            except ServiceUnavailable as error:
                side.problem = str(error)
            except Exception as error:  # the other sources continue
                logger.error("reading %s: %s", channel.value, failure_of(error))
                side.problem = f"it failed: {type(error).__name__}"
            self._closed.wait(_AGAIN_AFTER)

    def _noted(self, side: Side, records: Iterator[Followed | None]) -> Iterator[Followed]:
        for record in records:
            if record is None:  # all present records were read
                side.problem, side.seen = None, time.monotonic()
            else:
                yield record

    def _follow_halts(self, records: Iterator[Followed]) -> None:
        for record in records:
            with suppress(*UNREADABLE, ValueError), self._lock:
                self._activity.see(decode_answer(record.value), record.written)

    def _follow_rejects(self, records: Iterator[Followed]) -> None:
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

    def _follow_odometer(self, records: Iterator[Followed]) -> None:
        decoder = msgspec.msgpack.Decoder(OdometerRecord)
        for record in records:
            with suppress(*UNREADABLE):
                odometer = decoder.decode(record.value)
                order = None if isinstance(odometer.order, UnsetType) else odometer.order
                with self._lock:
                    policy = self._policies.get(odometer.dataset)
                    if policy is None:
                        continue  # the dataset was withdrawn, or is too new
                    share = spent_share(policy, odometer.bound, order)
                    if share is not None:
                        self._spending.see(odometer, share)


def _next(glance: Glance) -> int:
    return int(glance.meta.get("next", "0"))
