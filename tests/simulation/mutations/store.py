"""Mutations of guarded writes and of the checks of stored state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from streams.store import layout, stored_state, writer
from streams.store.store_port import Guard, Verdict
from tests.doubles import memory_store
from tests.simulation.mutations.registry import Patches, mutation, replaced


def _guarded_less(change: Callable[[Any, Guard], Guard]) -> AbstractContextManager[Any]:
    real = memory_store._refusal
    return replaced(memory_store, "_refusal", lambda kept, guard: real(kept, change(kept, guard)))


def _with_version_of(kept: Any, guard: Guard) -> Guard:
    return replace(guard, version=int(kept.meta.get("version", guard.version)))


def _with_owner_of(kept: Any, guard: Guard) -> Guard:
    return replace(guard, owner=kept.meta.get("owner", guard.owner))


@mutation
def version_not_compared() -> Patches:
    """A worker writes to an older Redis state, if owner and next offset are the same."""
    yield _guarded_less(_with_version_of)


@mutation
def owner_not_compared() -> Patches:
    """A worker writes without a comparison of the owner."""
    yield _guarded_less(_with_owner_of)


@mutation
def neither_owner_nor_version_compared() -> Patches:
    """A former owner can still write."""
    yield _guarded_less(lambda kept, guard: _with_owner_of(kept, _with_version_of(kept, guard)))


@mutation
def heartbeats_not_guarded() -> Patches:
    """A heartbeat does not detect that Redis has changed."""
    real = writer.PartitionWriter.beat

    async def beat(self: Any, pulse: bytes, summary: bytes) -> Verdict:
        await real(self, pulse, summary)
        return Verdict.OK

    yield replaced(writer.PartitionWriter, "beat", beat)


@mutation
def counts_not_compared() -> Patches:
    """State with a missing key is accepted."""
    yield replaced(memory_store.Contents, "is_counted", lambda _: True)
    real = stored_state.verified

    def verified(fields: Mapping[str, str], pages: Any, changes: Any, kept: Any) -> Any:
        counted = {"pages": len(pages), "changes": len(changes), "outbox": len(kept)}
        return real({**fields, **{k: str(v) for k, v in counted.items()}}, pages, changes, kept)

    yield replaced(memory_store, "verified", verified)


@mutation
def digest_not_compared() -> Patches:
    """Pages that differ from the last written ones are accepted."""

    class Whatever(int):
        def __eq__(self, _: object) -> bool:
            return True

        def __ne__(self, _: object) -> bool:
            return False

        __hash__ = int.__hash__

    yield replaced(stored_state, "digest_of", lambda hashes: Whatever(0))


@mutation
def entries_not_compared_with_their_digests() -> Patches:
    """Deltas and outbox entries of which a bit was flipped are accepted."""
    for module in (layout, stored_state):
        yield replaced(module, "without_digest", lambda packed, name="": packed[16:])


@mutation
def meta_not_compared_with_its_digest() -> Patches:
    """A meta of which a bit was flipped is accepted."""
    yield replaced(layout, "is_whole", lambda fields: fields["layout"] == str(layout.LAYOUT))


@mutation
def offset_not_compared() -> Patches:
    """A batch is written at any offset: neither DUPLICATE nor GAP."""
    real = memory_store.MemoryStore.write

    async def write(
        self: Any, *arguments: Any, first: int | None = None, **entries: Any
    ) -> Verdict:
        return await real(self, *arguments, **entries)

    yield _guarded_less(lambda kept, guard: _with_owner_of(kept, _with_version_of(kept, guard)))
    yield replaced(memory_store.MemoryStore, "write", write)
