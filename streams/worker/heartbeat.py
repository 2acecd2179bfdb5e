"""Shows that a partition is decided, and how far it is.

A beat is guarded as a write is: an owner with nothing to write finds out by it that Redis went
back, was emptied, or belongs to somebody else.
"""

from __future__ import annotations

import asyncio

from streams.ledger.forgotten import ErasureKeys
from streams.schemas import encode
from streams.store.vital_signs import Inventory, Pulse
from streams.worker.processor import Processor

BEAT_EVERY = 2.0  # seconds
SUMMARY_SHARE = 0.01
"""Of the time at most, summaries are made: with many users they take longer than all the rest."""


class Heartbeat:
    """Of one partition, for as long as one claim lasts.

    Attributes:
        end: where the log ended at the last beat, if that was known.
    """

    def __init__(self, processor: Processor) -> None:
        self.end: int | None = None
        self._processor = processor
        self._public_key = ErasureKeys().first
        self._time = asyncio.get_running_loop().time
        self._caught_up_at = self._time()
        self._summarised: int | None = None  # the last record in the last summary
        self._not_before = 0.0

    @property
    def waiting(self) -> float:
        """Seconds for which records have been waiting and none was applied."""
        now, processor = self._time(), self._processor
        if self.end is None or processor.next >= self.end:
            self._caught_up_at = now
        return max(0.0, now - max(self._caught_up_at, processor.moved_at))

    async def beat(self, end: int | None) -> None:
        """Show how far the partition is; pass over what is at its end and holds nothing.

        Args:
            end: where its log ends, as far as is known.
        """
        processor = self._processor
        async with processor.quiet() as is_running:
            if not is_running:
                return
            now = self._time()
            self.end = end
            waiting = self.waiting
            pulse = Pulse(
                processor.next,
                end,
                waiting,
                processor.imaging.reached,
                (self._public_key,) in processor.ledger.erasure,
            )
            verdict = await processor.holding.beat(encode(pulse), self._summary(now))
            processor.expect_ok(verdict, "the heartbeat")
        if end is not None and waiting >= BEAT_EVERY:
            await processor.pass_tail(end, waiting)

    def _summary(self, now: float) -> bytes:
        """What the state holds; empty if it was shown already, or too recently."""
        last = self._processor.ledger.chain.last
        if last == self._summarised or now < self._not_before:
            return b""
        packed = encode(Inventory(last, self._processor.ledger.summary()))
        self._summarised = last
        self._not_before = now + (self._time() - now) / SUMMARY_SHARE
        return packed
