"""Deletes the records of ``norms`` that a snapshot covers, and says which remain, and why.

Records may be deleted only if the state can be restored without them. These are the steps for each
partition; each one follows only if the one before finds nothing wrong:

1. Read the last snapshot and verify all of it, as a worker that restores it would.
2. Check that it has this topic, this P, and a layout that this release reads.
3. Check that the log ends no earlier than the snapshot continues, and begins no later.
4. Check that the last record that the snapshot covers is in the log, with its leader epoch.
5. Delete the records before that one. The record itself remains: acquisitions compare it.

Workers continue meanwhile: they do not need the deleted records, even if they lose Redis.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kafka import TopicPartition

from streams.config import Config
from streams.kafka.authentic import RecordVerifier, verifier_of
from streams.kafka.kafka_clients import administering
from streams.kafka.log import KafkaLog
from streams.kafka.results import TopicsSeen
from streams.kafka.snapshot_topic import read_snapshot
from streams.kafka.topics import NORMS, SNAPSHOTS
from streams.operations.status import topics_of
from streams.store.misfit import Suspensions
from streams.store.snapshot import Snapshot, UnusableSnapshot, deletable


@dataclass(frozen=True)
class Trim:
    """A plan to delete records of one partition.

    Attributes:
        start: the offset at which the log begins.
        end: the offset after its last record.
        snapshot: the offset at which the last complete snapshot continues; None if there is none.
        before: the offset before which records can be deleted.
        why: why no more can be deleted.
        is_wrong: whether an operator has to act.
    """

    partition: int
    start: int
    end: int
    snapshot: int | None
    before: int
    why: str
    is_wrong: bool = False

    @property
    def records(self) -> int:
        """Return the number of offsets that can be deleted."""
        return max(0, self.before - self.start)


def plan_trims(config: Config) -> list[Trim]:
    """Return what can be deleted of every partition; change nothing.

    Raises:
        Unavailable: Kafka does not answer, or there are no topics.
    """
    return asyncio.run(_plans(config, topics_of(config)))


def trim(config: Config, planned: Trim) -> None:
    """Delete the planned records.

    Raises:
        Unavailable: Kafka does not answer, or denies the deletion.
    """
    place = TopicPartition(config.topic(NORMS), planned.partition)
    with administering(config, f"trim partition {planned.partition} of {place.topic}") as admin:
        admin.delete_records({place: planned.before})


async def _plans(config: Config, seen: TopicsSeen) -> list[Trim]:
    verifier = verifier_of(config, seen.topic)
    async with KafkaLog(config) as log:
        return [await _plan(config, log, seen, p, verifier) for p in range(seen.partitions)]


async def _plan(
    config: Config, log: KafkaLog, seen: TopicsSeen, partition: int, verifier: RecordVerifier | None
) -> Trim:
    # Step 1.
    snapshot, damage = _snapshot(config, partition, verifier)
    start, end = await log.extent(partition)
    if snapshot is None:
        why = damage or f"there is no snapshot in {config.topic(SNAPSHOTS)} yet"
        return Trim(partition, start, end, None, start, why, is_wrong=damage is not None)
    reached = snapshot.manifest.meta.next
    # Steps 2 and 3.
    suspensions = Suspensions(
        config.prefix, partition, seen.topic, seen.partitions, start, end, "the snapshot"
    )
    misfit = suspensions.misfit(snapshot.manifest.identity, reached)
    if wrong := str(misfit) if misfit else await _other_record(log, partition, snapshot, start):
        return Trim(partition, start, end, reached, start, wrong, is_wrong=True)
    last = deletable(snapshot)
    why = (
        f"{last} is the last record that the snapshot covers, and acquisitions compare it"
        if last > start
        else "the log begins where the snapshot ends"
    )
    return Trim(partition, start, end, reached, max(start, last), why)


def _snapshot(
    config: Config, partition: int, verifier: RecordVerifier | None
) -> tuple[Snapshot | None, str | None]:
    """Return the last snapshot, or what is wrong with it."""
    try:
        return read_snapshot(config, partition, verifier), None
    except UnusableSnapshot as unusable:
        return None, (
            f"the last snapshot is damaged: {unusable}. If the next one is damaged as well, "
            f"stop the workers, delete the topic {config.topic(SNAPSHOTS)} and start them"
        )


async def _other_record(
    log: KafkaLog, partition: int, snapshot: Snapshot, start: int
) -> str | None:
    """Return why the last record that a snapshot covers is not in the log, if it is not."""
    # Step 4.
    chain, known = snapshot.manifest.meta.chain, snapshot.manifest.meta.leader_epoch
    if chain.last < start:
        return None  # there is no record to compare, and none to delete
    found = await log.record(partition, chain.last)
    epochs = {known, found.leader_epoch if found else None}
    if found and chain.ends_with(found.value) and (-1 in epochs or len(epochs) == 1):
        return None
    return (
        f"record {chain.last}, the last one that the snapshot covers, is another one in the log: "
        "see `turnstile status`"
    )
