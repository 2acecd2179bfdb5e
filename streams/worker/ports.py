"""What a worker needs of the world, and nothing else: every effect it has goes through here.

The parts that decide (``partitions``, ``processor`` and what they are made of) import no clock, no
process, no thread and no client. Their clock is that of the event loop (``loop.time()``,
``asyncio.sleep``). ``app`` puts the real implementations together; the tests have others, in
memory (``tests/doubles``), which a seed can drive.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NoReturn, Protocol

from streams.ledger.ledger import Output
from streams.store.image import Image, Record
from streams.store.port import Store
from streams.topics.seen import TopicsSeen


class LogUnavailable(Exception):
    """Kafka does not answer."""


class NoRecord(Exception):
    """The log has no record at an offset."""


class NotSent(Exception):
    """The broker did not take records: it cannot be reached, or a later epoch has begun."""


class Missing(Enum):
    """What the log has at offsets at which no record came."""

    NOTHING_TO_APPLY = "control records, or batches that are not read"
    RECORDS = "records that were not delivered"
    HOLE = "nothing"


class Extent(NamedTuple):
    """Where a partition of a topic begins and ends."""

    start: int  # the offset of the first record
    end: int  # the offset after the last one


class Stored(NamedTuple):
    """A record as the log has it."""

    value: bytes | None
    leader_epoch: int  # which counts the elections of the partition's leader; -1: not known


class LogRecord(Protocol):
    """A record of the log, as the stream delivers it."""

    offset: int
    value: bytes | None
    leader_epoch: int

    def done(self) -> None:
        """Say that the record is applied, and what follows from it kept."""


class Log(Protocol):
    """The topic norms, read beside the stream. Every failure is a ``LogUnavailable``."""

    async def extent(self, partition: int) -> Extent:
        """Where the log begins and ends now."""

    async def record(self, partition: int, offset: int) -> Stored:
        """One record, as it is applied.

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
        """Queue outputs, in the order of each topic.

        What is sent may come twice, and late: readers drop what they have seen.

        Returns:
            What ends when the broker has them, and with an error if it does not take them.
        """


class Origin(NamedTuple):
    """Of which log a record was, and of which of its elections, that led to checkpoints."""

    topic: bytes  # the id of norms
    leader_epoch: int


class Sent(NamedTuple):
    """A checkpoint as the topic has it."""

    origin: Origin
    value: bytes


class FencedProducer(Protocol):
    """Writes the checkpoints of one partition, in epochs of which the broker admits the latest."""

    async def start(self) -> None:
        """Begin a new epoch, which shuts out every earlier one.

        Raises:
            NotSent: the broker does not answer.
        """

    async def last(self) -> Sent | None:
        """The last record of all that was sent and committed, in any epoch, once it has begun.

        None if there is none, or if it says of no origin.

        Raises:
            NotSent: the broker does not answer.
        """

    async def send(self, outputs: Sequence[tuple[Origin, Sequence[Output]]]) -> None:
        """Send records, each with its origin, in one transaction; returns when the broker has them.

        Without records, only the end of the transaction is appended, which no reader sees.

        Raises:
            NotSent: it does not take them, because a later epoch has begun for example. From then
                on this producer sends nothing.
        """

    async def stop(self) -> None:
        """Disconnect; nothing happens if it was never started."""


class ImageTopic(Protocol):
    """One partition of the topic checkpoints: images, written in epochs as the odometer is.

    After a failure another epoch can be begun.
    """

    async def read(self, with_contents: bool) -> Image | None:
        """The last image that is out, with or without its contents; None if there never was one.

        Raises:
            UnusableImage: it is not whole.
            LogUnavailable: Kafka does not answer.
        """

    async def start(self) -> None:
        """Begin a new epoch, which shuts out every earlier one.

        Raises:
            NotSent: the broker does not answer.
        """

    async def send(self, records: Sequence[Record]) -> None:
        """Send records in one transaction; returns when the broker has them.

        Without records, only the end of the transaction is appended, which no reader sees.

        Raises:
            NotSent: it does not take them, because a later epoch has begun for example.
        """

    async def stop(self) -> None:
        """Disconnect; nothing happens if it was never started."""


class End(Protocol):
    """Ends the worker at once: no line of it runs after the call.

    An exception alone would not do: before it surfaces other tasks run, and cleaning up could
    acknowledge, publish or commit something. So the real one leaves by ``os._exit``. One that
    cannot do that has to raise what no ``except Exception`` stops, and to refuse every effect from
    then on.
    """

    def __call__(self, why: str, error: BaseException | None = None) -> NoReturn:
        """Say why, and end."""


@dataclass(frozen=True)
class World:
    """All that a worker can touch.

    Attributes:
        owner: the token of this worker; no two are alike.
        prefix: of the topics and of what the store keeps, to name them to an operator.
        store: where the state is kept.
        topics: the topics as Kafka has them.
        read_log: opens a reader of the log.
        publisher: where answers go.
        checkpoints_of: makes the producer of a partition's checkpoints.
        images_of: gives what a partition's images are written to and read from.
        image_every: seconds from one image of a partition to the next; 0: none is written.
        erasure_keys: by which users who were forgotten are known again.
        operator_keys: of the operators whose word is followed.
        end: ends the worker.
    """

    owner: str
    prefix: str
    store: Store
    topics: Topics
    read_log: Callable[[], AbstractAsyncContextManager[Log]]
    publisher: Publisher
    checkpoints_of: Callable[[int], FencedProducer]
    images_of: Callable[[int], ImageTopic]
    image_every: float
    end: End
    erasure_keys: str = ""
    operator_keys: str = ""
