"""Diagnoses a service: asks all its parts for facts, and derives findings. It changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from streams.config import Config, Unavailable, environment_names
from streams.kafka.facts import read_facts, read_inputs
from streams.operations.answerer_checks import of_answerers
from streams.operations.check_tables import Facts, Finding, Level, Row, Table, findings_of
from streams.operations.endpoints import WorkerSeen, ask_answerers, ask_workers
from streams.operations.server_checks import of_kafka, of_redis
from streams.operations.status import (
    Overview,
    PartitionState,
    PartitionStatus,
    read_overview,
    read_redis_facts,
)

T = TypeVar("T")

_DECIDING = PartitionState.DECIDING


def diagnose(facts: Facts, config: Config) -> list[Finding]:
    """Return all findings, causes before what may follow from them."""
    return findings_of(
        [
            *of_kafka(facts, config),
            *of_redis(facts, config),
            *_workers(facts),
            *_partitions(facts),
            *of_answerers(facts, config),
            Table("settings", list(_settings(facts, config))),
        ]
    )


def of_worker(one: WorkerSeen) -> Table:
    """Return the check of one worker's answer."""
    problem = (
        one.problem and Level.WRONG,
        f"{one.address}: {one.problem}",
        "Its partitions are decided late or not at all",
        "Read its log; start it again if it is gone",
    )
    healthy = f"{one.address} decides partitions {one.partitions}, release {one.release}"
    return Table("workers", [problem, (Level.OK, healthy)], {"worker": one.address})


def of_partition(one: PartitionStatus) -> Table:
    """Return the check of one partition."""
    is_restoring = one.state is PartitionState.RESTORING
    row = (
        one.state is not _DECIDING and (Level.WARNING if is_restoring else Level.WRONG),
        f"partition {one.partition} is {one.state}: {one.problem}",
        f"Nothing is decided for its users; {one.lag} records wait",
        one.remedy or "",
    )
    about = {"partition": one.partition, "state": one.state, "reason": one.reason}
    return Table("partitions", [row], about)


def _workers(facts: Facts) -> Iterator[Table]:
    if not isinstance(facts.overview, str):
        deciding = (one for one in facts.overview.partitions if one.state is _DECIDING)
        owners = len({one.owner for one in deciding if one.owner})
        alive = f"{owners} are alive and own partitions"
        yield Table("workers", [(owners and Level.OK, alive)])
    yield from map(of_worker, facts.workers)
    releases = {one.release for one in facts.workers if one.release} | {facts.release}
    names = ", ".join(sorted(releases))
    yield Table(
        "workers",
        [
            (
                facts.workers and len(releases) > 1 and Level.WARNING,
                f"the releases differ: {names} (here {facts.release})",
                "An older worker suspends partitions that a newer one has written",
                "Upgrade all workers to the newest release, one after the other",
            )
        ],
    )


def _partitions(facts: Facts) -> Iterator[Table]:
    if isinstance(facts.overview, str):
        unknown = "the state of the partitions is unknown"
        again = "Run `turnstile doctor` again"
        yield Table("partitions", [(Level.WRONG, unknown, facts.overview, again)])
        return
    partitions, without_key = facts.overview.partitions, facts.overview.erased_without_key
    well = [one for one in partitions if one.state is _DECIDING]
    yield from map(of_partition, partitions)
    waiting = sum(one.lag for one in well)
    decided = f"{len(well)} of {len(partitions)} are decided; {waiting} records wait"
    yield Table("partitions", [(well and Level.OK, decided)])
    old = [one.partition for one in well if one.snapshot is None and one.next > 0]
    yield Table(
        "partitions",
        [
            (
                old and Level.WARNING,
                f"partitions {old} have no snapshot",
                "If Redis is lost, the whole log is replayed. The log cannot be trimmed",
                "Wait TURNSTILE_SNAPSHOT_SECONDS after the workers' start; then read their logs",
            ),
            (
                without_key and Level.WARNING,
                f"users were erased without a key in partitions {without_key}",
                "A reader of the state or the log can test guesses of their ids",
                "Give all workers a key (TURNSTILE_ERASURE_KEYS_FILE, docs/operate/erasure.md); it "
                "protects users who are erased later",
            ),
        ],
    )


def _settings(facts: Facts, config: Config) -> Iterator[Row]:
    yield (
        facts.unknown and Level.WARNING,
        f"unknown variables: {', '.join(facts.unknown)}",
        "They have no effect, although a setting may be meant",
        "Check the spelling: docs/reference/settings.md lists all settings",
    )
    yield (
        config.signing_key and not (config.trusted_keys or config.answer_keys) and Level.WARNING,
        "signing_key is set, and trusted_keys is not",
        "Programs with these settings do not check signatures",
        "Set TURNSTILE_TRUSTED_KEYS_FILE to the file of public keys",
    )
    yield (
        config.snapshot_seconds == 0 and Level.WARNING,
        "snapshot_seconds is 0: no snapshots are written",
        "If Redis is lost, the whole log is replayed. The log can never be trimmed",
        "Set TURNSTILE_SNAPSHOT_SECONDS to 600",
    )
    yield Level.OK, "no conflicts"


def _answer(question: Callable[[], T]) -> T | str:
    """Return an answer, or why there is none."""
    try:
        return question()
    except Unavailable as error:
        return str(error)


def examine(
    config: Config, workers: Sequence[str], release: str, answerers: Sequence[str] = ()
) -> list[Finding]:
    """Ask all parts of a service for facts, and return the findings.

    Workers and answerers are host:port of their HTTP servers.
    """
    kafka = _answer(lambda: read_facts(config))
    redis = _answer(lambda: read_redis_facts(config))
    overview: Overview | str = "Kafka and Redis both have to answer"
    if not isinstance(kafka, str) and not isinstance(redis, str):
        overview = _answer(lambda: read_overview(config))
    unknown = sorted(
        name
        for name in os.environ
        if name.startswith("TURNSTILE_") and name not in environment_names()
    )
    answering, seen = ask_answerers(answerers), ask_workers(workers)
    read = sorted({one.topic for one in answering if one.topic})
    inputs = {} if isinstance(kafka, str) else _answer(lambda: read_inputs(config, read))
    if isinstance(inputs, str):  # Kafka has become unavailable
        inputs = {}
    facts = Facts(kafka, redis, overview, seen, release, unknown, answering, inputs)
    return diagnose(facts, config)
