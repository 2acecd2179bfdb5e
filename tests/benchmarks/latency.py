"""How long one small step takes: the SDK and a worker against a no-op baseline, in turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from streams.config import Config
from streams.kafka.topics import HALTS, NORMS, ensure_topics
from streams.local import LocalStack
from streams.records import MAX_REQUEST_BYTES
from streams.sdk.client import Turnstile
from tests.benchmarks.servers import start_module

USERS_PER_STEP = 20
_POPULATION = 1000
_BLOCK = 50
"""Steps in a row, before it is the other's turn."""
_WARM_UP = 200
_ECHO_BYTES = 300  # about as long as a charge of a few users and its decision


@dataclass
class Latency:
    """Milliseconds of each step."""

    partitions: int
    turnstile: list[float] = field(default_factory=list)
    echo: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Of the 99th percentiles."""
        return percentile(self.turnstile, 99) / percentile(self.echo, 99)


def percentile(milliseconds: list[float], percent: float) -> float:
    """The smallest time that so many percent of the steps do not exceed, interpolated."""
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
        """There and back."""
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
    """At least so many steps of each, in alternating blocks."""
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
            ),
            Turnstile(config=config) as turnstile,
        ):
            return _in_turns(turnstile, echo, partitions, steps)
    finally:
        echo.close()
        relay.stop()


def _in_turns(turnstile: Turnstile, echo: Echo, partitions: int, steps: int) -> Latency:
    random = np.random.default_rng(partitions)
    turnstile.create_dataset("population", epsilon=1.0, delta=1e-6)
    run = turnstile.run("population", "training")

    def charge() -> None:
        users = random.choice(_POPULATION, USERS_PER_STEP, replace=False)
        norms = random.uniform(0, 1, USERS_PER_STEP)
        run.charge(users, norms, noise_stddev=30.0, clip_norm=1.0)

    for _ in range(_WARM_UP):
        charge()
        echo.step()
    latency = Latency(partitions)
    while len(latency.echo) < steps:
        latency.turnstile += [milliseconds(charge) for _ in range(_BLOCK)]
        latency.echo += [milliseconds(echo.step) for _ in range(_BLOCK)]
    return latency


def milliseconds(work: Callable[[], None]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000
