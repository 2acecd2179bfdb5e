"""What keeps the state of partitions: atomic verbs, no policy.

``redis_store`` implements it on Redis; ``tests/doubles/memory_store.py`` does so in memory, for the
tests and the simulation. Both pass ``tests/conformance/store``. ``layout`` defines the keys and
their contents; ``holding`` decides what to write.

Every write of state compares the owner and the version, and moves the version by one. So a store
that went back to an earlier state, in whatever way, is found out by the next write, also when
nothing but pages and trims is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from streams.store.image import Moment
from streams.store.snapshot import Snapshot
from streams.wire.chain import Chain


class StoreUnavailable(Exception):
    """The store did not answer, or answered with an error. Nothing can be decided."""


class Verdict(StrEnum):
    """What became of a claim or a write. Nothing was written unless it is ``OK``.

    Each check is made only when those before it passed. A claim looks for damage twice: first for
    state without a head, and last for lost entries.
    """

    FOREIGN = "FOREIGN"  # a claim: a key holds a kind of value that no worker writes
    OTHER_LAYOUT = "OTHER_LAYOUT"  # a claim: another release wrote what is there
    OTHER_LOG = "OTHER_LOG"  # a claim: it belongs to another topic of that name
    OTHER_PARTITIONS = "OTHER_PARTITIONS"  # a claim: the topic had another number of them
    FENCED = "FENCED"  # somebody else owns the partition
    REWOUND = "REWOUND"  # the store is not where the owner left it
    DAMAGED = "DAMAGED"  # something that was written is gone
    DUPLICATE = "DUPLICATE"  # a commit: it was written before
    GAP = "GAP"  # a commit: something before it is missing
    OK = "OK"


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


@dataclass(frozen=True)
class Guard:
    """Who writes, and where its own last write of state left the partition.

    One that finds another owner is ``FENCED``, another version ``REWOUND``, another number of
    entries than were written ``DAMAGED``.
    """

    partition: int
    owner: str
    version: int


@dataclass(frozen=True)
class Commit:
    """One batch: the records first to next - 1."""

    first: int
    next: int
    chain: Chain  # after the batch
    leader_epoch: int  # of its last record
    changes: Sequence[bytes]  # entries to append
    parcels: Mapping[str, bytes]  # of outputs, to keep until they are published
    published: Sequence[str]  # names of earlier parcels, to forget


@dataclass(frozen=True)
class Exchange:
    """Pages for changes. Those that are written before the changes are dropped do no harm."""

    pages: Mapping[str, bytes]  # to write
    deleted: Sequence[str]  # names of pages that are no longer needed
    digest: int  # of all pages after this
    dropped: int  # how many of the oldest entries of changes to drop
    since: int  # where the changes begin after this


@dataclass(frozen=True)
class Stage:
    """Some of an image, to be put beside what is kept. It is no state until it is installed."""

    pages: Mapping[str, bytes]
    changes: Sequence[bytes]  # in the order of the log
    parcels: Mapping[str, bytes]
    is_first: bool  # what was staged before is dropped

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, (*self.pages.values(), *self.changes, *self.parcels.values())))


@dataclass(frozen=True)
class Installation:
    """What was staged, to take the place of what is kept."""

    fields: Mapping[str, str]  # of meta, but those that say whose it is
    pages: int  # so many were staged
    changes: int
    parcels: int


class Store(Protocol):
    """One store. Each verb happens wholly and at one moment, or not at all.

    Any of them raises ``StoreUnavailable``; whether a write took place is not known then.
    """

    async def claim(self, partition: int, owner: str, topic: bytes, partitions: int) -> Claimed:
        """Own a partition of this log and fence every other owner.

        Args:
            partition: which of them.
            owner: a token that nobody else has.
            topic: the id of the topic of the log.
            partitions: P, how many the topic has.
        """

    async def owner(self, partition: int) -> str:
        """Who owns a partition; empty if nobody ever did."""

    async def load(self, partition: int) -> Snapshot | None:
        """All that is kept of a partition; None if nothing ever was.

        Raises:
            Damaged: it is not whole.
        """

    async def glance(self, partition: int) -> Glance:
        """What can be said of a partition in no time, however large its state is."""

    async def commit(self, guard: Guard, commit: Commit) -> Verdict:
        """Append one batch. ``DUPLICATE`` or ``GAP``: it is not the one that comes next."""

    async def compact(self, guard: Guard, exchange: Exchange) -> Verdict:
        """Write pages, or drop the changes that they cover by now."""

    async def forget(self, guard: Guard, published: Sequence[str]) -> Verdict:
        """Drop parcels that have been published."""

    async def moment(self, guard: Guard) -> Moment | Verdict:
        """What is kept besides pages, of one moment, or why it is not what the owner left.

        Raises:
            Damaged: it is not whole.
        """

    async def read_pages(self, partition: int, names: Sequence[str]) -> dict[str, bytes]:
        """These pages as they are kept; those that are not there are left out."""

    async def stage(self, guard: Guard, stage: Stage) -> Verdict:
        """Put some of an image beside what is kept. This is no state: the version stays."""

    async def install(self, guard: Guard, installation: Installation) -> Verdict:
        """Let what was staged take the place of what is kept; ``DAMAGED``: it is not all there."""

    async def discard(self, partition: int, seen: Mapping[str, str]) -> Verdict:
        """Delete the state of a partition, complete or not. The next claim begins with nothing.

        Only a worker that can restore all of the state from elsewhere may call this.

        Args:
            partition: which of them.
            seen: its meta as the caller saw it, empty for none. If owner or version are other ones
                by now, nothing is deleted and the verdict is ``FENCED`` or ``REWOUND``.
        """

    async def beat(self, guard: Guard, pulse: bytes, summary: bytes) -> Verdict:
        """Show that a partition is decided; takes a stop away.

        This is no state: the version stays. It is guarded as writes are, so that an owner finds out
        by it where the store is. An empty summary leaves the one that was shown.
        """

    async def keep_stop(self, partition: int, reason: str, problem: str, remedy: str) -> None:
        """Say why nothing is decided in a partition, until an owner decides there again."""
