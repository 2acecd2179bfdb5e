"""The result of a verification: what was compared in each partition, and what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from streams.replay.receipts import Head, policies_digest

KEPT_FINDINGS = 100
"""Findings that are kept for one check in one partition; further ones are only counted."""


class Check(StrEnum):
    """A part of the service that is compared with the replayed log."""

    LOG = "log"  # whether the log itself can be replayed
    STATE = "state"  # the state in Redis or in a budget file
    SNAPSHOT = "snapshot"  # the last snapshot in Kafka
    HALTS = "halts"  # decisions, HALT events and the other records of this topic
    REJECTS = "rejects"
    ODOMETER = "odometer"
    SIGNATURES = "signatures"  # of the records of the three topics above
    COST_TABLES = "cost-tables"  # the costs of roster steps, computed again
    ANSWERS = "answers"  # an answerer's journal and answers in a budget file
    RECEIPT = "receipt"  # an earlier log


@dataclass(frozen=True)
class LogFinding:
    """One difference.

    Attributes:
        offset: the record's offset; None if the finding is not about one record.
        about: the subject: dataset, run, step, user and the like.
        problem: what differs, for people.
    """

    check: Check
    partition: int
    problem: str
    offset: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    expected: Any = None
    found: Any = None


@dataclass
class PartitionVerified:
    """The result for one partition: all findings are counted, the first of each check are kept."""

    partition: int
    findings: list[LogFinding] = field(default_factory=list)  # the kept ones, in their order
    counts: Counter[Check] = field(default_factory=Counter)  # of the findings of each check
    start: int = 0  # the offset at which the log begins
    began: int = 0  # the offset of the replay: 0, or the end of a snapshot, which is not verified
    next: int = 0  # the offset up to which the log was replayed
    head: bytes = b""  # of the hash chain there
    records: int = 0  # of the log
    users: int = 0
    answers: int = 0  # outputs that were found, in halts and in rejects
    rejects: int = 0
    odometers: int = 0  # users with an odometer record
    cost_tables: int = 0  # roster steps whose cost table was computed again
    in_outbox: int = 0  # outputs that are in the outbox and not published yet
    expired: int = 0  # outputs that their topics may have deleted because of their age
    signed: int = 0  # records with a signature of a trusted key, if keys are given
    without_signature: int = 0  # records without a signature, if keys are given
    state_at: int | None = None  # where the state in Redis was compared
    snapshot_at: int | None = None  # where the last snapshot was compared, or the replay began
    seconds: float = 0.0
    impossible: list[str] = field(default_factory=list)  # what was not compared, and why
    policies: dict[str, bytes] = field(default_factory=dict)  # packed, by dataset

    def add(self, check: Check, problem: str, **fields: Any) -> None:
        """Add a finding with the given fields of ``LogFinding``."""
        self.counts[check] += 1
        if not self.is_full(check):
            self.findings.append(LogFinding(check, self.partition, problem, **fields))

    def is_full(self, check: Check) -> bool:
        """Return whether further findings of a check are only counted."""
        return self.counts[check] > KEPT_FINDINGS


@dataclass(frozen=True)
class Verified:
    """The results for all partitions of the log with the id ``topic``."""

    topic: bytes
    partitions: Sequence[PartitionVerified]

    @property
    def findings(self) -> list[LogFinding]:
        """Return the kept findings, by partition."""
        return [finding for part in self.partitions for finding in part.findings]

    @property
    def wrong(self) -> int:
        """Return the number of findings, kept or only counted."""
        return sum(part.counts.total() for part in self.partitions)

    @property
    def fits(self) -> bool:
        """Return whether everything was compared, and nothing differs."""
        return not self.wrong and not any(part.impossible for part in self.partitions)

    @property
    def heads(self) -> list[Head]:
        """Return the head of each partition's hash chain, at the end of the replay."""
        return [Head(part.partition, part.next, part.head.hex()) for part in self.partitions]

    def policies_digest(self) -> str:
        """Return the digest of the policies in all partitions."""
        return policies_digest([part.policies for part in self.partitions])
