"""The port for the state of partitions: atomic operations, no policy.

``redis_store`` implements it on Redis; ``tests/doubles/memory_store.py`` does so in memory, for
the tests and the simulation. Both pass ``tests/conformance/store``. ``layout`` defines the keys
and their contents; ``writer`` decides what to write.

Every write of state compares the owner and the version, and increments the version. So the next
write detects any rollback of the store, even if only written pages or dropped deltas were lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from streams.config import Unavailable
from streams.ledger.ledger import Summary
from streams.records import encode
from streams.store.layout import Damaged, Meta, with_digest, without_digest
from streams.store.stored_state import StoredState

_Report = TypeVar("_Report", "Pulse", "Inventory")


class StoreFailure(StrEnum):
    """The reasons for a ``StoreUnavailable``."""

    ADDRESS = "address"  # the address cannot be used
    LOGIN = "login"  # the user or the password is wrong
    CERTIFICATE = "certificate"  # another authority signed it, or it names another host
    NO_MASTER = "no-master"  # no Sentinel names a master that it can reach
    MAY_EVICT = "may-evict"  # the store may delete keys when its memory is full
    NO_ANSWER = "no-answer"  # no connection, a lost one, or another error as the answer


class StoreUnavailable(Unavailable):
    """The store did not answer, or answered with an error. Nothing can be decided."""

    def __init__(self, reason: StoreFailure, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Verdict(StrEnum):
    """The result of an acquisition or a write. Nothing was written unless it is ``OK``.

    Each check follows only if the previous ones passed. An acquisition looks for damage twice:
    first for state without meta, and last for lost entries.
    """

    FOREIGN = "FOREIGN"  # acquisition: a key holds a kind of value that no worker writes
    MISFIT = "MISFIT"  # acquisition: the state is of another layout, topic or number of partitions
    FENCED = "FENCED"  # another worker owns the partition
    REWOUND = "REWOUND"  # the store does not have the version that the owner left
    DAMAGED = "DAMAGED"  # entries that were written are gone
    DUPLICATE = "DUPLICATE"  # the batch was written before
    GAP = "GAP"  # an earlier batch is missing
    OK = "OK"


@dataclass(frozen=True)
class Acquired:
    """The result of an acquisition, with meta as it was before (empty: there was none)."""

    verdict: Verdict
    before: dict[str, str]

    @property
    def version(self) -> int:
        """The version before the acquisition."""
        return int(self.before.get("version", "0"))


@dataclass(frozen=True)
class Glance:
    """The facts about a partition that can be read without its state."""

    now: int  # seconds, by the clock of the store
    meta: dict[str, str]
    seen: int | None  # the time of the owner's last heartbeat, by the same clock
    pulse: bytes
    summary: bytes
    suspended: dict[str, str]

    @property
    def state(self) -> Meta | None:
        """The meta; None if there is none, or it is not what a worker of this release wrote."""
        with suppress(Damaged):
            return Meta.of(self.meta)
        return None


@dataclass(frozen=True)
class Guard:
    """The owner that writes, and the version after its last write of state.

    A write is ``FENCED`` if it finds another owner, ``REWOUND`` if it finds another version, and
    ``DAMAGED`` if it finds another number of entries than were written.
    """

    partition: int
    owner: str
    version: int


class Unpaged(NamedTuple):
    """The stored state of a partition without its pages, as of one time."""

    fields: Mapping[str, str]  # of meta
    changes: Sequence[bytes]
    outbox: Mapping[str, bytes]


NO_ENTRIES: Mapping[str, bytes] = MappingProxyType({})


class Store(Protocol):
    """One store. Each operation is atomic.

    Each of them raises ``StoreUnavailable``; then it is not known whether a write took place.
    """

    async def acquire(
        self,
        partition: int,
        owner: str,
        topic: bytes,
        partitions: int,
        discarding: Mapping[str, str] | None = None,
    ) -> Acquired:
        """Own a partition of this log and fence every other owner.

        Args:
            owner: a token that no other worker has.
            topic: the topic id of the log.
            partitions: P, the number of partitions of the topic.
            discarding: the meta of a state to delete first, complete or not, as the caller saw it;
                empty for none. If owner or version differ by now, the verdict is ``FENCED`` or
                ``REWOUND``. Only a worker that can restore the whole state from elsewhere may do
                so.
        """

    async def load(self, partition: int) -> StoredState | None:
        """Return the whole state of a partition, or None; ``Damaged`` if it is incomplete."""

    async def glance(self, partition: int) -> Glance:
        """Return the facts about a partition that take the same time however large its state is."""

    async def write(
        self,
        guard: Guard,
        fields: Mapping[str, str],
        *,
        first: int | None = None,
        replaces: bool = False,
        dropped: int = 0,
        changes: Sequence[bytes] = (),
        pages: Mapping[str, bytes] = NO_ENTRIES,
        deleted: Sequence[str] = (),
        outbox: Mapping[str, bytes] = NO_ENTRIES,
        published: Sequence[str] = (),
    ) -> Verdict:
        """Change the state of a partition: everything that is given, or nothing.

        Args:
            fields: the fields of meta to set.
            first: the offset of the first record of a batch. ``DUPLICATE`` and ``GAP`` mean that
                it is not the next one.
            replaces: whether to delete all deltas, pages and outbox entries first.
            dropped: the number of oldest deltas to delete.
            changes: deltas to append.
            pages: to write, by name.
            deleted: names of pages to delete.
            outbox: entries to store until they are published, by name.
            published: names of outbox entries to delete.
        """

    async def unpaged(self, partition: int) -> Unpaged:
        """Return the state without its pages, as it is stored."""

    async def read_pages(self, partition: int, names: Sequence[str]) -> dict[str, bytes]:
        """Return these pages as they are stored, without those that do not exist."""

    async def beat(self, guard: Guard, pulse: bytes, summary: bytes) -> Verdict:
        """Report that a partition is decided; delete the reason for a suspension.

        This is not state: the version stays. The heartbeat is guarded like a write, so an owner
        detects by it that the store was rolled back. An empty summary leaves the previous one.
        """

    async def keep_suspension(self, partition: int, reason: str, problem: str, remedy: str) -> None:
        """Store why a partition is suspended, until an owner decides it again."""


class SuspensionReason(StrEnum):
    """The reasons for a suspension, in the order in which an acquisition checks them."""

    OTHER_LAYOUT = "other-layout"
    """The state was written by a release with another layout."""
    DAMAGED = "damaged"
    """A part of the state in Redis is missing, and snapshot and log do not replace it."""
    OTHER_LOG = "other-log"
    """The topic ``norms`` was deleted and created again."""
    OTHER_PARTITIONS = "other-partitions"
    """Partitions were added to the topic ``norms``."""
    TOPICS = "topics"
    """A topic has settings under which records would be lost."""
    LOG_ENDS_EARLY = "log-ends-early"
    """Kafka lost records that were decided."""
    LOG_BEGINS_LATE = "log-begins-late"
    """Records were deleted before they were decided, or before a snapshot covered them."""
    LOG_REWRITTEN = "log-rewritten"
    """The last decided record was replaced by another one."""
    HOLE = "hole"
    """The next record of the log is missing."""
    SNAPSHOT = "snapshot"
    """Redis is empty, the log was trimmed, and the last snapshot is incomplete."""
    IMPORT_PENDING = "import-pending"
    """The log continues another one, and the snapshot with the imported state is missing."""
    ERASURE_KEY = "erasure-key"
    """The state has keyed hashes of erased users, by a key that the worker lacks."""
    CANNOT_VERIFY = "cannot-verify"
    """A signed request must be verified, and the package for it is not installed."""
    RESTORING = "restoring"
    """The state is being restored, and decisions follow without any action."""


class Pulse(msgspec.Struct, frozen=True):
    """The progress of the owner."""

    next: int  # the offset to apply next
    end: int | None  # the end of the log; None before the first fetch
    waiting: float  # seconds for which records have been waiting and none was applied
    snapshot: int | None = None  # where the last snapshot continues; None: none, or not known
    erased_without_key: bool = False  # whether ids of erased users can be guessed


class Inventory(msgspec.Struct, frozen=True):
    """A summary of the state, up to the last applied record."""

    last: int  # the offset of the last applied record, -1 for none
    summary: Summary


def pack_report(report: Pulse | Inventory) -> bytes:
    """Return a pulse or an inventory as a heartbeat stores it."""
    return with_digest(encode(report))


def decode_pulse(packed: bytes) -> Pulse | None:
    """Return a stored pulse; None if there is none that this release can read."""
    return _unpacked(packed, Pulse)


def decode_inventory(packed: bytes) -> Inventory | None:
    """Return a stored summary; None if there is none that this release can read."""
    return _unpacked(packed, Inventory)


def last_snapshot(pulse: bytes) -> int | None:
    """Return the offset of the last snapshot that any owner has reported, if it is known."""
    found = decode_pulse(pulse)
    return found.snapshot if found else None


def _unpacked(packed: bytes, kind: type[_Report]) -> _Report | None:
    with suppress(Damaged, msgspec.MsgspecError):
        return msgspec.msgpack.decode(without_digest(packed), type=kind)
    return None
