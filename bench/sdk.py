"""The time of a step in the SDK alone, with integer and string ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bench.servers import spread
from streams.sdk.client import Turnstile
from streams.sdk.connection import PendingRequest
from streams.sdk.memory_connection import MemoryConnection

PARTITIONS = 4
NOISE, SAMPLE = 10.0, 1_000


@dataclass
class ClientCosts:
    """CPU seconds by call, without the time in the ledgers."""

    users: int
    ids: str
    seconds: dict[str, list[float]] = field(default_factory=dict)


class _Aside(MemoryConnection):
    """Ledgers in this process, whose time is measured separately."""

    taken = 0.0

    def _publish(self, requests: Mapping[int, bytes], waiting: PendingRequest) -> None:
        began = time.process_time()
        super()._publish(requests, waiting)
        self.taken += time.process_time() - began


def measure(users: int, rounds: int) -> list[ClientCosts]:
    """Return a list of strings, an array of strings, and an array of integers."""
    names = [f"user-{number:09d}" for number in range(users)]
    kinds = {"strings": names, "numpy strings": np.array(names), "integers": np.arange(users)}
    return [_measure(ClientCosts(users, name), ids, rounds) for name, ids in kinds.items()]


def _measure(costs: ClientCosts, ids: Any, rounds: int) -> ClientCosts:
    connection = _Aside(PARTITIONS, timeout=600.0)

    def timed(name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        before = time.process_time() - connection.taken
        result = call(*arguments)
        spent = time.process_time() - connection.taken - before
        costs.seconds.setdefault(name, []).append(spent)
        return result

    turnstile = Turnstile(connection=connection)
    turnstile.create_dataset(
        "population", measure="zcdp", budget=1000.0, assume_independent_timing=True
    )
    random = np.random.default_rng(costs.users)
    norms = random.random(costs.users)
    explicit, run = turnstile.run("population", "explicit"), turnstile.run("population", "roster")
    for round_ in range(rounds + 1):
        name = "Run.charge" if round_ else "Run.charge, first"
        timed(name, lambda: explicit.charge(ids, norms, noise_stddev=NOISE, clip_norm=1.0))
    roster = timed("Run.enrol", lambda: run.enrol(ids, clip_norm=1.0))
    roster.charge(noise_stddev=NOISE)
    for _ in range(rounds):
        roster = timed("Run.enrol, again", lambda: run.enrol(ids, clip_norm=1.0))
        timed("Roster.charge", partial(roster.charge, noise_stddev=NOISE))
        drawn, observed = random.choice(costs.users, SAMPLE, replace=False), random.random(SAMPLE)
        timed("Roster.observe", roster.observe, drawn, observed)
        norms = random.random(costs.users)
        timed("Roster.set_norms", roster.set_norms, norms)
        timed("Roster.charge, all levels", partial(roster.charge, noise_stddev=NOISE))
    turnstile.close()
    return costs


def lines(results: list[ClientCosts]) -> list[str]:
    """Format milliseconds, one row per call."""
    table = [
        "## The SDK alone",
        "",
        f"Milliseconds of the processor for {results[0].users:,} users over {PARTITIONS} "
        "partitions, without ledgers and broker; median (smallest to largest). "
        f"{SAMPLE:,} users are observed.",
        "",
        f"| | {' | '.join(costs.ids for costs in results)} |",
        f"|---|{'---:|' * len(results)}",
    ]
    for name in results[0].seconds:
        cells = [spread([seconds * 1e3 for seconds in costs.seconds[name]]) for costs in results]
        table.append(f"| {name} | {' | '.join(cells)} |")
    return [*table, ""]
