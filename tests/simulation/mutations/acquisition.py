"""Mutations of the checks at an acquisition: whether the log is the same and complete."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from streams.kafka.results import Extent
from streams.ledger import state
from streams.records.digests import HashChain
from streams.store.layout import Identity
from streams.store.misfit import Suspension, Suspensions
from streams.store.store_port import SuspensionReason
from streams.worker import continuity, ownership, processor
from tests.doubles import memory_store
from tests.simulation.mutations.registry import Patches, mutation, replaced


def _identity_without(field: str, reason: SuspensionReason) -> Patches:
    others = [name for name in Identity._fields if name != field]
    real = Suspensions.misfit

    def misfit(self: Suspensions, *state: Any) -> Suspension | None:
        found = real(self, *state)
        return None if found and found.reason is reason else found

    yield replaced(memory_store, "Identity", SimpleNamespace(_fields=others))
    yield replaced(Suspensions, "misfit", misfit)


@mutation
def layouts_not_compared() -> Patches:
    """A release continues a state that another release wrote by other rules."""
    yield from _identity_without("layout", SuspensionReason.OTHER_LAYOUT)


@mutation
def log_not_compared() -> Patches:
    """Neither the topic id nor the hash chain detects a replaced log."""
    yield from _identity_without("topic", SuspensionReason.OTHER_LOG)
    yield from last_record_not_compared()


@mutation
def topic_not_compared() -> Patches:
    """The topic id does not detect a replaced log; the hash chain still does."""
    yield from _identity_without("topic", SuspensionReason.OTHER_LOG)


@mutation
def last_record_not_compared() -> Patches:
    """The last applied record is not compared with the log."""

    async def rewritten(*_: Any) -> None:
        return None

    for module in (continuity, ownership, processor):
        yield replaced(module, "rewritten", rewritten)


@mutation
def leader_epochs_not_compared() -> Patches:
    """Equal bytes at the last applied offset count as the same record in any leader epoch."""
    real = continuity.rewritten

    async def rewritten(chain: HashChain, leader_epoch: int, log: Any, stops: Any) -> Any:
        async def record(partition: int, offset: int) -> Any:
            found = await log.record(partition, offset)
            return found and found._replace(leader_epoch=leader_epoch)

        lenient = SimpleNamespace(record=record, extent=log.extent)
        return await real(chain, leader_epoch, lenient, stops)

    for module in (continuity, ownership, processor):
        yield replaced(module, "rewritten", rewritten)


@mutation
def elections_not_noticed() -> Patches:
    """An owner applies records of a new leader epoch without a check of the earlier ones."""

    async def rewritten(*_: Any) -> None:
        return None

    yield replaced(processor, "rewritten", rewritten)


@mutation
def topics_not_watched() -> Patches:
    """The checks of the acquisition are not repeated later."""
    yield replaced(ownership, "_trouble", lambda *_: None)


@mutation
def partitions_not_compared() -> Patches:
    """A worker continues although the topic has more partitions than its state."""

    async def bound(_: Any, seen: Any) -> tuple[str, bool]:
        return str(seen.partitions), True

    yield from _identity_without("partitions", SuspensionReason.OTHER_PARTITIONS)
    yield replaced(ownership.OwnedPartitions, "_bound_partitions", bound)
    yield replaced(state.PartitionCount, "_moves", lambda *_: None)


@mutation
def ends_of_the_log_not_compared() -> Patches:
    """A state beyond the end of the log, or before its start, is accepted."""
    yield replaced(Suspensions, "out_of_log", lambda *_: None)


@mutation
def trims_taken_for_another_log() -> Patches:
    """An acquisition does not read the start of the log again if the last record is missing."""
    real = ownership.check_continues

    async def check(meta: Any, log: Any, stops: Suspensions) -> None:
        async def before(_: int) -> Extent:
            return Extent(stops.log_start, stops.log_end)

        await real(meta, SimpleNamespace(record=log.record, extent=before), stops)

    yield replaced(ownership, "check_continues", check)


@mutation
def memory_kept_after_another_owner() -> Patches:
    """After a rebalance a worker keeps its memory although another worker owned the partition."""
    yield replaced(ownership, "_is_unchanged", lambda held, _: held.can_resume)
