"""The whole stored state of a partition, read at once and verified.

Pages may be newer than some of the deltas. Such deltas set the same values again, or record that
newer pages have them (``streams.ledger.accounts``). An entry that is missing, older, foreign or
changed in one bit raises ``Damaged``; it is never read as "no user has spent anything".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field

from streams.store.layout import (
    Damaged,
    Meta,
    digest_of,
    hexadecimal,
    outbox_entry_place,
    page_hash,
    page_value,
    unpack_change,
    without_digest,
)


@dataclass(frozen=True)
class StoredState:
    """The stored state of a partition, as of one time; verified."""

    meta: Meta
    fields: dict[str, str]  # the same as text
    pages: dict[str, bytes]
    changes: list[bytes]  # in the order of the log
    changes_bytes: int
    outbox: list[tuple[str, bytes]]  # name -> packed outputs, in the order of the log
    hashes: dict[str, int]  # of the pages as they are stored
    pulse: bytes = field(default=b"", compare=False)  # the last one of any owner; not state

    @property
    def next(self) -> int:
        """The offset to apply next."""
        return self.meta.next


def verified(
    fields: Mapping[str, str],
    pages: Mapping[str, bytes],
    changes: Sequence[bytes],
    outbox: Mapping[str, bytes],
) -> StoredState:
    """Return the verified state from the contents of each key, or raise ``Damaged``."""
    meta = Meta.of(fields)
    check_counts(meta, pages, changes, outbox)
    hashes = {name: page_hash(name, page) for name, page in pages.items()}
    if hexadecimal(digest_of(hashes.values())) != meta.digest:
        raise Damaged("the pages are not those that were written last: their digest differs")
    return StoredState(
        meta=meta,
        fields=dict(fields),
        pages={name: page_value(page) for name, page in pages.items()},
        changes=joined(meta, changes),
        changes_bytes=sum(map(len, changes)),
        outbox=opened(outbox),
        hashes=hashes,
    )


def check_counts(meta: Meta, pages: Sized, changes: Sized, outbox: Sized) -> None:
    """Raise ``Damaged`` unless all entries are there; the digest does not cover their numbers."""
    for name, kept, counted in (
        ("pages", len(pages), meta.pages),
        ("changes", len(changes), meta.changes),
        ("outbox", len(outbox), meta.outbox),
    ):
        if kept != counted:
            raise Damaged(f"{name} has {kept} entries, but {counted} were written")


def opened(outbox: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """Return the outbox entries in the order of the log, if each is what was written."""
    names = sorted(outbox, key=outbox_entry_place)
    return [(name, without_digest(outbox[name], name)) for name in names]


def joined(meta: Meta, entries: Sequence[bytes]) -> list[bytes]:
    """Return the packed deltas, if they lead from ``since`` to ``next`` without a gap."""
    whole: list[bytes] = []
    parts: list[bytes] = []
    reached = meta.since
    for entry in entries:
        change = unpack_change(entry)
        if change.first != reached or change.part != len(parts) or change.next <= change.first:
            raise Damaged(
                f"changes has part {change.part} of offset {change.first}, but part "
                f"{len(parts)} of offset {reached} has to follow"
            )
        parts.append(change.packed)
        if len(parts) == change.parts:
            whole.append(b"".join(parts))
            parts, reached = [], change.next
    if parts or reached != meta.next:
        raise Damaged(f"changes lead to offset {reached} instead of {meta.next}")
    return whole
