"""Measures norm events: records of one user or of many, the charge, and a takeover.

All users live in one partition. The events are in the log before a worker is started, and the time
in which a worker starts on an empty log is subtracted. So the time is the worker's alone.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import numpy as np
import redis
from kafka import KafkaProducer
from numpy.typing import NDArray

from bench.report import section
from bench.servers import (
    create_topics,
    end_offset,
    next_offset,
    resident_bytes,
    wait_until,
    worker_of,
)
from streams.config import Config
from streams.kafka.topics import NORMS
from streams.local import LocalStack
from streams.records import CollectTerms
from streams.sdk.client import Turnstile

_WITHIN = 600.0
_DATASET, _RUN = "population", "collects"


@dataclass(frozen=True)
class Collected:
    """The costs of the events of one step.

    Attributes:
        events: of the step, one for each user.
        single: whether each is a record of its own, in JSON.
        seconds: in which a worker applies them.
        stored: bytes in Redis for each event, before the charge.
        memory: bytes of the worker for each event.
        takeover: seconds from the start of the next worker until it answers.
        charge: seconds from the charge to its decision.
    """

    events: int
    single: bool
    seconds: float
    stored: float
    memory: float
    takeover: float
    charge: float


def measure(stack: LocalStack, events: int, *, single: bool) -> Collected:
    """Measure one step."""
    config = Config(
        kafka=stack.kafka,
        redis=stack.redis,
        partitions=1,
        prefix=f"collected{events}{'single' if single else ''}.",
        timeout=_WITHIN,
    )
    create_topics(config)
    client = redis.Redis.from_url(stack.redis, decode_responses=True)
    users = np.arange(events)
    with Turnstile(config=config) as turnstile:
        began = time.perf_counter()
        with worker_of(config) as running:
            turnstile.create_dataset(_DATASET, measure="zcdp", budget=1.0, user_ids="integer")
            run = turnstile.run(_DATASET, _RUN, collect=CollectTerms(clip_norm=1.0))
            start = time.perf_counter() - began
            opened, empty = next_offset(client, config), _resident(running)
        if single:
            _send(config, users)
        else:
            turnstile.send_norms(_DATASET, _RUN, 0, users, np.full(events, 0.5))
        end = opened + (events if single else end_offset(config, NORMS) - opened)
        before = int(client.info("memory")["used_memory"])
        began = time.perf_counter()
        with worker_of(config) as running:
            wait_until(lambda: next_offset(client, config) == end, _WITHIN, running.check)
            seconds = time.perf_counter() - began - start
            resident = _resident(running)
        stored = int(client.info("memory")["used_memory"]) - before
        began = time.perf_counter()
        with worker_of(config):
            run.check_attempt()
            takeover = time.perf_counter() - began
            began = time.perf_counter()
            decision = run.charge_collected(noise_stddev=10.0)
            charge = time.perf_counter() - began
    assert len(decision.norms) == events
    return Collected(
        events=events,
        single=single,
        seconds=seconds,
        stored=stored / events,
        memory=(resident - empty) / events,
        takeover=takeover,
        charge=charge,
    )


def lines(results: list[Collected]) -> list[str]:
    """Return the table of the report."""
    names = [
        *("events of the step", "events per record", "events per second"),
        *("Redis", "worker", "takeover", "charge"),
    ]
    return section(
        "Norm events",
        "One partition, integer ids. Memory and Redis are per event, before the charge. A takeover "
        "includes the start of the process.",
        names,
        [
            [
                f"{r.events:,}",
                "one" if r.single else "many",
                f"{r.events / r.seconds:,.0f}",
                f"{r.stored:,.0f} B",
                f"{r.memory:,.0f} B",
                f"{r.takeover:.1f} s",
                f"{r.charge:.2f} s",
            ]
            for r in results
        ],
    )


def _resident(running: LocalStack) -> int:
    return resident_bytes(running.workers[0].pid)


def _send(config: Config, users: NDArray[np.int64]) -> None:
    """Publish one JSON record for each user, as a plain producer does."""
    producer = KafkaProducer(bootstrap_servers=config.kafka, linger_ms=20, batch_size=2**18)
    about = {"type": "norm", "dataset": _DATASET, "run": _RUN, "step": 0}
    for user in users.tolist():
        value = json.dumps({**about, "user": user, "norm": 0.5}).encode()
        producer.send(config.topic(NORMS), key=user.to_bytes(8, "big"), value=value)
    producer.flush()
    producer.close()
