"""What does not fit, said so that somebody can look: where, of whom, expected and found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

KEPT_FINDINGS = 100
"""Of one check in one partition; more are only counted, so that memory stays bounded."""


class Check(StrEnum):
    """What is compared with what the log gives."""

    LOG = "log"  # the log itself: whether it can be applied from where it has to
    STATE = "state"  # what Redis keeps
    SNAPSHOT = "snapshot"  # the last snapshot of that state in Kafka
    HALTS = "halts"  # answers: decisions, HALT events and the rest
    REJECTS = "rejects"
    ODOMETER = "odometer"
    SIGNATURES = "signatures"  # of answers, rejects and odometer records
    COST_TABLES = "cost-tables"  # what steps of rosters charge, computed again
    RECEIPT = "receipt"  # an earlier log


@dataclass(frozen=True)
class LogFinding:
    """One thing that does not fit.

    Attributes:
        offset: of the log; None if it is not about one record.
        about: the dataset, run, step, user or whatever else it is about.
        problem: in words.
    """

    check: Check
    partition: int
    problem: str
    offset: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    expected: Any = None
    found: Any = None


class Findings:
    """Those of one partition: all of them counted, the first of each check kept.

    Attributes:
        partition: which one.
        kept: in the order in which they were found.
        counts: of each check.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.kept: list[LogFinding] = []
        self.counts: Counter[Check] = Counter()

    def add(
        self,
        check: Check,
        problem: str,
        *,
        offset: int | None = None,
        about: Mapping[str, Any] | None = None,
        expected: Any = None,
        found: Any = None,
    ) -> None:
        """Say that something does not fit."""
        self.counts[check] += 1
        if not self.is_full(check):
            self.kept.append(
                LogFinding(check, self.partition, problem, offset, about or {}, expected, found)
            )

    def count(self, check: Check, more: int) -> None:
        """Count findings of which nothing more is said."""
        self.counts[check] += more

    def is_full(self, check: Check) -> bool:
        """Whether nothing more is kept of a check."""
        return self.counts[check] > KEPT_FINDINGS
