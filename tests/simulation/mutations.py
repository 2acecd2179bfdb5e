"""The guarantees of the service, each taken out of the real code, to see that the simulation
misses it.

``python -m tests.simulation --mutations`` says for each which seed found it, and after how many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from streams.ledger import charge_checks, ledger, runs, state
from streams.schemas import VERSION, CreateDataset, DatasetCreated, encode
from streams.sdk import datasets, opening, run
from streams.store import holding, memory_store, snapshot
from streams.store.port import Verdict
from streams.worker import (
    checkpoints,
    compaction,
    gaps,
    intake,
    memory_broker,
    outbox,
    partitions,
    processor,
)
from streams.worker.ports import Missing
from streams.worker.processor import State

Patches = Iterator[AbstractContextManager[Any]]
MUTATIONS: dict[str, Callable[[], Patches]] = {}


def mutation(work: Callable[[], Patches]) -> Callable[[], Patches]:
    MUTATIONS[work.__name__.replace("_", "-")] = work
    return work


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The code without one of its guarantees."""
    with ExitStack() as stack:
        for change in MUTATIONS[name]():
            stack.enter_context(change)
        yield


def _set(target: Any, name: str, value: Any) -> AbstractContextManager[Any]:
    return patch.object(target, name, value)


# --- the store ----------------------------------------------------------------------------------


def _refusal_without(*verdicts: Verdict) -> AbstractContextManager[Any]:
    """Writes are made although one of the checks fails; the version follows what is there."""
    real = memory_store._refusal

    def refusal(kept: Any, guard: Any) -> Verdict | None:
        if Verdict.FENCED in verdicts:
            guard = msgspec.structs.replace if False else guard
        for _ in range(3):
            verdict = real(kept, guard)
            if verdict not in verdicts:
                return verdict
            if verdict is Verdict.FENCED:
                guard = type(guard)(guard.partition, kept.meta.get("owner"), guard.version)
            elif verdict is Verdict.REWOUND:
                guard = type(guard)(guard.partition, guard.owner, int(kept.meta["version"]))
            else:
                return None
        return None

    return _set(memory_store, "_refusal", refusal)


@mutation
def version_not_compared() -> Patches:
    """A store that went back is written to, if owner and next offset fit."""
    yield _refusal_without(Verdict.REWOUND)


@mutation
def owner_not_compared() -> Patches:
    """Whoever owned a partition goes on writing."""
    yield _refusal_without(Verdict.FENCED, Verdict.REWOUND)


@mutation
def counts_not_compared() -> Patches:
    """State of which a key is gone is taken for whole."""
    yield _set(memory_store.Contents, "is_counted", lambda _: True)
    real = snapshot.verified

    def verified(fields: Mapping[str, str], pages: Any, changes: Any, outbox: Any) -> Any:
        counted = {"pages": len(pages), "changes": len(changes), "outbox": len(outbox)}
        return real({**fields, **{k: str(v) for k, v in counted.items()}}, pages, changes, outbox)

    yield _set(memory_store, "verified", verified)


@mutation
def offset_not_compared() -> Patches:
    """A batch is written wherever the store is: no DUPLICATE, no GAP."""
    real = memory_store.MemoryStore.commit

    async def commit(self: Any, guard: Any, batch: Any) -> Verdict:
        meta = self.contents(guard.partition).meta
        if memory_store._refusal(self.contents(guard.partition), guard) is None:
            meta["next"] = str(batch.first)
        return await real(self, guard, batch)

    yield _set(memory_store.MemoryStore, "commit", commit)
