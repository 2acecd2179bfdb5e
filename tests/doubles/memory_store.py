"""A store in memory, with the verdicts of ``redis_store``.

Each method makes the checks of the Lua script that it replaces, in the same order, and waits for
nothing. ``lose`` and ``restore`` bypass all checks, as faults of a Redis do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from streams.store.layout import (
    Identity,
    digest_of,
    fields_of_nothing,
    hexadecimal,
    page_hash,
    with_meta_digest,
)
from streams.store.store_port import (
    NO_ENTRIES,
    Acquired,
    Glance,
    Guard,
    Store,
    Unpaged,
    Verdict,
)
from streams.store.stored_state import StoredState, verified


@dataclass
class Contents:
    """The keys of one partition, as in ``layout``; an empty one does not exist."""

    meta: dict[str, str] = field(default_factory=dict)
    changes: list[bytes] = field(default_factory=list)
    pages: dict[str, bytes] = field(default_factory=dict)
    outbox: dict[str, bytes] = field(default_factory=dict)
    alive: dict[str, bytes] = field(default_factory=dict)
    suspended: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Contents:
        """Return an independent copy."""
        return Contents(*(getattr(self, key.name).copy() for key in fields(self)))

    def seal(self, **changed: str) -> None:
        """Give meta other fields, and the counts and digests of the contents."""
        counts = {name: str(len(getattr(self, name))) for name in ("changes", "pages", "outbox")}
        digest = digest_of(page_hash(name, page) for name, page in self.pages.items())
        found = {**counts, "digest": hexadecimal(digest), **changed}
        self.meta = with_meta_digest({**self.meta, **found})

    def is_counted(self) -> bool:
        """Return whether all counts in the meta are those of the contents."""
        return all(
            self.meta.get(name) == str(len(kept))
            for name, kept in (
                ("changes", self.changes),
                ("pages", self.pages),
                ("outbox", self.outbox),
            )
        )


def meta_of(topic: bytes = bytes(16), partitions: int = 1, **changed: str) -> dict[str, str]:
    """Return the meta of a partition without entries, with these fields."""
    kept = Contents({**fields_of_nothing(topic, 0, partitions), "owner": "me"})
    kept.seal(**changed)
    return kept.meta


class MemoryStore(Store):
    """A store that lives as long as the process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[int, Contents] = {}

    def copy(self) -> Mapping[int, Contents]:
        """Return a copy of all partitions for ``restore``."""
        return {partition: kept.copy() for partition, kept in self._kept.items()}

    def restore(self, copied: Mapping[int, Contents]) -> None:
        """Replace all partitions by a copy, which can be restored repeatedly."""
        self._kept = {partition: kept.copy() for partition, kept in copied.items()}

    def lose(self, partition: int, key: str) -> None:
        """Delete one key of a partition, by its field in ``Contents``."""
        getattr(self.contents(partition), key).clear()

    def contents(self, partition: int) -> Contents:
        return self._kept.setdefault(partition, Contents())

    async def acquire(
        self,
        partition: int,
        owner: str,
        topic: bytes,
        partitions: int,
        discarding: Mapping[str, str] | None = None,
    ) -> Acquired:
        kept = self.contents(partition)
        if discarding is not None:
            for name, verdict in (("owner", Verdict.FENCED), ("version", Verdict.REWOUND)):
                if kept.meta.get(name, "") != discarding.get(name, ""):
                    return Acquired(verdict, {})
            kept = self._kept[partition] = Contents(alive=kept.alive, suspended=kept.suspended)
        before = dict(kept.meta)
        nothing = fields_of_nothing(topic, partition, partitions)
        if not before:
            if kept.changes or kept.pages or kept.outbox:
                return Acquired(Verdict.DAMAGED, before)
            kept.meta = nothing
        else:
            if any(before.get(name) != nothing[name] for name in Identity._fields):
                return Acquired(Verdict.MISFIT, before)
            if not (kept.is_counted() and before.get("version", "").isdecimal()):
                return Acquired(Verdict.DAMAGED, before)
        kept.meta["owner"] = owner
        _move_version(kept)
        return Acquired(Verdict.OK, before)

    async def load(self, partition: int) -> StoredState | None:
        kept = self.contents(partition)
        if not kept.meta:
            return None
        stored = verified(kept.meta, kept.pages, kept.changes, kept.outbox)
        return replace(stored, pulse=kept.alive.get("pulse", b""))

    async def glance(self, partition: int) -> Glance:
        kept = self.contents(partition)
        return Glance(
            now=int(self._clock()),
            meta=dict(kept.meta),
            seen=int(seen) if (seen := kept.alive.get("time", b"")).isdigit() else None,
            pulse=kept.alive.get("pulse", b""),
            summary=kept.alive.get("summary", b""),
            suspended=dict(kept.suspended),
        )

    async def write(
        self,
        guard: Guard,
        fields: Mapping[str, str],
        *,
        first: int | None = None,
        replaces: bool = False,
        dropped: int = 0,
        changes: Sequence[bytes] = (),
        pages: Mapping[str, bytes] = NO_ENTRIES,
        deleted: Sequence[str] = (),
        outbox: Mapping[str, bytes] = NO_ENTRIES,
        published: Sequence[str] = (),
    ) -> Verdict:
        kept = self.contents(guard.partition)
        if refused := _refusal(kept, guard):
            return refused
        if first is not None:
            if not kept.meta.get("next", "").isdecimal():
                return Verdict.DAMAGED
            if first != (expected := int(kept.meta["next"])):
                return Verdict.DUPLICATE if first < expected else Verdict.GAP
        if replaces:
            kept.changes, kept.pages, kept.outbox = [], {}, {}
        del kept.changes[:dropped]
        kept.changes += changes
        kept.pages |= pages
        kept.outbox |= outbox
        _delete(kept.pages, deleted)
        _delete(kept.outbox, published)
        kept.meta |= fields
        for name in ("changes", "pages", "outbox"):
            kept.meta[name] = str(len(getattr(kept, name)))
        _move_version(kept)
        return Verdict.OK

    async def unpaged(self, partition: int) -> Unpaged:
        kept = self.contents(partition)
        return Unpaged(dict(kept.meta), list(kept.changes), dict(kept.outbox))

    async def read_pages(self, partition: int, names: Sequence[str]) -> dict[str, bytes]:
        kept = self.contents(partition).pages
        return {name: kept[name] for name in names if name in kept}

    async def beat(self, guard: Guard, pulse: bytes, summary: bytes) -> Verdict:
        kept = self.contents(guard.partition)
        if refused := _refusal(kept, guard):
            return refused
        kept.alive |= {"time": b"%d" % int(self._clock()), "pulse": pulse}
        if summary:
            kept.alive["summary"] = summary
        kept.suspended = {}
        return Verdict.OK

    async def keep_suspension(self, partition: int, reason: str, problem: str, remedy: str) -> None:
        self.contents(partition).suspended = {
            "reason": reason,
            "problem": problem,
            "remedy": remedy,
            "time": str(int(self._clock())),
        }


def _refusal(kept: Contents, guard: Guard) -> Verdict | None:
    """Return why the owner must not write, or None if it may."""
    if kept.meta.get("owner") != guard.owner:
        return Verdict.FENCED
    if kept.meta.get("version") != str(guard.version):
        return Verdict.REWOUND
    return None if kept.is_counted() else Verdict.DAMAGED


def _move_version(kept: Contents) -> None:
    kept.meta["version"] = str(int(kept.meta["version"]) + 1)


def _delete(entries: dict[str, bytes], names: Sequence[str]) -> None:
    for name in names:
        entries.pop(name, None)
