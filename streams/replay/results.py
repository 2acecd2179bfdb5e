"""What a verification has compared, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from streams.replay.findings import Findings, LogFinding
from streams.replay.receipts import Head, policies_digest


@dataclass(frozen=True)
class PartitionProgress:
    """How far a partition is."""

    partition: int
    partitions: int
    next: int
    end: int
    records: int
    seconds: float


@dataclass
class PartitionVerified:
    """What was compared in one partition, and what did not fit.

    Attributes:
        next: where the log was applied to.
        began: where it was applied from: 0, or what a snapshot covers, which is taken as it is.
        state_at: the offset at which the state of Redis was compared; None if it was not.
        snapshot_at: the offset of the last snapshot, which was compared there, or from which
            the log was applied; None if there is none, or it was not compared.
        odometers: users with an odometer record.
        priced: steps of rosters whose cost table was computed again.
        awaited: outputs that are not published yet, and are in the outbox.
        expired: answers and rejects that their topics may have deleted with time.
        signed: records of all three topics with the signature of a trusted key, if keys are given.
        bare: those without any, then.
        impossible: what could not be compared, and why.
    """

    partition: int
    findings: Findings
    start: int = 0
    began: int = 0
    next: int = 0
    head: bytes = b""
    records: int = 0
    users: int = 0
    halts: int = 0
    rejects: int = 0
    odometers: int = 0
    priced: int = 0
    awaited: int = 0
    expired: int = 0
    signed: int = 0
    bare: int = 0
    state_at: int | None = None
    snapshot_at: int | None = None
    seconds: float = 0.0
    impossible: list[str] = field(default_factory=list)
    policies: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Verified:
    """All partitions."""

    topic: bytes
    partitions: Sequence[PartitionVerified]

    @property
    def findings(self) -> list[LogFinding]:
        """Those that are told of, by partition."""
        return [finding for part in self.partitions for finding in part.findings.kept]

    @property
    def wrong(self) -> int:
        """How many things do not fit, told of or not."""
        return sum(part.findings.counts.total() for part in self.partitions)

    @property
    def fits(self) -> bool:
        """Whether all of it was compared, and nothing is wrong."""
        return not self.wrong and not any(part.impossible for part in self.partitions)

    @property
    def heads(self) -> list[Head]:
        """Of the log, up to where it was applied."""
        return [Head(part.partition, part.next, part.head.hex()) for part in self.partitions]

    def policies_digest(self) -> str:
        """Of all policies, in all partitions."""
        return policies_digest([part.policies for part in self.partitions])
