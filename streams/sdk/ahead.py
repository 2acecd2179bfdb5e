"""A step that is sent to the partitions now, and whose decision is taken later.

    run, roster --charge_ahead--> Ahead --decision--> decided, the next step is next
    Ahead --DecisionTimeout--> Ahead                  decision() asks for the same again

The next step can be charged like this before the one before it is released, so that whoever trains
computes while the service decides. Nothing of a step may be released before its decision is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from streams.schemas import Answer
from streams.sdk.connection import Waiting

T = TypeVar("T")
D_co = TypeVar("D_co", covariant=True)
Part_co = TypeVar("Part_co", covariant=True)


class Part(Protocol[Part_co]):
    """What one partition is asked to charge in a step; made by ``steps`` and by ``rosters``."""

    @property
    def record(self) -> bytes:
        """The request."""

    @property
    def digest(self) -> bytes:
        """Of its content."""

    def decided(self, answer: Answer) -> Part_co:
        """What was decided, if this answers it."""


class Asked(Generic[T, D_co]):
    """A step as all partitions are asked for it.

    Args:
        parts: by partition.
        put_together: what their decisions come to.

    Attributes:
        sent: what was sent and not heard of yet; None: nothing is under way.
    """

    def __init__(
        self, parts: Mapping[int, Part[T]], put_together: Callable[[dict[int, T]], D_co]
    ) -> None:
        self.parts, self.put_together = parts, put_together
        self.sent: Waiting | None = None


class Ahead(Generic[D_co]):
    """A step that was charged ahead. Until its decision is taken, its run does nothing else."""

    def __init__(self, take: Callable[[float | None], D_co]) -> None:
        self._take = take
        self._taken: D_co | None = None

    def decision(self, timeout: float | None = None) -> D_co:
        """Wait until every partition has decided the step; asked again, the same.

        Raises:
            DecisionTimeout: call again.
            TurnstileError: whatever ``charge`` raises when it waits.
        """
        if self._taken is None:
            self._taken = self._take(timeout)
        return self._taken
