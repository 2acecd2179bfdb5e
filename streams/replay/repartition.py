"""Repartition: continue a log in another one, with another number of partitions.

1. Replay the old log. It must be live with all runs closed, or retired in favour of the new log by
   an interrupted repartition. Compute the state of each new partition, and load it once.
2. Create the topics of the new log, and write the record ``import`` at the start of each partition.
   From here on, workers suspend the new log until they find its snapshots.
3. Write ``retire`` to each partition of the old log, and replay the log up to it. From here on, the
   old log refuses every request, and its state never changes. Copy the journal of its answerers, so
   that no window is charged again in the new log.
4. Compute the states again. For each new partition, write the odometer records of its users and
   then the snapshot. From here on, workers decide the partition.

An interruption before step 3 leaves the old service as it was. After that, the same command
continues: each step finds out what is already there, and the states are a function of the old log.
There are never two live logs: step 4 needs all partitions of the old log to be retired, and a
retired partition names the one log that may continue it. A request that arrives at the old log
during the repartition is decided before step 3, and is part of the state, or is refused after it.

Memory holds the state of all old partitions and of one new partition.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, Protocol

from streams.kafka.results import Extent, Origin
from streams.kafka.topics import NORMS
from streams.ledger.ledger import Ledger, ledger_of
from streams.ledger.repartition import (
    NEXT,
    Imported,
    import_record,
    imported,
    odometer_records,
)
from streams.ledger.retirement import agreement
from streams.records import Retire, encode
from streams.replay.archive import Archive, CannotRepartition
from streams.replay.log_replay import LogReplay
from streams.store.layout import Meta, digest_of, fields_of_nothing, pack_page, page_hash
from streams.store.snapshot import Draft, Moment, Snapshot, UnusableSnapshot, pieces
from streams.worker.ports import FencedProducer, SnapshotTopic

SEND_BYTES = 2 * 1024 * 1024
"""A transaction of at least this size takes no further chunk."""
SEND_OUTPUTS = 10_000
"""Odometer records in one transaction."""
_SHOWN = 5


class Logs(Protocol):
    """The old log and the new one.

    Attributes:
        old: the topics of the old log.
    """

    old: Archive

    def new(self) -> Archive | None:
        """Return the topics of the new log; None if they do not exist."""

    def create(self, partitions: int) -> Archive:
        """Create the topics of the new log, as far as they do not exist."""

    def begin(self, partition: int, record: bytes) -> None:
        """Append a record to a partition of the new log."""

    def retire(self, partition: int, record: bytes) -> None:
        """Append a request to a partition of the old log, signed if there is a key for it."""

    def carry_over(self) -> None:
        """Copy the journal of answerers to the new log, as far as it is not there."""

    def install(self, partition: int, state: Imported) -> None:
        """Call the function ``install`` with the new log's topics."""


class PartitionImport(NamedTuple):
    """A partition of the new log."""

    partition: int
    users: int
    digest: bytes


class Repartitioned(NamedTuple):
    """Result of a repartition."""

    old: bytes
    new: bytes | None  # None: the topics do not exist yet
    heads: list[tuple[int, bytes]]  # of the old partitions: where they ended, and their heads
    partitions: list[PartitionImport]


def repartition(
    logs: Logs, partitions: int, *, dry_run: bool = False, tell: Callable[[str], None] = print
) -> Repartitioned:
    """Continue the old log in the new one; see the steps above.

    Args:
        logs: the topics.
        partitions: the number of partitions of the new log.
        dry_run: only check whether the old log can be continued.
        tell: receives progress reports.

    Raises:
        CannotRepartition: it cannot be done as things are.
        BrokenLog: the old log is incomplete, or is not the one that was applied.
        UnreadableService: Kafka does not answer.
    """
    # Step 1.
    tell(f"replaying the old log: {logs.old.partitions} partitions")
    replays = list(_replayed(logs.old))
    ledgers = [replay.ledger for replay in replays]
    new = logs.new()
    _check_successor(ledgers, new, partitions)
    _check_agreement(ledgers)
    if not any(ledger.state.retired for ledger in ledgers):
        _check_runs(ledgers)
    planned = _plan(ledgers, bytes(16) if new is None else new.topic, partitions)
    if dry_run:
        there = None if new is None else new.topic
        return Repartitioned(ledgers[0].state.topic, there, _heads(ledgers), planned)
    # Step 2.
    new = logs.create(partitions)
    _check_successor(ledgers, new, partitions)
    if not any(ledger.state.retired for ledger in ledgers):
        first = import_record(ledgers)
        for partition in range(partitions):
            if not _has_begun(new, partition, first):
                logs.begin(partition, first)
            if not _has_begun(new, partition, first):
                raise CannotRepartition(f"partition {partition} of the new log is still empty")
    # Step 3.
    for replay in replays:
        state = replay.ledger.state
        if not state.retired:
            request = Retire(
                request=secrets.token_hex(8),
                successor=new.topic,
                partitions=partitions,
                agreement=agreement(state),
            )
            logs.retire(state.partition, encode(request))
            replay.extent = logs.old.extent(NORMS, state.partition)
            _replay(replay)
    _check_successor(ledgers, new, partitions)
    alive = [ledger.state.partition for ledger in ledgers if not ledger.state.retired]
    if alive:
        raise CannotRepartition(
            f"partitions {alive} of the old log refused to retire: its datasets have changed, or "
            "TURNSTILE_REQUEST_KEY may not manage all of them. Run the command again, with a key "
            "that may"
        )
    tell("the old log is retired")
    logs.carry_over()
    # Step 4.
    parts = []
    for partition in range(partitions):
        begun = imported(ledgers, new.topic, partition, partitions)
        logs.install(partition, begun)
        parts.append(_part(begun.ledger))
        tell(f"partition {partition + 1} of {partitions} is imported")
    return Repartitioned(ledgers[0].state.topic, new.topic, _heads(ledgers), parts)


def retired(old: Archive, topic: bytes, partitions: int) -> list[Ledger]:
    """Replay a log that another one continues, and return its partitions.

    Args:
        old: the topics of the log.
        topic: the id of the log that continues it.
        partitions: of that log.

    Raises:
        CannotRepartition: another log continues it, or none does.
        BrokenLog: the log is incomplete, or is not the one that was applied.
        UnreadableService: Kafka does not answer.
    """
    ledgers = [replay.ledger for replay in _replayed(old)]
    ends = {end.successor for ledger in ledgers for end in ledger.state.retired.values()}
    if ends != {topic} or not all(ledger.state.retired for ledger in ledgers):
        raise CannotRepartition(
            f"the log {old.topic.hex()} is not retired in favour of the log {topic.hex()}"
        )
    return ledgers


async def install(state: Imported, odometer: FencedProducer, topic: SnapshotTopic) -> None:
    """Write the odometer records and the snapshot of a new partition, if it has no snapshot yet.

    Args:
        state: of the partition.
        odometer: the producer of its odometer records.
        topic: receives its snapshots.

    Raises:
        NotSent: the broker does not accept them, for example because a worker has begun to write.
    """
    log = state.ledger.state
    try:
        # Fence other writers before the look, so that no later snapshot is overwritten.
        await odometer.start()
        await topic.start()
        last = await _last(topic)
        if last is not None and last.manifest.topic == log.topic.hex():
            return
        origin = Origin(log.topic, -1)
        records = odometer_records(state.ledger)
        while some := list(islice(records, SEND_OUTPUTS)):
            await odometer.send([(origin, some)])
        draft = Draft(last)
        pages = {name: pack_page(NEXT, page) for name, page in state.pages.items()}
        chunks = (record for name, page in pages.items() for record in draft.add(name, page))
        for group in pieces(chunks, SEND_BYTES):
            await topic.send(group)
        rest, manifest = draft.finish(Moment(_meta(state, pages), [], {}), log.partition)
        for group in pieces(rest, SEND_BYTES):
            await topic.send(group)
        await topic.send([manifest])
        await topic.send(draft.emptied())
    finally:
        await odometer.stop()
        await topic.stop()


def _replayed(old: Archive) -> Iterator[LogReplay]:
    for partition in range(old.partitions):
        replay = LogReplay(old, partition)
        if replay.cut_off:
            raise CannotRepartition(f"partition {partition} of the old log: {replay.cut_off}")
        _replay(replay)
        yield replay


def _replay(replay: LogReplay) -> None:
    for _ in replay.steps():
        pass


def _check_successor(ledgers: Sequence[Ledger], new: Archive | None, partitions: int) -> None:
    if new is not None and new.topic == ledgers[0].state.topic:
        raise CannotRepartition("the old and the new log are the same one: choose another prefix")
    if new is not None and new.partitions != partitions:
        raise CannotRepartition(
            f"the topics of the new log have {new.partitions} partitions, not {partitions}"
        )
    here = None if new is None else (new.topic, partitions)
    for ledger in ledgers:
        for end in ledger.state.retired.values():
            if (end.successor, end.partitions) != here:
                raise CannotRepartition(
                    f"the log {end.successor.hex()}, of {end.partitions} partitions, continues "
                    "this log, and no other log can. Give the prefix and the number of partitions "
                    "of that one"
                )


def _check_agreement(ledgers: Sequence[Ledger]) -> None:
    for ledger in ledgers[1:]:
        if agreement(ledger.state) != agreement(ledgers[0].state):
            raise CannotRepartition(
                f"partitions 0 and {ledger.state.partition} of the old log have different "
                "datasets, access lists or closed datasets: a client was interrupted. Repeat its "
                "request or withdraw the dataset, and run the command again"
            )


def _check_runs(ledgers: Sequence[Ledger]) -> None:
    runs = sorted(
        {a for ledger in ledgers for a, run in ledger.state.runs.items() if not run.closed}
    )
    if runs:
        shown = ", ".join("/".join(address) for address in runs[:_SHOWN])
        raise CannotRepartition(
            f"{len(runs)} runs are open ({shown}{', ...' if len(runs) > _SHOWN else ''}). Close "
            "them first: no run continues in another log"
        )


class _LoadedPages(NamedTuple):
    pages: dict[str, bytes]
    changes: list[bytes]


def _loaded(state: Imported) -> Ledger:
    """Return a new partition, loaded as a worker does."""
    log = state.ledger.state
    return ledger_of(
        _LoadedPages(state.pages, []),
        log.partition,
        log.partitions,
        log.topic,
        state.ledger.chain,
        state.ledger.erasure_keys,
    )


def _plan(ledgers: Sequence[Ledger], topic: bytes, partitions: int) -> list[PartitionImport]:
    """Compute and load all new partitions; check that no living user is lost or doubled."""
    parts, after = [], Counter[str]()
    for partition in range(partitions):
        ledger = _loaded(imported(ledgers, topic, partition, partitions))
        parts.append(_part(ledger))
        after.update(_living([ledger]))
    if after != (before := _living(ledgers)):
        raise CannotRepartition(f"the datasets would have {after} users, not {before}")
    return parts


def _living(ledgers: Sequence[Ledger]) -> Counter[str]:
    """Return the number of users that were not erased, by dataset."""
    users = Counter[str]()
    for ledger in ledgers:
        users.update({name: len(accounts) for name, accounts in ledger.state.datasets.items()})
        users.subtract(dataset for dataset, _ in ledger.state.erased)
    return users


def _has_begun(new: Archive, partition: int, first: bytes) -> bool:
    """Return whether a new partition begins with this record; False if it is empty."""
    extent = new.extent(NORMS, partition)
    if extent.end == 0:
        return False
    # A later record can only be a request, which is decided after the import.
    start = next(new.read(NORMS, partition, Extent(extent.start, extent.end)), None)
    if start is None or (start.offset, start.value) != (0, first):
        raise CannotRepartition(
            f"partition {partition} of the new log has records of another service: choose another "
            "prefix"
        )
    return True


def _part(ledger: Ledger) -> PartitionImport:
    state = ledger.state
    users = sum(map(len, state.datasets.values()))
    return PartitionImport(state.partition, users, state.origin[()].digest)


def _heads(ledgers: Sequence[Ledger]) -> list[tuple[int, bytes]]:
    return [(end.next, end.head) for ledger in ledgers for end in ledger.state.retired.values()]


async def _last(topic: SnapshotTopic) -> Snapshot | None:
    try:
        return await topic.read(with_contents=False)
    except UnusableSnapshot:
        return None


def _meta(state: Imported, pages: dict[str, bytes]) -> Meta:
    log = state.ledger.state
    nothing = Meta.of(fields_of_nothing(log.topic, log.partition, log.partitions))
    return replace(
        nothing,
        next=NEXT,
        chain=state.ledger.chain,
        since=NEXT,
        pages=len(pages),
        digest=digest_of(page_hash(name, page) for name, page in pages.items()),
    )
