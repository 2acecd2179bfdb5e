"""What a diagnosis is made of, and what it is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from streams.kafka.facts import KafkaFacts
from streams.operations.endpoints import AnswererSeen, WorkerSeen
from streams.operations.status import Overview


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"  # it works, and something could be lost or become wrong
    WRONG = "wrong"  # something is not decided, or is being lost


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    Attributes:
        area: the part of the service.
        level: how much it matters.
        what: what was found, for people.
        means: what follows from it, for people.
        do: what the operator can do, for people.
        about: the subject for programs: a partition, its state and reason, or a worker's address.
    """

    area: str
    level: Level
    what: str
    means: str = ""
    do: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What the parts of a service said; of one that does not answer, why.

    Attributes:
        clock: of this machine, seconds since 1970, when Redis and Kafka were asked.
        disks: directory of a broker -> bytes of its disk, and how many are free, where it is here.
        release: of this package here.
        unknown: variables of the environment that look like settings and are none.
        answerers: those that were asked.
        inputs: the settings of the topics that they read; None of one that is not there.
    """

    clock: float
    kafka: KafkaFacts | str
    redis: Sequence[Mapping[str, Any]] | str  # of each of its servers
    overview: Overview | str
    workers: Sequence[WorkerSeen] = ()
    disks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    release: str = "unknown"
    unknown: Sequence[str] = ()
    answerers: Sequence[AnswererSeen] = ()
    inputs: Mapping[str, Mapping[str, str] | None] = field(default_factory=dict)


def size_of(size: float) -> str:
    """Bytes, as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
