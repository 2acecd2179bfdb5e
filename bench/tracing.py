"""What traces add to a charge: without them, without them once more, and with them, in turns.

The first two kinds are the same, so that their difference shows the noise of the machine: a client
without traces has no observer. With traces the SDK of OpenTelemetry runs on both sides and drops
the spans, so the cost of an exporter is not included.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from bench.latency import USERS_PER_STEP, milliseconds, percentile
from bench.servers import spread
from streams.config import Config
from streams.kafka.topics import ensure_topics
from streams.local import LocalStack
from streams.sdk.client import Turnstile
from streams.sdk.run import Run

PARTITIONS = 4
KINDS = {"off": "", "off, again": "", "on": "otel"}
"""What is compared, and its setting ``traces``."""
_POPULATION = 1000
_BLOCK = 25
"""Steps in a row, before it is the next one's turn."""
_WARM_UP = 4


@dataclass
class Tracing:
    """Milliseconds of each charge, and microseconds of a processor for one in memory, by block."""

    kind: str
    charges: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)


def measure(stack: LocalStack, steps: int) -> list[Tracing]:
    """At least so many charges of each kind, in alternating blocks; and as many in memory."""
    _trace()
    results = [Tracing(kind) for kind in KINDS]
    _over_the_service(stack, steps, results)
    _in_memory(steps, results)
    return results


def _over_the_service(stack: LocalStack, steps: int, results: list[Tracing]) -> None:
    with ExitStack() as opened:
        for traces in set(KINDS.values()):
            config = _config(stack, traces)
            ensure_topics(config)
            traced = [sys.executable, "-m", "bench.tracing"]
            options = {"worker_command": traced} if traces else {}
            opened.enter_context(
                LocalStack(
                    workers=1,
                    partitions=PARTITIONS,
                    prefix=config.prefix,
                    kafka=stack.kafka,
                    redis=stack.redis,
                    worker_environment={"TURNSTILE_TRACES": traces},
                    **options,
                )
            )
        runs = []
        for number, traces in enumerate(KINDS.values()):
            client = opened.enter_context(Turnstile(config=_config(stack, traces)))
            client.create_dataset(f"population-{number}", epsilon=1.0, delta=1e-6)
            runs.append(client.run(f"population-{number}", "training"))
        for result, taken, _ in _in_turns(runs, results, steps):
            result.charges += taken


def _in_memory(steps: int, results: list[Tracing]) -> None:
    from streams.sdk.observing import ClientTraces

    runs = []
    for traces in KINDS.values():
        client = Turnstile.in_memory(partitions=PARTITIONS)
        if traces:
            client.observe(ClientTraces())
        client.create_dataset("population", epsilon=1.0, delta=1e-6)
        runs.append(client.run("population", "training"))
    for result, _, processor in _in_turns(runs, results, steps):
        result.alone.append(processor)


def _config(stack: LocalStack, traces: str) -> Config:
    prefix = f"traces-{traces or 'off'}."
    return Config(
        kafka=stack.kafka, redis=stack.redis, prefix=prefix, partitions=PARTITIONS, traces=traces
    )


def _in_turns(
    runs: list[Run], results: list[Tracing], steps: int
) -> Iterator[tuple[Tracing, list[float], float]]:
    """Block after block: whose it was, milliseconds of its charges, microseconds of a processor
    for one of them."""
    random = np.random.default_rng(steps)
    for block in range(_WARM_UP + -(-steps // _BLOCK)):
        for run, result in zip(runs, results, strict=True):
            began, taken = time.process_time(), []
            for _ in range(_BLOCK):
                users = random.choice(_POPULATION, USERS_PER_STEP, replace=False)
                norms = random.uniform(0, 1, USERS_PER_STEP)
                taken.append(milliseconds(lambda r=run, u=users, n=norms: _charge(r, u, n)))
            if block >= _WARM_UP:
                yield result, taken, (time.process_time() - began) * 1e6 / _BLOCK


def _charge(run: Run, users: object, norms: object) -> None:
    run.charge(users, norms, noise_stddev=30.0, clip_norm=1.0)


def _trace() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())


def lines(results: list[Tracing]) -> list[str]:
    """A table for the report."""
    if not results:
        return []
    rows = [
        f"| {r.kind} | {' / '.join(f'{percentile(r.charges, p):.1f}' for p in (50, 90, 99))} "
        f"| {spread(r.alone, 0)} |"
        for r in results
    ]
    return [
        "## Traces",
        "",
        f"A charge of {USERS_PER_STEP} users over {PARTITIONS} partitions, "
        f"{len(results[0].charges):,} of each kind in turns; and the processor for as many in "
        f"memory, by blocks of {_BLOCK}, median (smallest to largest).",
        "",
        "| traces | p50 / p90 / p99 in ms | in memory, us of a processor |",
        "|---|---:|---:|",
        *rows,
        "",
    ]


if __name__ == "__main__":  # a worker with the SDK of OpenTelemetry
    from streams.cli.main import main

    _trace()
    sys.exit(main(["worker"]))
