"""Offsets at which no record came, and whether they may be passed over.

What always holds: the intake goes on behind a gap only if the log proves that there is nothing to
apply in it, control records of transactions for example. Records that the log has and that did not
come end the worker (at the end of the log, after a while): fetching begins anew. What the log does
not have is a hole, and a stop.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from streams.worker.intake import Intake
from streams.worker.ports import End, Missing
from streams.worker.stops import Stop, Stops

logger = logging.getLogger("turnstile.worker")

OVERDUE_AFTER = 30.0
"""Seconds that the last records of the log may be on their way while nothing comes."""

Proof = Callable[[int, int], Awaitable[Missing]]
"""What the log has at offsets, first and end, at which nothing came."""


class Gaps:
    """Of one partition."""

    def __init__(self, intake: Intake, proof: Proof, stops: Stops, end: End) -> None:
        self._intake = intake
        self._proof = proof
        self._stops = stops
        self._end = end

    async def before(self, found: int) -> Stop | None:
        """Pass over the gap before an offset, that of the record that waits first; or stop."""
        expected, partition = self._intake.position, self._stops.partition
        missing = await self._proof(expected, found)
        if missing is Missing.RECORDS:
            self._end(f"partition {partition}: {found} came where {expected} was expected")
        if missing is Missing.HOLE:
            return self._stops.hole(expected, found)
        self._pass_to(found)
        return None

    async def at_the_end(self, end: int, waited: float) -> bool:
        """Pass over what is left up to the end of the log, if nothing waits; whether it did.

        Args:
            end: of the log.
            waited: for how many seconds nothing has come.
        """
        first = self._intake.position
        if len(self._intake) or first >= end:
            return False
        missing = await self._proof(first, end)
        if len(self._intake):
            return False
        if missing is Missing.RECORDS and waited >= OVERDUE_AFTER:
            self._end(f"partition {self._stops.partition}: {first} does not come from the log")
        if missing is not Missing.NOTHING_TO_APPLY:
            return False
        self._pass_to(end)
        return True

    def _pass_to(self, offset: int) -> None:
        logger.info(
            "partition %d: offsets %d to %d hold nothing to apply, control records of "
            "transactions for example, and are passed over",
            self._stops.partition,
            self._intake.position,
            offset - 1,
        )
        self._intake.pass_to(offset)
