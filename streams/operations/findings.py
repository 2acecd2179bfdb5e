"""The facts that a diagnosis is made from, and the findings that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from streams.kafka.facts import KafkaFacts
from streams.operations.endpoints import AnswererSeen, WorkerSeen
from streams.operations.status import Overview


class Level(StrEnum):
    """The importance of a finding."""

    OK = "ok"
    WARNING = "warning"  # the service works, but data could be lost or become wrong
    WRONG = "wrong"  # something is not decided, or data are being lost


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    Attributes:
        area: the part of the service.
        level: how much it matters.
        what: what was found, for people.
        means: what follows from it, for people.
        do: what the operator can do, for people.
        about: the subject for programs, for example a partition with its state and reason, a topic,
            or the address of a worker.
    """

    area: str
    level: Level
    what: str
    means: str = ""
    do: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """The facts from the parts of a service; a text says why a part does not answer.

    Attributes:
        clock: this machine's time when Redis and Kafka were asked, in seconds since 1970.
        release: the version of this package.
        unknown: environment variables that look like settings but are none.
        answerers: the answers of the answerers.
        inputs: topic that they read -> its settings; None if the topic does not exist.
    """

    clock: float
    kafka: KafkaFacts | str
    redis: Sequence[Mapping[str, Any]] | str  # facts of each of its servers
    overview: Overview | str
    workers: Sequence[WorkerSeen] = ()
    release: str = "unknown"
    unknown: Sequence[str] = ()
    answerers: Sequence[AnswererSeen] = ()
    inputs: Mapping[str, Mapping[str, str] | None] = field(default_factory=dict)


def size_of(size: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
