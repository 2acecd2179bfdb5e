"""What keeps the state of partitions: atomic verbs, no policy.

Implementations: ``redis_store``, the real one, and ``memory_store``. Both pass the suite in
``tests/conformance``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from streams.store.holding import Holding, Verdict
from streams.store.snapshot import Snapshot


class StoreUnavailable(Exception):
    """The store did not answer, or answered with an error. Nothing can be decided."""


@dataclass(frozen=True)
class Claimed:
    """The answer to a claim, with what meta was before (empty: there was none)."""

    verdict: Verdict
    before: dict[str, str]

    @property
    def version(self) -> int:
        """As it was before the claim."""
        return int(self.before.get("version", "0"))


@dataclass(frozen=True)
class Glance:
    """What can be said of a partition without reading its state."""

    now: int  # seconds, by the clock of the store
    meta: dict[str, str]
    seen: int | None  # when its owner was last seen, by the same clock
    pulse: bytes
    summary: bytes
    stopped: dict[str, str]


class Store(Protocol):
    """One store; every failure is a ``StoreUnavailable``."""

    async def claim(self, partition: int, owner: str, topic: bytes, partitions: int) -> Claimed:
        """Own a partition of this log and fence every other owner."""

    async def owner(self, partition: int) -> str:
        """Who owns a partition; empty if nobody ever did."""

    async def load(self, partition: int) -> Snapshot | None:
        """All that is kept of a partition, as of one moment; None if nothing ever was.

        Raises:
            Damaged: it is not whole.
        """

    async def glance(self, partition: int) -> Glance:
        """What can be said of a partition in no time, however large its state is."""

    async def keep_stop(self, partition: int, reason: str, problem: str, remedy: str) -> None:
        """Say why nothing is decided in a partition, until an owner decides there again."""

    def holding(self, partition: int, owner: str, snapshot: Snapshot) -> Holding:
        """What the owner of a partition writes through."""
