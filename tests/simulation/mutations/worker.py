"""Mutations of the worker, between log, Redis and answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from streams.kafka.results import Missing
from streams.store import snapshot
from streams.worker import (
    inbox,
    merge,
    odometer_publisher,
    outbox,
    ownership,
    processor,
    snapshot_writer,
)
from tests.doubles import memory_broker
from tests.simulation.mutations.registry import Patches, mutation, replaced, yes


@mutation
def lock_not_held() -> Patches:
    """Pages are written while memory is ahead of Redis."""

    @asynccontextmanager
    async def settled(self: Any) -> AsyncIterator[bool]:
        yield self.state is processor.ProcessorState.RUNNING

    yield replaced(processor.Processor, "settled", settled)


@mutation
def deltas_deleted_before_pages_are_written() -> Patches:
    """A merge deletes deltas before the pages that cover them are written."""

    async def run(self: Any) -> None:
        owner = self._owner
        async with owner.settled() as may_write:
            if not may_write:
                return
            covered, reached = self._writer.backlog, owner.next
            names = self._ledger.state.unmerged()
            owner.expect_ok(await self._writer.drop(covered, reached), "trim")
        for name in names:
            async with owner.settled() as may_write:
                if not may_write:
                    return
                page = {name: self._ledger.state.take_page(name)}
                owner.expect_ok(await self._writer.merge(owner.next, page), "merging deltas")

    yield replaced(merge.Merger, "run", run)


@mutation
def loaded_deltas_not_merged() -> Patches:
    """Deltas that a new owner has loaded are deleted without being written as pages."""
    real = ownership.ledger_of

    def ledger_of(*arguments: Any) -> Any:
        made = real(*arguments)
        for each in made.state.datasets.values():
            each._rows._changed_pages[:] = False
        return made

    yield replaced(ownership, "ledger_of", ledger_of)


@mutation
def outbox_not_republished() -> Patches:
    """Outputs that the previous owner may not have published count as published."""

    async def republish(self: Any) -> None:
        kept, self._kept = self._kept, []
        self._published += [name for name, _ in kept]

    yield replaced(outbox.Outbox, "republish", republish)


@mutation
def outbox_entries_deleted_before_published() -> Patches:
    """An outbox entry is deleted from Redis before the broker has it."""
    real = outbox.Outbox._confirmed

    async def confirmed(self: Any, name: str, sent: Sequence[Any]) -> None:
        self._published.append(name)
        await real(self, name, sent)
        self._published = [other for other in self._published if other != name]

    yield replaced(outbox.Outbox, "_confirmed", confirmed)


@mutation
def epochs_not_compared() -> Patches:
    """A producer of odometer records is never fenced."""

    async def begin(self: Any) -> None:
        self._begun = True
        await self._producer.start()

    yield replaced(odometer_publisher.OdometerPublisher, "_begin", begin)
    yield replaced(memory_broker.MemoryFencedProducer, "_check_epoch", lambda _: None)


@mutation
def ownership_not_checked() -> Patches:
    """A producer that starts late fences its successor's, and sends."""

    async def begin(self: Any) -> None:
        self._begun = True
        await self._producer.start()

    yield replaced(odometer_publisher.OdometerPublisher, "_begin", begin)


@mutation
def odometers_sent_again() -> Patches:
    """Odometer records that the topic contains are sent again in a replay."""
    yield replaced(odometer_publisher.UnsentBatch, "since", lambda self, _: self.outputs)


@mutation
def aborted_odometers_accepted() -> Patches:
    """Records of aborted transactions count as sent."""
    real = memory_broker.MemoryFencedProducer.last

    async def last(self: Any) -> Any:
        with replaced(self._topic, "aborted", set()):
            return await real(self)

    yield replaced(memory_broker.MemoryFencedProducer, "last", last)


@mutation
def manifest_sent_before_its_chunks() -> Patches:
    """The manifest of a snapshot is sent before all of its chunks."""

    async def finish(self: Any, builder: Any, unpaged: Any) -> None:
        records, manifest, written = builder.finish(unpaged)
        await self._topic.send([manifest])
        await self._send(records)
        await self._send(builder.emptied(written))
        self._last, self.reached = written, written.manifest.meta.next

    yield replaced(snapshot_writer.SnapshotWriter, "_finish", finish)


@mutation
def chunks_of_the_last_snapshot_overwritten() -> Patches:
    """A new snapshot overwrites the chunks of the previous one."""
    yield replaced(snapshot_writer, "SnapshotBuilder", lambda last: snapshot.SnapshotBuilder(None))


@mutation
def snapshots_not_fenced() -> Patches:
    """A former owner writes a snapshot."""
    real = snapshot_writer.SnapshotWriter._begin

    async def begin(self: Any) -> None:
        with replaced(self._writer, "is_held", yes):
            await real(self)

    yield replaced(snapshot_writer.SnapshotWriter, "_begin", begin)
    yield replaced(memory_broker.MemorySnapshotTopic, "_check_epoch", lambda _: None)
    yield replaced(snapshot_writer, "changed_since", lambda _, next_offset, *log: next_offset > 0)


@mutation
def holes_ignored() -> Patches:
    """Lost records of the log count as control records."""
    real = processor.Processor._missing

    async def lenient(self: Any, first: int, last: int) -> Missing:
        found = await real(self, first, last)
        return Missing.NOTHING_TO_APPLY if found is Missing.HOLE else found

    yield replaced(processor.Processor, "_missing", lenient)


@mutation
def overdue_records_awaited() -> Patches:
    """Overdue records at the end of the log are awaited indefinitely."""
    yield replaced(ownership, "STUCK_AFTER", float("inf"))


@mutation
def gaps_not_seen() -> Patches:
    """A record is applied although earlier ones have not arrived."""

    def take(self: Any, leader_epoch: int) -> Any:
        if self.first is None or self.first.leader_epoch != leader_epoch:
            return None
        record = self._pop()
        self.position = record.offset + 1
        return record

    yield replaced(inbox.Inbox, "gap", None)
    yield replaced(inbox.Inbox, "take", take)


@mutation
def published_late() -> Patches:
    """A process that paused between commit and publishing publishes its outputs."""
    yield replaced(processor, "PUBLISH_WITHIN", float("inf"))
