"""What is read: the records of the topics, in their order, and what Redis keeps of a partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from streams.store.image import Image
from streams.store.snapshot import Snapshot


class Unreadable(Exception):
    """Kafka or Redis does not answer, or the topics are not there."""


class Stored(NamedTuple):
    """A record of a topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    written: float  # seconds since 1970, by the clock of whoever wrote it
    signed: bool | None = None  # whether it has a signature; None: nobody looked
    unsigned: str | None = None  # why no trusted key vouches for it, if it has a signature


class Extent(NamedTuple):
    """Where a partition of a topic begins and ends."""

    start: int  # the offset of the first record that is there
    end: int  # the offset after the last one


class Archive(Protocol):
    """The topics of one prefix, read only. Any of its verbs raises ``Unreadable``.

    Attributes:
        topic: the 16 bytes of the id of norms.
        partitions: P.
        erasure_keys: by which users who were forgotten are known again.
        operator_keys: of the operators whose word is followed.
    """

    topic: bytes
    partitions: int
    erasure_keys: str = ""
    operator_keys: str = ""

    def extent(self, topic: str, partition: int) -> Extent:
        """Where one of the topics norms, halts, odometer and rejects begins and ends now."""

    def read(self, topic: str, partition: int, extent: Extent) -> Iterator[Stored]:
        """The records of an extent, in their order; offsets without one are passed over."""

    def image(self, partition: int) -> Image | None:
        """The last checkpoint of the state of a partition; None if there never was one.

        Raises:
            UnusableImage: it is not whole.
        """


class States(Protocol):
    """What Redis keeps, read only."""

    def load(self, partition: int) -> Snapshot | None:
        """All that is kept of a partition, as of one moment; None if nothing ever was.

        Raises:
            Damaged: it is not whole.
            Unreadable: no answer.
        """
