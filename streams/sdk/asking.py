"""What the parts of the SDK need of a connection: to publish requests and to hear the answers."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from streams.schemas import Answer
from streams.sdk.errors import InvalidRequest, RequestRejected
from streams.sdk.witness import Witness


def step_key(dataset: str, run: str, attempt: int, step: int) -> Hashable:
    """By what the answers to one step are recognised."""
    return dataset, run, attempt, step


@dataclass(frozen=True)
class Deadline:
    """Until when to wait, over all the questions that a call asks.

    Attributes:
        seconds: how long that was when the call began.
        at: when it is over, by the monotonic clock.
    """

    seconds: float
    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """A deadline so many seconds from now.

        Raises:
            InvalidRequest: nothing that can be waited for.
        """
        if not 0 <= seconds <= threading.TIMEOUT_MAX:
            raise InvalidRequest(f"timeout is {seconds}; it must be finite seconds, at least 0")
        return cls(seconds, monotonic() + seconds)

    def left(self) -> float:
        """Seconds until then."""
        return max(0.0, self.at - monotonic())


class Asks(Protocol):
    """Publishes requests and waits for what the partitions answer."""

    @property
    def partitions(self) -> int:
        """P, how many there are."""

    def deadline(self, timeout: float | None) -> Deadline:
        """From now; None means the usual time."""

    def ask(
        self, key: Hashable, requests: Mapping[int, bytes], deadline: Deadline
    ) -> dict[int, Answer]:
        """Send each partition its request; the answers by partition.

        Raises:
            RequestRejected: of the partition that refused first; others may have agreed.
            DecisionTimeout: not all answered in time.
        """

    def survey(
        self, key: Hashable, requests: Mapping[int, bytes], deadline: Deadline
    ) -> dict[int, Answer | RequestRejected]:
        """The same, but waits for every partition, whether it agrees or refuses.

        Raises:
            DecisionTimeout: not all answered in time.
        """

    def watch(self, dataset: str, run: str) -> Witness:
        """Who sees every decision of this run from now on."""
