"""Skips offsets at which no record arrived, if the log proves that they hold nothing to apply.

Offsets may hold nothing to apply because they have control records of transactions, for example.
Records that the log has and that did not arrive end the worker (at the end of the log, only after
a while), so that fetching restarts. Offsets that the log does not have are a hole, which suspends
the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from streams.kafka.results import Missing
from streams.worker.inbox import Inbox
from streams.worker.ports import End
from streams.worker.suspensions import Suspension, Suspensions

logger = logging.getLogger("turnstile.worker")

OVERDUE_AFTER = 30.0
"""Seconds after which the last records of the log count as not delivered."""

Proof = Callable[[int, int], Awaitable[Missing]]
"""Returns what the log holds at the offsets first to end - 1, at which no record arrived."""


class Gaps:
    """Checks and skips the gaps of one partition."""

    def __init__(self, inbox: Inbox, proof: Proof, suspensions: Suspensions, end: End) -> None:
        self._intake = inbox
        self._proof = proof
        self._suspensions = suspensions
        self._end = end

    async def before(self, found: int) -> Suspension | None:
        """Skip the gap before the first waiting record.

        Args:
            found: the offset of that record.

        Returns:
            Why the partition has to be suspended, if it has to.
        """
        expected, partition = self._intake.position, self._suspensions.partition
        missing = await self._proof(expected, found)
        if missing is Missing.RECORDS:
            self._end(
                f"partition {partition}: the record at offset {found} arrived where offset "
                f"{expected} was expected"
            )
        if missing is Missing.HOLE:
            return self._suspensions.hole(expected, found)
        self._pass_to(found)
        return None

    async def at_the_end(self, end: int, waited: float) -> bool:
        """Skip to the end of the log, if no record waits; return whether it did.

        Args:
            end: the end of the log.
            waited: the seconds for which nothing arrived.
        """
        first = self._intake.position
        if len(self._intake) or first >= end:
            return False
        missing = await self._proof(first, end)
        if len(self._intake):
            return False
        if missing is Missing.RECORDS and waited >= OVERDUE_AFTER:
            self._end(
                f"partition {self._suspensions.partition}: Kafka does not deliver the record at "
                f"offset {first}"
            )
        if missing is not Missing.NOTHING_TO_APPLY:
            return False
        self._pass_to(end)
        return True

    def _pass_to(self, offset: int) -> None:
        logger.info(
            "partition %d: skipping offsets %d to %d, which hold nothing to apply, such as control "
            "records of transactions",
            self._suspensions.partition,
            self._intake.position,
            offset - 1,
        )
        self._intake.pass_to(offset)
