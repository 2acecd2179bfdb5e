"""Whether the log is still the one that was applied.

Kafka loses records from the end of a log only, and whenever it can have lost some, after an
election, it counts up the leader epoch, which every record carries that is written from then on.
So the last record that was applied stands for all of them: if it is where it was, with the same
content and the same leader epoch, then nothing before it was lost or replaced. The content alone
would not do. Who asks again sends the same bytes, and these may come to be at the same offset
behind other records.

It is looked at when a partition is claimed, and whenever a record comes that has another leader
epoch than the last one that was applied: records that took the place of others cannot be behind
what is applied without one of them being the first that comes.

What cannot be seen: that records were lost and replaced which have been deleted since, as the
retention of the log says. What was decided stays decided, by the state; and a log that does not
begin at its beginning is never applied again in place of the state. Nor that all directories of
Kafka went back to a copy and were then written on, up to the same last record: elections are
counted from the copy on, so that the same leader epochs come again. Therefore nobody writes before
workers have looked, who see that the log is too short (docs/operations.md). A broker that knows no
leader epochs says -1 of every record, and so does a state from before they were kept: there the
content has to do.
"""

from __future__ import annotations

import logging

from streams.wire.chain import Chain
from streams.worker.ports import Log, NoRecord, Stored
from streams.worker.stops import Stop, Stops

logger = logging.getLogger("turnstile.worker")


async def rewritten(chain: Chain, leader_epoch: int, log: Log, stops: Stops) -> Stop | None:
    """Why the log is not the one that was applied, if it is not.

    Args:
        chain: of what was applied.
        leader_epoch: of the last record of it.
        log: to read in.
        stops: of the partition.
    """
    if chain.last < 0:
        return None
    try:
        found = await _record(log, stops.partition, chain.last)
    except _Deleted:
        logger.warning(
            "partition %d: the last record that was applied, %d, has been deleted from the log and "
            "cannot be compared",
            stops.partition,
            chain.last,
        )
        return None
    if found is None:
        return stops.log_rewritten(chain.last, "there is no record")
    if not chain.ends_with(found.value):
        return stops.log_rewritten(chain.last, "there is another record")
    if -1 != leader_epoch != found.leader_epoch:
        what = f"the record of leader epoch {leader_epoch} is one of {found.leader_epoch} now"
        return stops.log_rewritten(chain.last, what)
    return None


async def is_in(log: Log, partition: int, offset: int, leader_epoch: int) -> bool:
    """Whether a record that was once in the log is there still, or was deleted as time went by."""
    try:
        found = await _record(log, partition, offset)
    except _Deleted:
        return True
    return found is not None and found.leader_epoch == leader_epoch


class _Deleted(Exception):
    """The log begins behind the record."""


async def _record(log: Log, partition: int, offset: int) -> Stored | None:
    try:
        return await log.record(partition, offset)
    except NoRecord:
        if offset < (await log.extent(partition)).start:  # as it may have become by now
            raise _Deleted from None
        return None
