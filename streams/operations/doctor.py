"""Diagnoses a service: asks all its parts for facts, and derives findings. It changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from streams.config import Config, environment_names
from streams.kafka.facts import KafkaFacts, read_facts, read_inputs
from streams.kafka.results import TopicsUnavailable
from streams.kafka.topics import NORMS
from streams.operations.answerers import of_answerers
from streams.operations.endpoints import ask_answerers, ask_workers
from streams.operations.findings import Facts, Finding, Level
from streams.operations.servers import of_kafka, of_redis, of_topics
from streams.operations.status import (
    Overview,
    PartitionState,
    Unavailable,
    read_overview,
    read_redis_facts,
)

CLOCKS_APART = 5.0
"""The seconds by which clocks may differ; above, times in rejects and alarms are misleading."""


def diagnose(facts: Facts, config: Config) -> list[Finding]:
    """Return all findings."""
    return [
        *of_kafka(facts, config),
        *of_topics(facts, config),
        *of_redis(facts, config),
        *_partitions(facts),
        *_workers(facts),
        *of_answerers(facts, config),
        *_clocks(facts),
        *_settings(facts, config),
    ]


def _partitions(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.overview, str):
        yield Finding(
            "partitions",
            Level.WRONG,
            "the state of the partitions is unknown",
            facts.overview,
            "Fix the problems above first",
        )
        return
    well = []
    for one in facts.overview.partitions:
        if one.state is PartitionState.DECIDING:
            well.append(one)
            continue
        is_restoring = one.state is PartitionState.RESTORING
        yield Finding(
            "partitions",
            Level.WARNING if is_restoring else Level.WRONG,
            f"partition {one.partition} is {one.state}: {one.problem}",
            f"Nothing is decided for its users; {one.lag} records wait",
            one.remedy or "",
            {"partition": one.partition, "state": one.state, "reason": one.reason},
        )
    if well:
        waiting = sum(one.lag for one in well)
        yield Finding(
            "partitions",
            Level.OK,
            f"{len(well)} of {len(facts.overview.partitions)} are decided; {waiting} records wait",
        )
    old = [one.partition for one in well if one.snapshot is None and one.next > 0]
    if old:
        yield Finding(
            "partitions",
            Level.WARNING,
            f"partitions {old} have no snapshot",
            "If Redis is lost, the whole log is replayed. The log cannot be trimmed",
            "Wait TURNSTILE_SNAPSHOT_SECONDS after the workers' start; then read their logs",
        )
    if facts.overview.erased_without_key:
        yield Finding(
            "partitions",
            Level.WARNING,
            f"users were erased without a key in partitions {facts.overview.erased_without_key}",
            "A reader of the state or the log can test guesses of their ids",
            "Give all workers a key (TURNSTILE_ERASURE_KEYS_FILE, docs/operate/erasure.md); it "
            "protects users who are erased later",
        )


def _workers(facts: Facts) -> Iterator[Finding]:
    if not isinstance(facts.overview, str):
        owners = {
            one.owner
            for one in facts.overview.partitions
            if one.owner and one.state is PartitionState.DECIDING
        }
        if owners:
            yield Finding("workers", Level.OK, f"{len(owners)} are alive and own partitions")
    for worker in facts.workers:
        if worker.problem:
            yield Finding(
                "workers",
                Level.WRONG,
                f"{worker.address}: {worker.problem}",
                "Its partitions are decided late or not at all",
                "Read its log; start it again if it is gone",
                {"worker": worker.address},
            )
        else:
            yield Finding(
                "workers",
                Level.OK,
                f"{worker.address} decides partitions {worker.partitions}, release "
                f"{worker.release}",
            )
    releases = {worker.release for worker in facts.workers if worker.release} | {facts.release}
    if len(releases) > 1 and facts.workers:
        yield Finding(
            "workers",
            Level.WARNING,
            f"the releases differ: {', '.join(sorted(releases))} (here {facts.release})",
            "An older worker suspends partitions that a newer one has written",
            "Upgrade all workers to the newest release, one after the other",
        )


def _clocks(facts: Facts) -> Iterator[Finding]:
    apart = {}
    if not isinstance(facts.redis, str):
        for server in facts.redis:
            name = "Redis" if len(facts.redis) == 1 else f"Redis at {server['address']}"
            apart[name] = float(server["now"]) - facts.clock
    for worker in facts.workers:
        if worker.ahead is not None:
            apart[worker.address] = worker.ahead
    wrong = {who: by for who, by in apart.items() if abs(by) > CLOCKS_APART}
    for who, by in wrong.items():
        yield Finding(
            "clocks",
            Level.WARNING,
            f"{who}: the clock is {abs(by):.0f} s {'ahead of' if by > 0 else 'behind'} this one",
            "Times in rejects, metrics and alarms are wrong; decisions do not depend on clocks",
            "Synchronize the clocks with NTP",
        )
    if apart and not wrong:
        yield Finding("clocks", Level.OK, f"{', '.join(apart)}: the same time as here")


def _settings(facts: Facts, config: Config) -> Iterator[Finding]:
    found = []
    kafka = facts.kafka
    if not isinstance(kafka, str) and NORMS in kafka.topics:
        there = kafka.topics[NORMS].partitions
        if there != config.partitions:
            found.append(
                Finding(
                    "settings",
                    Level.OK,
                    f"partitions is {config.partitions}, and the topics have {there}: the setting "
                    "is only for topics that do not exist yet",
                )
            )
    if facts.unknown:
        found.append(
            Finding(
                "settings",
                Level.WARNING,
                f"unknown variables: {', '.join(facts.unknown)}",
                "They have no effect, although a setting may be meant",
                "Check the spelling: docs/reference/settings.md lists all settings",
            )
        )
    if config.signing_key and not (config.trusted_keys or config.answer_keys):
        found.append(
            Finding(
                "settings",
                Level.WARNING,
                "signing_key is set, and trusted_keys is not",
                "Programs with these settings do not check signatures",
                "Set TURNSTILE_TRUSTED_KEYS_FILE to the file of public keys",
            )
        )
    if config.snapshot_seconds == 0:
        found.append(
            Finding(
                "settings",
                Level.WARNING,
                "snapshot_seconds is 0: no snapshots are written",
                "If Redis is lost, the whole log is replayed. The log can never be trimmed",
                "Set TURNSTILE_SNAPSHOT_SECONDS to 600",
            )
        )
    yield from found or [Finding("settings", Level.OK, "no conflicts")]


def examine(
    config: Config, workers: Sequence[str], release: str, answerers: Sequence[str] = ()
) -> list[Finding]:
    """Ask all parts of a service for facts, and return the findings.

    Args:
        config: the settings with their addresses.
        workers: host:port of the known workers' HTTP servers.
        release: the version of this package.
        answerers: host:port of the known answerers' HTTP servers.
    """
    kafka: KafkaFacts | str
    redis: Sequence[Mapping[str, Any]] | str
    overview: Overview | str
    try:
        kafka = read_facts(config)
    except TopicsUnavailable as error:
        kafka = str(error)
    try:
        redis = read_redis_facts(config)
    except Unavailable as error:
        redis = str(error)
    clock = time.time()
    try:
        unanswered = isinstance(kafka, str) or isinstance(redis, str)
        overview = "Kafka and Redis both have to answer" if unanswered else read_overview(config)
    except Unavailable as error:
        overview = str(error)
    unknown = sorted(
        name
        for name in os.environ
        if name.startswith("TURNSTILE_") and name not in environment_names()
    )
    answering = ask_answerers(answerers)
    inputs: Mapping[str, Mapping[str, str] | None] = {}
    if not isinstance(kafka, str):
        with suppress(TopicsUnavailable):  # Kafka has become unavailable
            inputs = read_inputs(config, sorted({one.topic for one in answering if one.topic}))
    facts = Facts(
        clock,
        kafka,
        redis,
        overview,
        ask_workers(workers),
        release,
        unknown,
        answering,
        inputs,
    )
    return diagnose(facts, config)
