"""Merges deltas into pages, in the background, a few pages at a time.

Invariants:

- A page is written only while memory and Redis agree (``Owner.settled``), so it never holds
  uncommitted state.
- Deltas are dropped last, and only those that existed when the merge began. An interrupted merge
  does no harm: the remaining deltas set the same values again, or record that newer pages have
  them.
- Pages of deleted entries are deleted.

Until deltas are merged, the pages hold the previous values. So the erasure of a user is merged at
once. The last decision of an open run may still name that user, because a trainer can ask for it
again. When such a run moves on, the worker merges at once, too. The state no longer knows the id,
so this concerns every run that had a decision when a user was erased.
"""

from __future__ import annotations

from collections import deque

from streams.ledger.run_states import RunState
from streams.ledger.tracked import Address
from streams.worker.ports import Owner

MERGE_BYTES = 16 * 1024 * 1024
"""Deltas are merged when they have at least this many bytes, and at least ``MERGE_RATIO`` times
the size of the pages, so that merging stays cheaper than committing."""
MERGE_RATIO = 2
BYTES_PER_USER = 16
MERGE_ENTRIES = 4096
"""Deltas are also merged when there are this many, however small: a new owner reads all of them."""

WRITE_BYTES = 1024 * 1024
"""A write of at least this size takes no further page. Decisions wait for the write. Under load the
write waits for decisions, a second or more, so writing one page at a time would take minutes for a
million users."""


class Merger:
    """Merges the deltas of one partition while its ownership lasts."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._ledger, self._writer = owner.ledger, owner.writer
        self._decided: dict[Address, RunState | None] = {}
        """Runs as they were when pages may have received decisions that name erased users."""
        if self._ledger.state.erased:  # the previous owner's knowledge of such runs is lost
            self._decided = dict.fromkeys(self._ledger.state.runs)

    def is_due(self) -> bool:
        """Return whether a merge is worth its cost now, or has to remove an erased id."""
        users = sum(len(accounts) for accounts in self._ledger.state.datasets.values())
        large = max(MERGE_BYTES, MERGE_RATIO * BYTES_PER_USER * users)
        backlog = self._writer.backlog
        if self._ledger.state.has_unmerged_erasures or self._moved_on():
            return True
        return backlog.bytes > large or backlog.entries > MERGE_ENTRIES

    def _moved_on(self) -> bool:
        """Return whether a run has moved on from a decision that may name an erased user."""
        runs = self._ledger.state.runs
        return any(runs.get(address) is not run for address, run in self._decided.items())

    def _still_decided(self) -> dict[Address, RunState | None]:
        """Return the runs of which pages may name an erased user after a merge that begins now."""
        runs = self._ledger.state.runs
        if self._ledger.state.erased.is_unmerged or None in self._decided.values():
            return {address: run for address, run in runs.items() if run.decision}
        return {a: run for a, run in self._decided.items() if runs.get(a) is run}

    async def run(self) -> None:
        """Write the changed pages, then drop the deltas that led to them."""
        owner = self._owner
        async with owner.settled() as may_write:
            if not may_write:
                return
            covered, reached = self._writer.backlog, owner.next
            names, decided = self._ledger.state.unmerged(), self._still_decided()
        behind = deque(names)
        while behind:
            async with owner.settled() as may_write:
                if not may_write:
                    return
                pages = self._take_pages(behind)
                verdict = await self._writer.merge(owner.next, pages)
                owner.expect_ok(verdict, "merging deltas")
        async with owner.settled() as may_write:
            if may_write:
                owner.expect_ok(await self._writer.drop(covered, reached), "dropping deltas")
                self._decided = decided

    def _take_pages(self, behind: deque[str]) -> dict[str, bytes | None]:
        """Return some of these pages with their present content."""
        pages: dict[str, bytes | None] = {}
        size = 0
        while behind and size < WRITE_BYTES:
            name = behind.popleft()
            pages[name] = page = self._ledger.state.take_page(name)
            size += len(name) + len(page or b"")
        return pages
