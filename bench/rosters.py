"""Steps of a roster through the whole pipe, against a no-op baseline, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.latency import Echo, echoing, milliseconds, percentile
from bench.report import section
from bench.servers import worker_of
from streams.config import Config
from streams.kafka.topics import ensure_topics
from streams.local import LocalStack
from streams.sdk.client import Turnstile
from streams.sdk.roster import Roster

PARTITIONS = 4
NOISE, RATE = 1.1, 1e-3
_BLOCK = 50
_WARM_UP = 100
_DENSE = 10
_OBSERVED = 500


@dataclass
class RosterCosts:
    """What steps of a roster of so many users took.

    Attributes:
        users: of the roster.
        quiet: milliseconds of each step with nothing new.
        observed: of each step that brings the levels of a sample, sampling included.
        dense: of each step that brings all levels.
        echo: of each no-op baseline, in turns with the quiet steps.
    """

    users: int
    quiet: list[float] = field(default_factory=list)
    observed: list[float] = field(default_factory=list)
    dense: list[float] = field(default_factory=list)
    echo: list[float] = field(default_factory=list)


def measure(stack: LocalStack, users: int, steps: int) -> RosterCosts:
    """So many quiet steps, in alternating blocks with echoes; fewer of the other kinds."""
    config = Config(
        kafka=stack.kafka,
        redis=stack.redis,
        prefix=f"rosters{users}.",
        partitions=PARTITIONS,
        timeout=600.0,
    )
    ensure_topics(config)
    with (
        echoing(stack, f"aside{users}", PARTITIONS) as echo,
        worker_of(config),
        Turnstile(config=config) as turnstile,
    ):
        return _measure(turnstile, echo, RosterCosts(users), steps)


def _measure(turnstile: Turnstile, echo: Echo, costs: RosterCosts, steps: int) -> RosterCosts:
    turnstile.create_dataset("population", measure="renyi", epsilon=8.0, delta=1e-6)
    run = turnstile.run("population", "training")
    roster = run.enrol(np.arange(costs.users), clip_norm=1.0)
    random = np.random.default_rng(costs.users)
    roster.charge(noise_stddev=NOISE, sampling_rate=RATE, norms=random.random(costs.users))
    for _ in range(_WARM_UP):
        _charge(roster)
        echo.step()
    while len(costs.quiet) < steps:
        costs.quiet += [milliseconds(lambda: _charge(roster)) for _ in range(_BLOCK)]
        costs.echo += [milliseconds(echo.step) for _ in range(_BLOCK)]
    costs.observed = [
        milliseconds(_observed(roster, random)) for _ in range(min(steps // 4, _OBSERVED))
    ]
    costs.dense = [milliseconds(_dense(roster, random)) for _ in range(_DENSE)]
    return costs


def _charge(roster: Roster) -> None:
    roster.charge(noise_stddev=NOISE, sampling_rate=RATE)


def _observed(roster: Roster, random: np.random.Generator) -> Callable[[], None]:
    def step() -> None:
        drawn = roster.charge(noise_stddev=NOISE, sampling_rate=RATE).sample()
        roster.observe(drawn, random.random(len(drawn)))

    return step


def _dense(roster: Roster, random: np.random.Generator) -> Callable[[], None]:
    norms = random.random(len(roster))
    return lambda: roster.charge(noise_stddev=NOISE, sampling_rate=RATE, norms=norms) and None


def lines(results: list[RosterCosts]) -> list[str]:
    """Return a table for the report."""
    rows = []
    for r in results:
        quiet, echo = (
            " / ".join(f"{percentile(times, p):.1f}" for p in (50, 99))
            for times in (r.quiet, r.echo)
        )
        dense = percentile(r.dense, 50)
        rows.append(
            [
                f"{r.users:,}",
                f"{quiet} ms",
                f"{echo} ms",
                f"{percentile(r.observed, 50):.1f} ms",
                f"{dense:.0f} ms ({r.users / dense / 1e3:.1f} M users/s)",
            ]
        )
    names = [
        f"users over {PARTITIONS} partitions",
        "no level changes, p50 / p99",
        "no-op baseline, p50 / p99",
        "levels of a sample change, p50",
        "all levels change, p50",
    ]
    return section("Steps of a roster", "Each step is charged over the service.", names, rows)
