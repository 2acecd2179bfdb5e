"""The ports of a worker: every effect of the worker goes through one of them.

The modules that decide (``ownership``, ``processor`` and the modules that they use) import no
clock, no process, no thread and no client. Their clock is that of the event loop (``loop.time()``,
``asyncio.sleep``). ``app`` assembles the real implementations. The tests use implementations in
memory (``tests/doubles``), which a seed can drive.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NoReturn, Protocol

from streams.kafka.results import (
    Extent,
    Missing,
    Origin,
    Sent,
    StoredRecord,
    TopicsSeen,
)
from streams.ledger.ledger import Ledger, Output
from streams.store.snapshot import Record, Snapshot
from streams.store.store_port import Store, Verdict
from streams.store.writer import PartitionWriter


class StreamRecord(NamedTuple):
    """A record of the log, as the stream delivers it."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since 1970
    timestamp_type: int  # 0: set by the producer; 1: set by the broker
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    leader_epoch: int


Committed = Callable[[int, Sequence[StreamRecord], Sequence[Output], float], None]
"""Receives the partition, the records and the outputs of a batch whose outcome is in Redis, and
the seconds that the write took."""


class Log(Protocol):
    """Reads the topic norms independently of the stream. Every failure is a ``LogUnavailable``."""

    async def extent(self, partition: int) -> Extent:
        """Return the offsets at which the log begins and ends now."""

    async def record(self, partition: int, offset: int) -> StoredRecord | None:
        """Return the record at an offset; None if there is none."""

    async def missing(self, partition: int, first: int, end: int) -> Missing:
        """Return what the log holds at the offsets first to end - 1."""


class Publisher(Protocol):
    """Publishes outputs."""

    async def publish(
        self, partition: int, outputs: Sequence[Output]
    ) -> Sequence[Awaitable[object]]:
        """Queue outputs, in the order of each topic.

        An output may be published twice, and late: readers drop outputs that they have seen.

        Returns:
            Awaitables that end when the broker has the outputs, and raise if it rejects them.
        """


class Epochs(Protocol):
    """Writes to one partition of a topic. The broker accepts only the latest epoch."""

    async def start(self) -> None:
        """Begin a new epoch, which fences every earlier one, or raise ``NotSent``."""

    async def stop(self) -> None:
        """Disconnect; do nothing if no epoch was begun."""


class FencedProducer(Epochs, Protocol):
    """Writes the odometer records of one partition."""

    async def last(self) -> Sent | None:
        """Return the last committed record of any epoch, or raise ``NotSent``; start first.

        None if the topic has no record, or if the last one names no origin.
        """

    async def send(self, outputs: Sequence[tuple[Origin, Sequence[Output]]]) -> None:
        """Send records, each with its origin, in one transaction; return when the broker has them.

        Without records, only the end of the transaction is appended, which no reader sees.

        Raises:
            NotSent: the broker does not accept them, for example because a later epoch has begun.
                After this, the producer sends nothing.
        """


class SnapshotTopic(Epochs, Protocol):
    """One partition of the topic snapshots. After a failure another epoch can begin."""

    async def read(self, with_contents: bool) -> Snapshot | None:
        """Return the last complete snapshot, with or without its contents; None if there is none.

        Raises:
            UnusableSnapshot: the snapshot is incomplete.
            LogUnavailable: Kafka does not answer.
        """

    async def send(self, records: Sequence[Record]) -> None:
        """Send records in one transaction; return when the broker has them.

        Without records, only the end of the transaction is appended, which no reader sees.

        Raises:
            NotSent: the broker does not accept them, for example because a later epoch has begun.
        """


class Ending(StrEnum):
    """The reasons for which a worker ends by itself."""

    FENCED = "fenced"
    """Another worker owns the partition, or Redis was emptied."""
    REWOUND = "rewound"
    """Redis lost the last write of this worker."""
    DAMAGED = "damaged"
    """Entries that this worker wrote are missing in Redis."""
    REJECTED = "rejected"
    """Redis rejected a write for another reason."""
    UNKNOWN_PARTITION = "unknown-partition"
    """Kafka assigned a partition that the topic does not have."""
    OTHER_LEADER_EPOCH = "other-leader-epoch"
    """The log has another leader epoch than the delivered record."""
    NOT_DELIVERED = "not-delivered"
    """Kafka skipped a record of the log."""
    SLOW_COMMIT = "slow-commit"
    """A commit took so long that another worker may own the partition."""
    STUCK = "stuck"
    """Records have waited for a minute, and the worker has applied none."""
    FAILED = "failed"
    """An unexpected exception; the log has its traceback."""


def ending_of(rejected: Verdict) -> Ending:
    """Return the reason to end after Redis rejected a write with this verdict."""
    return Ending.__members__.get(rejected.name, Ending.REJECTED)  # three names are the same


class Owner(Protocol):
    """The owner of a partition, as its merges, snapshots and heartbeats need it (``processor``)."""

    ledger: Ledger
    writer: PartitionWriter
    next: int  # the first offset that Redis has not seen
    moved_at: float  # the time of the last commit or pause

    def settled(self) -> AbstractAsyncContextManager[bool]:
        """Hold the lock, under which memory and Redis agree; yield whether the owner may write."""

    def expect_ok(self, verdict: Verdict, write: str) -> None:
        """End the worker if a write was rejected: Redis is not in the state that the owner left."""

    async def pass_tail(self, end: int) -> None:
        """Skip to the end of the log, if it holds nothing to apply."""


class End(Protocol):
    """Ends the worker at once: no line of it runs after the call.

    An exception is not enough: other tasks run before it surfaces, and clean-up code could
    acknowledge, publish or commit something. So the real implementation calls ``os._exit``. An
    implementation that cannot do so has to raise an exception that no ``except Exception``
    catches, and to reject every effect after that.
    """

    def __call__(self, reason: Ending, /, why: str, error: BaseException | None = None) -> NoReturn:
        """Log the reason, with the exception that led to it, and end the worker."""


@dataclass(frozen=True)
class World:
    """All ports and settings of a worker."""

    owner: str  # the token of this worker, unique among all workers
    prefix: str  # of topics and store keys, which messages to an operator name
    store: Store
    look: Callable[[], Awaitable[TopicsSeen]]  # or it raises ``TopicsUnavailable``
    read_log: Callable[[], AbstractAsyncContextManager[Log]]
    publisher: Publisher
    odometer_producer_of: Callable[[int], FencedProducer]  # by partition
    snapshots_of: Callable[[int], SnapshotTopic]  # by partition
    snapshot_every: float  # seconds from one snapshot of a partition to the next; 0: none
    end: End
    erasure_keys: str = ""  # that identify erased users
    committed: Committed = lambda *_: None  # for metrics and traces
