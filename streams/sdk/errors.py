"""What can go wrong for a trainer or a query answerer, by who can do something about it."""

from __future__ import annotations

from streams.schemas import Reason, Rejected


class TurnstileError(Exception):
    """Base of all errors of the SDK. After any of them nothing may be released."""


class InvalidCharge(TurnstileError, ValueError):
    """The caller's arguments cannot be charged. Nothing was published."""


class Refusal(TurnstileError):
    """A worker refused the request; it changed no budget in the partition that refused.

    Attributes:
        reason: why, for programs.
        partition: which partition refused.
        detail: why, for people.
        current_attempt: the attempt of the run in that partition, if it has one.
    """

    def __init__(
        self, reason: Reason, detail: str, partition: int, current_attempt: int | None = None
    ) -> None:
        super().__init__(f"partition {partition} refused: {reason}: {detail}")
        self.current_attempt = current_attempt
        self.reason = reason
        self.detail = detail
        self.partition = partition


class PolicyChanged(Refusal):
    """The dataset exists under another policy. Policies never change: use another name."""


class Fenced(Refusal):
    """A newer attempt of this run is at work. This one must stop."""


class DecisionTimeout(TurnstileError, TimeoutError):
    """Not all partitions answered in time. Charging the same step again is safe: it is the same
    charge, and it is decided once."""


class ServiceUnavailable(TurnstileError):
    """Kafka cannot be reached, or the topics are not there."""


class ConflictingDecisions(TurnstileError):
    """Two different decisions for one step: something is badly wrong, and nothing may go on."""


def refusal_of(rejected: Rejected) -> Refusal:
    """The exception of a rejected request."""
    kinds = {Reason.POLICY_CHANGED: PolicyChanged, Reason.OLDER_ATTEMPT: Fenced}
    kind = kinds.get(rejected.reason, Refusal)
    return kind(rejected.reason, rejected.detail, rejected.partition, rejected.current_attempt)
