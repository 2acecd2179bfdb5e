"""Checks that the log is still the one that was applied, and that no record of it is missing.

Kafka loses records only from the end of a log. Whenever it may have lost some, after an election,
it increments the leader epoch, which every later record carries. So the last applied record stands
for all applied records: if it is at the same offset, with the same content and the same leader
epoch, then nothing before it was lost or replaced. The content alone is not enough: a client that
repeats a request sends the same bytes, and these may get the same offset after other records.

The worker checks this when it acquires a partition, and whenever a record arrives whose leader
epoch differs from that of the last applied record. Records that replaced others cannot follow the
applied ones without one of them being the first to arrive.

Limitations:

- Records that were lost and replaced, and then deleted by the retention of the log, are not
  detected. Their decisions stay in the state, and a log that does not begin at offset 0 is never
  applied again instead of the state.
- A rollback of all Kafka directories to a copy is not detected if the log was written on, up to the
  same last record: elections are counted from the copy on, so the same leader epochs return.
  Therefore no client may write before the workers have checked the log (docs/operate/backup.md).
- A meta with a flipped bit proves only how far records were applied. If Kafka also loses decided
  records, and the log is written on beyond that offset, their replacement is not detected.
- A broker without leader epochs reports -1 for every record, and so does a state from before they
  were stored. Then only the content is compared.

Offsets at which no record arrived are skipped if the log proves that they hold nothing to apply,
such as control records of transactions (``Gaps``). Records that the log has and that did not arrive
end the worker, so that fetching restarts (at the end of the log as ``Ending.STUCK``). Offsets that
the log does not have are a hole, which suspends the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from streams.kafka.results import Missing, NoRecord, StoredRecord
from streams.records.digests import HashChain
from streams.store.layout import Meta
from streams.store.misfit import Suspension, Suspensions
from streams.worker.inbox import Inbox
from streams.worker.ports import End, Ending, Log

logger = logging.getLogger("turnstile.worker")


async def unfit(meta: Meta, log: Log, suspensions: Suspensions) -> Suspension | None:
    """Return why the log does not continue a state of this topic, if it does not."""
    return suspensions.out_of_log(meta.next) or await rewritten(
        meta.chain, meta.leader_epoch, log, suspensions
    )


async def rewritten(
    chain: HashChain, leader_epoch: int, log: Log, suspensions: Suspensions
) -> Suspension | None:
    """Return why the log is not the one that was applied, if it is not.

    Args:
        chain: the hash chain of the applied records.
        leader_epoch: the leader epoch of the last applied record.
        log: to read in.
        suspensions: of the partition.
    """
    if chain.last < 0:
        return None
    try:
        found = await _record(log, suspensions.partition, chain.last)
    except _Deleted:
        logger.warning(
            "partition %d: the last applied record, at offset %d, was deleted from the log and "
            "cannot be compared",
            suspensions.partition,
            chain.last,
        )
        return None
    if found is None:
        return suspensions.log_rewritten(chain.last, "there is no record")
    if not chain.ends_with(found.value):
        return suspensions.log_rewritten(chain.last, "there is another record")
    if -1 != leader_epoch != found.leader_epoch:
        what = f"the record of leader epoch {leader_epoch} is one of {found.leader_epoch} now"
        return suspensions.log_rewritten(chain.last, what)
    return None


async def is_in(log: Log, partition: int, offset: int, leader_epoch: int) -> bool:
    """Return whether the log still has a record, or deleted it from its start."""
    try:
        found = await _record(log, partition, offset)
    except _Deleted:
        return True
    return found is not None and found.leader_epoch == leader_epoch


class _Deleted(Exception):
    """The log begins after the record."""


async def _record(log: Log, partition: int, offset: int) -> StoredRecord | None:
    try:
        return await log.record(partition, offset)
    except NoRecord:
        if offset < (await log.extent(partition)).start:  # retention may just have moved the start
            raise _Deleted from None
        return None


Proof = Callable[[int, int], Awaitable[Missing]]
"""Returns what the log holds at the offsets first to end - 1, at which no record arrived."""


class Gaps:
    """Checks and skips the gaps of one partition."""

    def __init__(self, inbox: Inbox, proof: Proof, suspensions: Suspensions, end: End) -> None:
        self._inbox = inbox
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
        expected, partition = self._inbox.position, self._suspensions.partition
        missing = await self._proof(expected, found)
        if missing is Missing.RECORDS:
            self._end(
                Ending.NOT_DELIVERED,
                f"partition {partition}: the record at offset {found} arrived where offset "
                f"{expected} was expected",
            )
        if missing is Missing.HOLE:
            return self._suspensions.hole(expected, found)
        self._pass_to(found)
        return None

    async def at_the_end(self, end: int) -> bool:
        """Skip to the end of the log, if no record waits; return whether it did."""
        first = self._inbox.position
        if len(self._inbox) or first >= end:
            return False
        missing = await self._proof(first, end)
        if len(self._inbox) or missing is not Missing.NOTHING_TO_APPLY:
            return False
        self._pass_to(end)
        return True

    def _pass_to(self, offset: int) -> None:
        logger.info(
            "partition %d: skipping offsets %d to %d, which hold nothing to apply, such as control "
            "records of transactions",
            self._suspensions.partition,
            self._inbox.position,
            offset - 1,
        )
        self._inbox.pass_to(offset)
