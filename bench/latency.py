"""Measures one small step: the SDK and a worker against a no-op baseline, in turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.report import section
from bench.servers import start_module, worker_of
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
class Latency:
    """Milliseconds of each charge and of each step of the baseline."""

    partitions: int
    charges: list[float] = field(default_factory=list)
    echoes: list[float] = field(default_factory=list)


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


@contextmanager
def echoing(stack: LocalStack, name: str, partitions: int) -> Iterator[Echo]:
    """Start a relay between topics of its own."""
    config = Config(kafka=stack.kafka, prefix=f"{name}.", partitions=partitions)
    ensure_topics(config)
    relay = start_module(
        stack,
        "relay",
        [
            *("--kafka", stack.kafka, "--partitions", partitions),
            *("--source", config.topic(NORMS), "--target", config.topic(HALTS)),
        ],
    )
    echo = Echo(config)
    try:
        yield echo
    finally:
        echo.close()
        relay.stop()


def measure(stack: LocalStack, partitions: int, steps: int) -> Latency:
    """Measure at least this many steps of each, in alternating blocks."""
    config = Config(
        kafka=stack.kafka,
        redis=stack.redis,
        prefix=f"latency{partitions}.",
        partitions=partitions,
    )
    ensure_topics(config)
    with (
        echoing(stack, f"echo{partitions}", partitions) as echo,
        worker_of(config),
        Turnstile(config=config) as turnstile,
    ):
        return _in_turns(turnstile, echo, Latency(partitions), steps)


def _in_turns(turnstile: Turnstile, echo: Echo, latency: Latency, steps: int) -> Latency:
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
    while len(latency.echoes) < steps:
        latency.charges += [milliseconds(charge) for _ in range(_BLOCK)]
        latency.echoes += [milliseconds(echo.step) for _ in range(_BLOCK)]
    return latency


def milliseconds(work: Callable[[], None]) -> float:
    """Return the time of some work by the clock."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def lines(results: Sequence[Latency]) -> list[str]:
    """Return milliseconds by percentile."""
    return section(
        "Latency of one step",
        f"Milliseconds, {USERS_PER_STEP} users per step, {len(results[0].charges):,} steps each, "
        "in alternating blocks. The no-op baseline takes the same two hops through the same "
        "broker: kafka-python producer, plain aiokafka relay, kafka-python consumer.",
        ["partitions", "", "p50", "p90", "p99"],
        [
            [result.partitions, name, *(f"{percentile(took, p):.2f}" for p in (50, 90, 99))]
            for result in results
            for name, took in (("charge", result.charges), ("no-op baseline", result.echoes))
        ],
    )
