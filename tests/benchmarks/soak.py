"""Memory of a worker and of Redis under a load that does not end."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import redis

from streams.config import Config
from streams.kafka.topics import HALTS, NORMS, ensure_topics
from streams.local import LocalStack
from streams.local.workers import Worker
from streams.sdk.client import Turnstile
from tests.benchmarks.servers import alter_topic, resident_bytes

POPULATION = 65_536
USERS_PER_STEP = 16_384
PARTITIONS = 4
_EVERY = 5.0  # seconds
# The broker's disk must not fill up: a log as long as this is far ahead of what Redis needs.
_TRIMMED = {"retention.bytes": str(256 * 1024 * 1024), "segment.bytes": str(64 * 1024 * 1024)}


@dataclass
class Soak:
    """Samples in bytes, one every five seconds, and the load."""

    seconds: float
    steps: int = 0
    worker: list[float] = field(default_factory=list)
    store: list[float] = field(default_factory=list)

    @property
    def users_per_second(self) -> float:
        """The load."""
        return self.steps * USERS_PER_STEP / self.seconds


def first_and_last(samples: list[float]) -> tuple[float, float]:
    """Medians of the first fifth and of the last fifth."""
    fifth = max(1, len(samples) // 5)
    return statistics.median(samples[:fifth]), statistics.median(samples[-fifth:])


def measure(stack: LocalStack, seconds: float, say: Callable[[str], None]) -> Soak:
    """Charge random quarters of a population, step after step, and watch."""
    config = Config(kafka=stack.kafka, redis=stack.redis, prefix="soak.", partitions=PARTITIONS)
    ensure_topics(config)
    alter_topic(config, NORMS, _TRIMMED)
    alter_topic(config, HALTS, _TRIMMED)
    soak = Soak(seconds)
    client = redis.Redis.from_url(stack.redis)
    with (
        LocalStack(
            workers=1,
            partitions=PARTITIONS,
            prefix=config.prefix,
            kafka=stack.kafka,
            redis=stack.redis,
        ) as own,
        Turnstile(config=config) as turnstile,
    ):
        stop = threading.Event()
        sampler = threading.Thread(
            target=_sample, args=(soak, own.workers[0], client, stop, say), daemon=True
        )
        _load(turnstile, soak, sampler, time.monotonic() + seconds)
        stop.set()
        sampler.join()
        own.check()
        if own.workers[0].restarts:
            raise RuntimeError("the worker exited during the soak")
    return soak


def _load(turnstile: Turnstile, soak: Soak, sampler: threading.Thread, deadline: float) -> None:
    random = np.random.default_rng(0)
    turnstile.create_dataset("population", epsilon=1.0, delta=1e-6)
    run = turnstile.run("population", "training")
    everyone = np.arange(POPULATION)
    run.charge(everyone, np.ones(POPULATION), noise_stddev=3000.0)
    sampler.start()
    while time.monotonic() < deadline:
        users = random.choice(POPULATION, USERS_PER_STEP, replace=False)
        run.charge(users, random.uniform(0, 1, USERS_PER_STEP), noise_stddev=3000.0)
        soak.steps += 1


def _sample(
    soak: Soak,
    worker: Worker,
    client: redis.Redis,
    stop: threading.Event,
    say: Callable[[str], None],
) -> None:
    while not stop.wait(_EVERY):
        if worker.pid is None:
            continue
        soak.worker.append(resident_bytes(worker.pid))
        information = client.info("memory")
        soak.store.append(int(information["used_memory"]))
        megabytes = soak.worker[-1] / 1e6, soak.store[-1] / 1e6
        say(f"soak: worker {megabytes[0]:.0f} MB, Redis {megabytes[1]:.0f} MB, {soak.steps} steps")
