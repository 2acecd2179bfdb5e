"""A step that is sent to the partitions now and whose decision is read later.

    run, roster --charge_ahead--> Ahead --decision--> decided; the following step is next
    Ahead --DecisionTimeout--> Ahead                  call decision() again

A trainer charges the next step ahead so that the service decides it while the trainer computes the
current one. Nothing of a step may be released before its decision is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from streams.records import (
    Answer,
)
from streams.sdk.connection import PendingRequest

T = TypeVar("T")
D_co = TypeVar("D_co", covariant=True)
Part_co = TypeVar("Part_co", covariant=True)


class StepPart(Protocol[Part_co]):
    """A partition's share of a step. ``steps`` and ``roster_steps`` implement it."""

    @property
    def record(self) -> bytes:
        """Return the encoded request."""

    @property
    def digest(self) -> bytes:
        """Return the digest of the request's content."""

    def decided(self, answer: Answer) -> Part_co:
        """Return the decision if the answer is about this part, else raise
        ``ConflictingDecisions``.
        """


class AskedStep(Generic[T, D_co]):
    """A step in the form that all partitions are asked to charge.

    Args:
        parts: the parts by partition.
        put_together: makes the step's result of the decisions of all partitions.

    Attributes:
        sent: the requests whose answers were not received yet; None if nothing is under way.
    """

    def __init__(
        self, parts: Mapping[int, StepPart[T]], put_together: Callable[[dict[int, T]], D_co]
    ) -> None:
        self.parts, self.put_together = parts, put_together
        self.sent: PendingRequest | None = None


class Ahead(Generic[D_co]):
    """A step that was charged ahead. Its run accepts no other call until ``decision`` has
    succeeded.
    """

    def __init__(self, take: Callable[[float | None], D_co]) -> None:
        self._take = take
        self._taken: D_co | None = None

    def decision(self, timeout: float | None = None) -> D_co:
        """Wait until every partition has decided the step. Later calls return the same decision.

        Raises:
            DecisionTimeout: call again.
            TurnstileError: any error of ``charge`` that is raised while waiting.
        """
        if self._taken is None:
            self._taken = self._take(timeout)
        return self._taken
