"""The facts that a diagnosis is made from, the tables of checks, and the findings they return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

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
        release: the version of this package.
        unknown: environment variables that look like settings but are none.
        inputs: topic that they read -> its settings; None if the topic does not exist.
    """

    kafka: KafkaFacts | str
    redis: Sequence[Mapping[str, Any]] | str  # facts of each of its servers
    overview: Overview | str
    workers: Sequence[WorkerSeen] = ()
    release: str = "unknown"
    unknown: Sequence[str] = ()
    answerers: Sequence[AnswererSeen] = ()
    inputs: Mapping[str, Mapping[str, str] | None] = field(default_factory=dict)


Row: TypeAlias = tuple[object, *tuple[str, ...]]
"""A check: its verdict, a level or anything else if nothing is found; what is found, what follows
from it, and what the operator can do. An ``OK`` row is shown if no other row of its table is."""


class Table(NamedTuple):
    """The checks of one subject."""

    area: str
    rows: Sequence[Row]
    about: Mapping[str, Any] = {}


_CAUSES = ("Kafka", "topics", "Redis")
"""The areas without which nothing in the others works."""


def findings_of(tables: Iterable[Table]) -> list[Finding]:
    """Return what the checks find, in the order of the tables."""
    findings: list[Finding] = []
    for area, rows, about in tables:
        before = len(findings)
        wrong = (one.area for one in findings if one.level is Level.WRONG)
        causes = [cause for cause in dict.fromkeys(wrong) if cause in _CAUSES and cause != area]
        for verdict, *texts in sorted(rows, key=lambda row: row[0] is Level.OK):
            if isinstance(verdict, Level) and (verdict is not Level.OK or len(findings) == before):
                what, means, do = [*texts, "", ""][:3]
                if causes and do and area not in _CAUSES:
                    do = f"First solve what is wrong with {' and '.join(causes)}. Then: {do}"
                findings.append(Finding(area, verdict, what, means, do, about))
    return findings
