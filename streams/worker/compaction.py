"""Moves state changes into pages, in the background, some at a time.

What always holds:

- A page is written only while memory and Redis agree (``Quiet``): it never holds what was not
  committed.
- Changes are dropped last, and only those that were there when the compaction began. One that
  stops half-way does no harm: the changes that are still there set the same values again, or know
  that they are in the newer pages.
- Pages are deleted for what is no longer there, a dataset that was taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from streams.ledger.ledger import Ledger
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
    """The background work on one partition."""

    def __init__(self, ledger: Ledger, holding: Holding, quiet: Quiet, expect_ok: Expect) -> None:
        self._ledger = ledger
        self._holding = holding
        self._quiet = quiet
        self._expect_ok = expect_ok

    def is_due(self) -> bool:
        """Whether it is worth it by now."""
        users = sum(len(accounts) for accounts in self._ledger.datasets.values())
        large = max(COMPACT_BYTES, COMPACT_RATIO * BYTES_PER_USER * users)
        backlog = self._holding.backlog
        if self._ledger.forgotten.is_uncompacted:
            return True  # changes and pages still have the id of somebody who was forgotten
        return backlog.bytes > large or backlog.entries > COMPACT_ENTRIES

    async def run(self, position: Callable[[], int]) -> None:
        """Write what changed as pages, then drop the changes that led to it.

        Args:
            position: the offset up to which Redis has everything, now.
        """
        async with self._quiet() as may_write:
            if not may_write:
                return
            covered, reached = self._holding.backlog, position()
            names = self._ledger.uncompacted()
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

    def _take_pages(self, behind: deque[str]) -> dict[str, bytes | None]:
        """Some of these pages as they are now."""
        pages: dict[str, bytes | None] = {}
        size = 0
        while behind and size < WRITE_BYTES:
            name = behind.popleft()
            pages[name] = page = self._ledger.take_page(name)
            size += len(name) + len(page or b"")
        return pages
