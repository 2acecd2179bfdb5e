"""Moves a budget file into a service: its log becomes the log of the service.

1. Check that the service has as many partitions as the file and no log yet, that the log in the
   file is the one that was applied, and that no record of an answerer is damaged.
2. Record in the file that its log moves to this service. From here on the file refuses every
   charge, so that no budget is spent in both.
3. Copy the answers and the journal of answerers. No answerer can charge in the service before the
   next step, so none answers a window again whose answer is not copied yet.
4. Append the records of the file to each partition of the log, in order. An interrupted move has
   appended some of them before: these are compared and skipped.
5. Read the log of the service, and compare its hash chain with that of the file's records.

An interruption before step 2 changes nothing. After that, the same command continues. The id of the
log is a part of the hash chain, so the records in the file have one head under their own log and
another one under the log of the service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from streams.kafka.results import Extent
from streams.kafka.topics import NORMS
from streams.records.digests import HashChain, genesis
from streams.replay.archive import DAMAGED, Archive, ArchivedRecord, BrokenLog, CannotMove
from streams.replay.file import FileArchive

Append: TypeAlias = Callable[[int, Iterable[ArchivedRecord]], None]
"""Appends records with their times to a partition, and waits until the broker has them."""


class MovedPartition(NamedTuple):
    """A partition that was moved."""

    partition: int
    records: int
    file_head: bytes  # of the hash chain in the file
    head: bytes  # of the same records in the log of the service


def move(
    file: FileArchive,
    archive: Archive,
    append: Append,
    *,
    copy: Callable[[], int],
    instead_of: bytes | None = None,
    tell: Callable[[str], None] = print,
) -> list[MovedPartition]:
    """Move a budget file into a service; see the steps above.

    Args:
        copy: copies answers and journal, if the file has any, and returns the number of answers.
        instead_of: the log of an earlier move that failed; it was deleted.

    Raises:
        CannotMove: it cannot be done as things are.
        BrokenLog: the log in the file is not the one that was applied, or a record of an answerer
            is damaged.
        UnreadableService: Kafka does not answer.
        UnusableFile: the file was moved into another service, or cannot be written.
    """
    # Step 1.
    if archive.partitions != file.partitions:
        raise CannotMove(
            f"the service has {archive.partitions} partitions and the file {file.partitions}: use "
            "a service with the same number"
        )
    tell(f"checking the log in the file: {file.partitions} partitions")
    for partition in range(file.partitions):
        _check_file(file, partition)
    for table, offset in file.damaged_answers():
        raise BrokenLog(f"offset {offset} of {table} in {file.file.path}: {DAMAGED}")
    is_resumed = file.file.moved_to() == archive.topic
    if not is_resumed and any(archive.extent(NORMS, p).end for p in range(file.partitions)):
        raise CannotMove(
            "the log of the service has records: move the file into a service that was never used"
        )
    # Step 2.
    with file.file.moving(archive.topic, instead_of):
        tell(f"the file refuses charges: its log moves to {archive.topic.hex()}")
        # Step 3.
        if answers := copy():
            tell(f"the service has {answers} answers, and the journal of their runs")
        moved = []
        for partition in range(file.partitions):
            # Steps 4 and 5.
            moved.append(_moved(file, archive, append, partition))
            tell(f"partition {partition}: the service has {moved[-1].records} records")
    return moved


def _chain(archive: Archive, topic: bytes, partition: int, end: int) -> HashChain:
    """Return the hash chain of the first records, as those of the log with an id."""
    chain = genesis(topic, partition, archive.partitions)
    for record in archive.read(NORMS, partition, Extent(0, end)):
        chain = chain.after(record.offset, record.value)
    return chain


def _check_file(file: FileArchive, partition: int) -> None:
    (stored,) = file.heads(partition)
    # Not up to the end of the log, because other processes may charge until step 2.
    if _chain(file, file.topic, partition, stored.next).head != stored.head:
        raise BrokenLog(
            f"partition {partition}: the log in the file is not the one that was applied: see "
            f"`turnstile verify --budgets {file.file.path}`"
        )


def _moved(file: FileArchive, archive: Archive, append: Append, partition: int) -> MovedPartition:
    present, wanted = archive.extent(NORMS, partition), file.extent(NORMS, partition)
    if present.start:
        raise CannotMove(f"partition {partition}: records of the service's log were deleted")
    begun = min(present.end, wanted.end)
    _compare(file, archive, partition, begun)
    append(partition, file.read(NORMS, partition, Extent(begun, wanted.end)))
    head = _compare(file, archive, partition, wanted.end)
    (stored,) = file.heads(partition)
    return MovedPartition(partition, wanted.end, stored.head, head)


def _compare(file: FileArchive, archive: Archive, partition: int, end: int) -> bytes:
    """Check that both logs have the same first records, and return the head of the service's."""
    expected, found = (_chain(log, archive.topic, partition, end) for log in (file, archive))
    if found != expected:
        raise CannotMove(
            f"partition {partition}: up to offset {found.last} the log of the service is not that "
            "of the file, because another program has written to it. If nothing was released for "
            "it, delete the topics, create a service without clients, and move the file there with "
            f"`--instead-of {archive.topic.hex()}`"
        )
    return found.head
