"""Measures one small step: the SDK and a worker against a no-op baseline, in turns.

The breakdown says where a step spends its time. The records in Kafka have timestamps: those of
``norms`` are set when the client sends them, those of ``halts`` when the worker or the relay does.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.servers import start_module
from streams.config import Config
from streams.kafka.topics import HALTS, NORMS, ensure_topics
from streams.local import LocalStack
from streams.records import MAX_REQUEST_BYTES
from streams.sdk.client import Turnstile

USERS_PER_STEP = 20
_POPULATION = 1000
_BLOCK = 50
"""Steps in a row before the turn of the other kind."""
_WARM_UP = 200
_ECHO_BYTES = 300  # about as long as a charge of a few users and its decision


@dataclass
class Path:
    """The steps of the service or of the baseline.

    Attributes:
        milliseconds: of each step.
        there: mean milliseconds from the client's last record to the last decision that is sent.
        cpu: CPU milliseconds per step, by process.
    """

    milliseconds: list[float] = field(default_factory=list)
    there: float = 0.0
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def rest(self) -> float:
        """Return the mean milliseconds in the client and on the way back to it."""
        return statistics.mean(self.milliseconds) - self.there


@dataclass
class Latency:
    """Measures both paths over a number of partitions."""

    partitions: int
    turnstile: Path = field(default_factory=Path)
    echo: Path = field(default_factory=Path)


def percentile(milliseconds: list[float], percent: float) -> float:
    """Return a percentile of the times, interpolated."""
    return float(np.percentile(milliseconds, percent))


class Echo:
    """Sends a record to every partition and waits until the relay has sent all of them back.

    The clients have the settings of the SDK's.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._number = 0
        self._missing: set[int] = set()
        self._complete = threading.Event()
        self._stop = threading.Event()
        self._consumer = KafkaConsumer(
            bootstrap_servers=config.kafka,
            group_id=None,
            enable_auto_commit=False,
            fetch_max_wait_ms=500,
            max_partition_fetch_bytes=16 * 1024 * 1024,
        )
        topic = config.topic(HALTS)
        places = [TopicPartition(topic, number) for number in range(config.partitions)]
        self._consumer.assign(places)
        self._consumer.seek_to_end(*places)
        for place in places:
            self._consumer.position(place)
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()
        self._producer = KafkaProducer(
            bootstrap_servers=config.kafka,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_request_size=MAX_REQUEST_BYTES + 1024 * 1024,
        )

    def step(self) -> None:
        """Send the records and wait for the echoes."""
        self._number += 1
        value = self._number.to_bytes(8, "big").ljust(_ECHO_BYTES, b"\0")
        self._missing = set(range(self._config.partitions))
        self._complete.clear()
        for partition in range(self._config.partitions):
            self._producer.send(self._config.topic(NORMS), value=value, partition=partition)
        if not self._complete.wait(30):
            raise TimeoutError("the relay does not answer")

    def close(self) -> None:
        """End the thread and disconnect."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()
        self._producer.close()

    def _receive(self) -> None:
        while not self._stop.is_set():
            for place, records in self._consumer.poll(timeout_ms=500).items():
                for record in records:
                    if int.from_bytes(record.value[:8], "big") == self._number:
                        self._missing.discard(place.partition)
                        if not self._missing:
                            self._complete.set()


def measure(stack: LocalStack, partitions: int, steps: int) -> Latency:
    """Measure at least this many steps of each, in alternating blocks."""
    config = Config(
        kafka=stack.kafka,
        redis=stack.redis,
        prefix=f"latency{partitions}.",
        partitions=partitions,
    )
    echo_config = Config(kafka=stack.kafka, prefix=f"echo{partitions}.", partitions=partitions)
    ensure_topics(config)
    ensure_topics(echo_config)
    relay = start_module(
        stack,
        "relay",
        [
            *("--kafka", stack.kafka, "--partitions", partitions),
            *("--source", echo_config.topic(NORMS), "--target", echo_config.topic(HALTS)),
        ],
    )
    echo = Echo(echo_config)
    try:
        with (
            LocalStack(
                workers=1,
                partitions=partitions,
                prefix=config.prefix,
                kafka=stack.kafka,
                redis=stack.redis,
            ) as service,
            Turnstile(config=config) as turnstile,
        ):
            servers = {"broker": stack.broker.pid, "Redis": stack.redis_server.pid}
            latency = _in_turns(
                turnstile,
                echo,
                Latency(partitions),
                steps,
                servers | {"worker": service.workers[0].pid or 0},
                servers | {"relay": relay.pid},
            )
            latency.turnstile.there = _there(config, steps)
            latency.echo.there = _there(echo_config, steps)
            return latency
    finally:
        echo.close()
        relay.stop()


def _in_turns(
    turnstile: Turnstile,
    echo: Echo,
    latency: Latency,
    steps: int,
    service: Mapping[str, int],
    baseline: Mapping[str, int],
) -> Latency:
    random = np.random.default_rng(latency.partitions)
    turnstile.create_dataset("population", epsilon=1.0, delta=1e-6)
    run = turnstile.run("population", "training")

    def charge() -> None:
        users = random.choice(_POPULATION, USERS_PER_STEP, replace=False)
        norms = random.uniform(0, 1, USERS_PER_STEP)
        run.charge(users, norms, noise_stddev=30.0, clip_norm=1.0)

    for _ in range(_WARM_UP):
        charge()
        echo.step()
    while len(latency.echo.milliseconds) < steps:
        _measure_block(latency.turnstile, charge, service, steps)
        _measure_block(latency.echo, echo.step, baseline, steps)
    return latency


def _measure_block(
    path: Path, step: Callable[[], None], processes: Mapping[str, int], steps: int
) -> None:
    before = {name: _cpu_seconds(pid) for name, pid in processes.items()}
    client = time.process_time()
    path.milliseconds += [milliseconds(step) for _ in range(_BLOCK)]
    path.cpu["client"] += (time.process_time() - client) * 1000 / steps
    for name, pid in processes.items():
        path.cpu[name] += (_cpu_seconds(pid) - before[name]) * 1000 / steps


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _there(config: Config, steps: int) -> float:
    """Return the mean time from the last record of a step to its last decision, over all steps."""
    sent, decided = (_last_times(config, topic, steps) for topic in (NORMS, HALTS))
    return statistics.mean(b - a for a, b in zip(sent, decided, strict=True))


def _last_times(config: Config, topic: str, steps: int) -> list[int]:
    """Return when the last record of each of the last steps was sent, in milliseconds."""
    places = [TopicPartition(config.topic(topic), number) for number in range(config.partitions)]
    consumer = KafkaConsumer(bootstrap_servers=config.kafka)
    times: dict[TopicPartition, list[int]] = {place: [] for place in places}
    try:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        for place in places:
            consumer.seek(place, max(0, ends[place] - steps))
        while any(consumer.position(place) < ends[place] for place in places):
            for place, records in consumer.poll(timeout_ms=500).items():
                times[place] += [record.timestamp for record in records]
    finally:
        consumer.close()
    return [max(step) for step in zip(*times.values(), strict=True)]


def milliseconds(work: Callable[[], None]) -> float:
    """Return the table of the breakdown."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000
