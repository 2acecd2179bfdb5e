"""What is read: the records of the topics, in their order, and what Redis keeps of a partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from streams.kafka.results import Extent
from streams.store.snapshot import Snapshot
from streams.store.stored_state import StoredState


class UnreadableService(Exception):
    """Kafka or Redis does not answer, or the topics are not there."""


class BrokenLog(Exception):
    """The log cannot be replayed as the workers applied it: no result of it would hold."""


class CannotRepartition(Exception):
    """The old log cannot be continued in the new one as things are."""


class MissingRecord(BrokenLog):
    """The log has a gap, at which workers suspend the partition.

    Attributes:
        partition: of the log.
        offset: the first offset that is missing.
    """

    def __init__(self, partition: int, offset: int) -> None:
        self.partition, self.offset = partition, offset
        super().__init__(
            f"partition {partition}: the log has nothing at offset {offset}, although it goes on "
            "after it. Workers suspend the partition there: see `turnstile status`"
        )


class ArchivedRecord(NamedTuple):
    """A record of a topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    written: float  # seconds since 1970, by the clock of whoever wrote it
    signed: bool | None = None  # whether it has a signature; None: nobody looked
    unsigned: str | None = None  # why no trusted key vouches for it, if it has a signature


class HeadSource(StrEnum):
    """What stores a head of the hash chain beside the log."""

    REDIS = "redis"
    SNAPSHOT = "snapshot"  # the last one in the topic snapshots


@dataclass(frozen=True)
class StoredHead:
    """The head of a partition's hash chain as it is stored beside the log.

    Attributes:
        holder: where.
        next: the head covers the records below this offset; None if there is no head.
        head: 32 bytes; empty if there is none.
        lacking: why there is none.
    """

    holder: HeadSource
    next: int | None = None
    head: bytes = b""
    lacking: str = ""


class Archive(Protocol):
    """The topics of one prefix, read only. Any of its verbs raises ``UnreadableService``.

    Attributes:
        topic: the 16 bytes of the id of norms.
        partitions: P.
        erasure_keys: by which users who were erased are known again.
    """

    topic: bytes
    partitions: int
    erasure_keys: str = ""

    def extent(self, topic: str, partition: int) -> Extent:
        """Where one of the topics norms, halts, odometer and rejects begins and ends now."""

    def read(self, topic: str, partition: int, extent: Extent) -> Iterator[ArchivedRecord]:
        """The records of an extent, in their order.

        Raises:
            MissingRecord: norms has a gap there. In other topics gaps are passed over.
        """

    def heads(self, partition: int) -> Sequence[StoredHead]:
        """Return what each holder stores now; one that does not answer says why in its head."""

    def snapshot(self, partition: int) -> Snapshot | None:
        """The last snapshot of the state of a partition; None if there never was one.

        Raises:
            UnusableSnapshot: it is not whole.
        """


class States(Protocol):
    """What Redis keeps, read only."""

    def load(self, partition: int) -> StoredState | None:
        """All that is kept of a partition, as of one moment; None if nothing ever was.

        Raises:
            Damaged: it is not whole.
            UnreadableService: no answer.
        """
