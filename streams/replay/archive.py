"""The port through which commands read a service: its topics, and its stored state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from streams.failures import Exit, Failure
from streams.kafka.results import Extent
from streams.store.misfit import Suspensions
from streams.store.snapshot import Manifest, Snapshot
from streams.store.stored_state import StoredState

if TYPE_CHECKING:
    from streams.answerer.published_answers import AnswerRecord


class UnreadableService(Failure):
    """Kafka or Redis does not answer, or the topics do not exist."""


class BrokenLog(Failure):
    """The log cannot be replayed as workers applied it, so no result is reliable."""

    exit_code = Exit.REFUSED


class CannotMove(Failure):
    """A budget file cannot be moved into the service now."""

    exit_code = Exit.REFUSED


class MissingRecord(BrokenLog):
    """The log has a gap, at which workers suspend the partition; ``offset`` is its first one."""

    def __init__(self, partition: int, offset: int) -> None:
        self.partition, self.offset = partition, offset
        super().__init__(
            f"partition {partition}: the log has no record at offset {offset}, but later ones. "
            "Workers suspend the partition there: see `turnstile status`"
        )


class ArchivedRecord(NamedTuple):
    """A record of a topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    written: float  # the producer's time, in seconds since 1970
    signed: bool | None = None  # whether it has a signature; None: not checked
    unsigned: str | None = None  # why its signature is not valid
    is_damaged: bool = False  # whether a budget file has another digest of it


DAMAGED = "the record is not what was written: its digest differs"
"""The problem with a damaged record. It may be only in its time, which no output depends on."""


class HeadSource(StrEnum):
    """A place that stores a head of the hash chain."""

    REDIS = "redis"
    SNAPSHOT = "snapshot"  # the last one in the topic snapshots
    FILE = "file"  # the budget file that has the log, too


@dataclass(frozen=True)
class StoredHead:
    """A stored head of a partition's hash chain.

    Attributes:
        partition: the log's partition.
        holder: where it is stored.
        next: the head covers the records before this offset.
        head: 32 bytes; empty if there is none.
        lacking: why there is none, or why it is not compared with the log; empty if it is.
    """

    partition: int
    holder: HeadSource
    next: int = 0
    head: bytes = b""
    lacking: str = ""


class Archive(Protocol):
    """A service or a budget file, read only. Every method can raise ``UnreadableService``.

    Attributes:
        holder: where the state is stored.
        topic: the id of norms, 16 bytes.
        partitions: the number of partitions.
        erasure_keys: the keys by which erased users are recognized.
    """

    holder: HeadSource = HeadSource.REDIS
    topic: bytes
    partitions: int
    erasure_keys: str = ""

    def extent(self, topic: str, partition: int) -> Extent:
        """Return where norms, halts, odometer or rejects begins and ends now."""

    def read(self, topic: str, partition: int, extent: Extent) -> Iterator[ArchivedRecord]:
        """Yield the records of an extent, in order.

        Raises:
            MissingRecord: norms has a gap there. Gaps in other topics are skipped.
        """

    def answers(self) -> Iterator[AnswerRecord]:
        """Yield the published answers; none if they cannot be read."""
        return iter(())

    def damaged_answers(self) -> Iterator[tuple[str, int]]:
        """Yield the table and the offset of each damaged record of an answerer in a budget file."""
        return iter(())

    def heads(self, partition: int) -> Sequence[StoredHead]:
        """Return the present head of each holder; ``lacking`` says why one is missing."""

    def snapshot(self, partition: int) -> Snapshot | None:
        """Return the last snapshot of a partition's state; None if there never was one.

        Raises:
            UnusableSnapshot: it is incomplete.
        """

    def load(self, partition: int) -> StoredState | None:
        """Return the state of a partition at one moment; None if there is none.

        Raises:
            Damaged: it is incomplete or was changed.
        """


def other_log(archive: Archive, partition: int, manifest: Manifest) -> str | None:
    """Return why a snapshot cannot be of this log, if it cannot. No offset is compared."""
    log = Suspensions("", partition, archive.topic, archive.partitions, 0, 0, "the last snapshot")
    found = log.misfit(manifest.identity)
    return None if found is None else found.problem
