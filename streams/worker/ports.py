"""What a worker needs of the world, and nothing else: every effect it has goes through here.

The parts that decide (``partitions``, ``processor`` and what they are made of) import no clock, no
process and no client. Their clock is that of the event loop (``loop.time()``, ``asyncio.sleep``).
The real world is put together in ``app``; that of the simulation is a program with a seed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, Protocol

from streams.ledger.ledger import Output
from streams.store.port import Store
from streams.topics.topics import TopicsSeen


class NoRecord(Exception):
    """The log has no record at an offset."""


class Missing(Enum):
    """What the log has at offsets at which no record came."""

    NOTHING_TO_APPLY = "control records, or batches that are not read"
    RECORDS = "records that were not delivered"
    HOLE = "nothing"


class Log(Protocol):
    """The topic norms, read beside the stream."""

    async def record(self, partition: int, offset: int) -> bytes | None:
        """The value of one record, as it is applied.

        Raises:
            NoRecord: there is none at this offset.
        """

    async def missing(self, partition: int, first: int, end: int) -> Missing:
        """What the log has at the offsets first to end - 1."""


class Topics(Protocol):
    """What Kafka says of the topics."""

    async def look(self) -> TopicsSeen:
        """The topics as they are now.

        Raises:
            TopicsUnavailable: no answer.
        """


class Publisher(Protocol):
    """Where answers go."""

    async def publish(
        self, partition: int, outputs: Sequence[Output]
    ) -> Sequence[Awaitable[object]]:
        """Queue outputs, in the order of each topic; what comes back ends when the broker has
        them. What is sent may come twice, and late."""


class FencedProducer(Protocol):
    """Writes the checkpoints of one partition, under an epoch that the broker admits alone."""

    async def start(self) -> None:
        """Begin a new epoch, which shuts out every earlier one."""

    async def send(self, outputs: Sequence[Output]) -> None:
        """Send records in one transaction; returns when the broker has them."""

    async def stop(self) -> None:
        """Disconnect."""


@dataclass(frozen=True)
class World:
    """All that a worker can touch.

    Attributes:
        owner: the token of this worker; no two are alike.
        store: where the state is kept.
        topics: the topics as Kafka has them.
        read_log: opens a reader of the log.
        publisher: where answers go.
        checkpoints_of: makes the producer of a partition's checkpoints.
        end: ends the worker at once, saying why: no line of it runs after that.
    """

    owner: str
    store: Store
    topics: Topics
    read_log: Callable[[], AbstractAsyncContextManager[Log]]
    publisher: Publisher
    checkpoints_of: Callable[[int], FencedProducer]
    end: Callable[[str, BaseException | None], NoReturn]
