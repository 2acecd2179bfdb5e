"""Examines all parts of a service, without changing anything."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage
from typing import Any

from streams.config import Config, environment_names
from streams.kafka.facts import KafkaFacts, read_facts, read_inputs
from streams.kafka.seen import TopicsUnavailable
from streams.operations.diagnosis import diagnose
from streams.operations.endpoints import ask_answerers, ask_workers
from streams.operations.errors import Unavailable
from streams.operations.findings import Facts, Finding
from streams.operations.status import Overview, read_overview, read_redis_facts


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
    directories = [] if isinstance(kafka, str) else kafka.directories
    disks = {}
    for directory in filter(os.path.isdir, directories):
        usage = disk_usage(Path(directory))
        disks[directory] = (usage.total, usage.free)
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
        disks,
        release,
        unknown,
        answering,
        inputs,
    )
    return diagnose(facts, config)
