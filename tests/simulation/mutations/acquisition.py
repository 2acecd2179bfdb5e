"""How an acquisition finds out whose log this is, and whether all of it is there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from streams.ledger import state
from streams.records.digests import HashChain
from streams.worker import continuity, ownership, processor
from tests.doubles import memory_store
from tests.simulation.mutations.registry import Patches, mutation, replaced


def _identity_without(field: str) -> AbstractContextManager[Any]:
    rest = {name: verdict for name, verdict in memory_store._IDENTITY.items() if name != field}
    return replaced(memory_store, "_IDENTITY", rest)


@mutation
def log_not_compared() -> Patches:
    """Neither the id of the topic nor the chain says that it is another log."""
    real = ownership._trouble
    yield _identity_without("topic")
    yield replaced(ownership, "_trouble", lambda o, seen: real(o, replace(seen, topic=o.topic)))
    yield from last_record_not_compared()


@mutation
def topic_not_compared() -> Patches:
    """The id of the topic does not say that it is another log; the chain still does."""
    real = ownership._trouble
    yield _identity_without("topic")
    yield replaced(ownership, "_trouble", lambda o, seen: real(o, replace(seen, topic=o.topic)))


@mutation
def last_record_not_compared() -> Patches:
    """The last record that was applied need not be the one in the log."""

    async def rewritten(*_: Any) -> None:
        return None

    for module in (ownership, processor):
        yield replaced(module, "rewritten", rewritten)


@mutation
def leader_epochs_not_compared() -> Patches:
    """The same bytes at the offset that was applied last are taken for the same record."""
    real = continuity.rewritten

    async def rewritten(chain: HashChain, leader_epoch: int, log: Any, stops: Any) -> Any:
        async def record(partition: int, offset: int) -> Any:
            found = await log.record(partition, offset)
            return found._replace(leader_epoch=leader_epoch)

        lenient = SimpleNamespace(record=record, extent=log.extent)
        return await real(chain, leader_epoch, lenient, stops)

    for module in (ownership, processor):
        yield replaced(module, "rewritten", rewritten)


@mutation
def elections_not_noticed() -> Patches:
    """An owner goes on with records of another leader epoch, whatever became of those before."""

    async def rewritten(*_: Any) -> None:
        return None

    yield replaced(processor, "rewritten", rewritten)


@mutation
def topics_not_watched() -> Patches:
    """What is found at the acquisition is not looked for again."""
    yield replaced(ownership, "_trouble", lambda *_: None)


@mutation
def partitions_not_compared() -> Patches:
    """A worker goes on when the topic has more partitions than its state is of."""
    real = ownership._trouble

    async def bound(_: Any, seen: Any) -> int:
        return int(seen.partitions)

    yield _identity_without("partitions")
    yield replaced(ownership.OwnedPartitions, "_bound_partitions", bound)
    yield replaced(state.PartitionCount, "_moves", lambda *_: None)
    yield replaced(
        ownership, "_trouble", lambda o, seen: real(o, replace(seen, partitions=o.partitions))
    )


@mutation
def ends_of_the_log_not_compared() -> Patches:
    """A state beyond the end of the log, or before its beginning, is gone on from."""
    real = ownership._compare

    async def compare(meta: Any, extent: Any, log: Any, stops: Any) -> None:
        next_offset = meta.next if meta else 0
        extent = type(extent)(min(extent.start, next_offset), max(extent.end, next_offset))
        await real(meta, extent, log, stops)

    yield replaced(ownership, "_compare", compare)


@mutation
def trims_taken_for_another_log() -> Patches:
    """An acquisition does not look again where the log begins when its last record is gone."""
    real = ownership._compare

    async def compare(meta: Any, extent: Any, log: Any, stops: Any) -> None:
        async def before(_: int) -> Any:
            return extent

        await real(meta, extent, SimpleNamespace(record=log.record, extent=before), stops)

    yield replaced(ownership, "_compare", compare)


@mutation
def resumed_unseen() -> Patches:
    """After a rebalance the memory is kept, whoever has owned the partition meanwhile."""
    yield replaced(ownership, "_is_unchanged", lambda held, _: held.can_resume)
