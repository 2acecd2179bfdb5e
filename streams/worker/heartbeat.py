"""Reports that a partition is decided, and its progress.

A heartbeat is guarded like a write. So an owner with nothing to write detects that Redis was
rolled back or emptied, or that another worker owns the partition.
"""

from __future__ import annotations

import asyncio

from streams.ledger.erasure import ErasureKeys
from streams.store.store_port import Inventory, Pulse, pack_report
from streams.worker.ports import Owner
from streams.worker.snapshot_writer import SnapshotWriter

BEAT_EVERY = 2.0  # seconds
SUMMARY_SHARE = 0.01
"""The largest share of time spent on summaries, which are the slowest part with many users."""


class Heartbeat:
    """The heartbeat of one partition while its ownership lasts.

    Attributes:
        end: the end of the log at the last beat, if it was known.
    """

    def __init__(self, owner: Owner, snapshots: SnapshotWriter) -> None:
        self.end: int | None = None
        self._owner, self._snapshots = owner, snapshots
        self._public_key = ErasureKeys().newest
        self._time = asyncio.get_running_loop().time
        self._caught_up_at = self._time()
        self._summarised: int | None = None  # the last applied record in the last summary
        self._not_before = 0.0

    @property
    def waiting(self) -> float:
        """The seconds for which records have been waiting and none was applied."""
        now, owner = self._time(), self._owner
        if self.end is None or owner.next >= self.end:
            self._caught_up_at = now
        return max(0.0, now - max(self._caught_up_at, owner.moved_at))

    async def beat(self, end: int | None) -> None:
        """Report the progress, and skip to the end of the log, if known, if nothing is to apply."""
        owner = self._owner
        self.end = end  # before the lock, which a batch that hangs holds
        async with owner.settled() as is_running:
            if not is_running:
                return
            now = self._time()
            waiting = self.waiting
            pulse = Pulse(
                owner.next,
                end,
                waiting,
                self._snapshots.reached,
                (self._public_key,) in owner.ledger.state.erasure,
            )
            verdict = await owner.writer.beat(pack_report(pulse), self._summary(now))
            owner.expect_ok(verdict, "the heartbeat")
        if end is not None and waiting >= BEAT_EVERY:
            await owner.pass_tail(end)

    def _summary(self, now: float) -> bytes:
        """Return the packed summary of the state; empty if it is unchanged or was reported
        recently.
        """
        last = self._owner.ledger.chain.last
        if last == self._summarised or now < self._not_before:
            return b""
        packed = pack_report(Inventory(last, self._owner.ledger.summary()))
        self._summarised = last
        self._not_before = now + (self._time() - now) / SUMMARY_SHARE
        return packed
