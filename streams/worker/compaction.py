"""Merges state changes into pages, in the background, some at a time.

What always holds:

- A page is written only while memory and Redis agree (``Quiet``): it never holds what was not
  committed.
- Changes are dropped last, and only those that were there when the merge began. A merge that stops
  half-way does no harm: the changes that are still there set the same values again, or know that
  they are in the newer pages.
- Pages of entries that are gone are deleted.

Until changes are merged, pages hold what was there before them. So the erasure of a user is merged
at once. The last decision of an open run may still name that user: a trainer can ask for it again.
When such a run moves on, that is merged at once, too. The state does not know the id any more, so
every run counts that had a decision when a user was erased.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from streams.ledger.ledger import Ledger
from streams.ledger.runs import RunState
from streams.ledger.tracked import Address
from streams.store.holding import Holding
from streams.store.port import Verdict

COMPACT_BYTES = 16 * 1024 * 1024
"""Changes are compacted when there are this many bytes of them, and ..."""
COMPACT_RATIO = 2
"""... this many times the size of the pages, so that it stays cheaper than committing."""
BYTES_PER_USER = 16
COMPACT_ENTRIES = 4096
"""Or when there are this many, however small: each is read when the partition is claimed."""

WRITE_BYTES = 1024 * 1024
"""A write takes no further page from this size on. Decisions wait for it; and under load it waits
for them, a second or more, so that one page at a time would take minutes for a million users."""

Quiet = Callable[[], AbstractAsyncContextManager[bool]]
"""Enters when memory and Redis agree, and keeps it so; false: nothing may be written any more."""
Expect = Callable[[Verdict, str], None]


class Compaction:
    """The background work on one partition, for as long as one claim lasts."""

    def __init__(self, ledger: Ledger, holding: Holding, quiet: Quiet, expect_ok: Expect) -> None:
        self._ledger = ledger
        self._holding = holding
        self._quiet = quiet
        self._expect_ok = expect_ok
        self._decided: dict[Address, RunState | None] = {}
        """Runs as they were when pages may have got decisions that name erased users."""
        if ledger.forgotten:  # what the owner before knew of that, nobody knows
            self._decided = dict.fromkeys(ledger.runs)

    def is_due(self) -> bool:
        """Return whether a merge is worth its cost by now, or an id has to go."""
        users = sum(len(accounts) for accounts in self._ledger.datasets.values())
        large = max(COMPACT_BYTES, COMPACT_RATIO * BYTES_PER_USER * users)
        backlog = self._holding.backlog
        if self._ledger.forgotten.is_uncompacted or self._moved_on():
            return True
        return backlog.bytes > large or backlog.entries > COMPACT_ENTRIES

    def _moved_on(self) -> bool:
        """Return whether a run has moved on from a decision that may name an erased user."""
        runs = self._ledger.runs
        return any(runs.get(address) is not run for address, run in self._decided.items())

    def _still_decided(self) -> dict[Address, RunState | None]:
        """Return the runs of which pages may name an erased user after a merge that begins now."""
        runs = self._ledger.runs
        if self._ledger.forgotten.is_uncompacted or None in self._decided.values():
            return {address: run for address, run in runs.items() if run.decision}
        return {a: run for a, run in self._decided.items() if runs.get(a) is run}

    async def run(self, position: Callable[[], int]) -> None:
        """Write what changed as pages, then drop the changes that led to it.

        Args:
            position: the offset up to which Redis has everything, now.
        """
        async with self._quiet() as may_write:
            if not may_write:
                return
            covered, reached = self._holding.backlog, position()
            names, decided = self._ledger.uncompacted(), self._still_decided()
        behind = deque(names)
        while behind:
            async with self._quiet() as may_write:
                if not may_write:
                    return
                pages = self._take_pages(behind)
                self._expect_ok(await self._holding.compact(position(), pages), "compaction")
        async with self._quiet() as may_write:
            if may_write:
                self._expect_ok(await self._holding.drop(covered, reached), "trim")
                self._decided = decided

    def _take_pages(self, behind: deque[str]) -> dict[str, bytes | None]:
        """Some of these pages as they are now."""
        pages: dict[str, bytes | None] = {}
        size = 0
        while behind and size < WRITE_BYTES:
            name = behind.popleft()
            pages[name] = page = self._ledger.take_page(name)
            size += len(name) + len(page or b"")
        return pages
