"""Checks that the log is still the one that was applied.

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
"""

from __future__ import annotations

import logging

from streams.records.digests import HashChain
from streams.store.layout import Meta
from streams.store.misfit import PartitionSuspended, Suspension, Suspensions
from streams.worker.ports import Log

logger = logging.getLogger("turnstile.worker")


async def check_continues(meta: Meta | None, log: Log, suspensions: Suspensions) -> None:
    """Raise ``PartitionSuspended`` unless the log continues this state; None: nothing applied."""
    misfit = suspensions.out_of_log(meta.next if meta else 0)
    if meta and not misfit:
        misfit = await rewritten(meta.chain, meta.leader_epoch, log, suspensions)
    if misfit:
        raise PartitionSuspended(misfit)


async def rewritten(
    chain: HashChain, leader_epoch: int, log: Log, suspensions: Suspensions
) -> Suspension | None:
    """Return why the log is not the one that was applied up to the end of a chain, if it is not.

    ``leader_epoch`` is that of the last applied record.
    """
    if chain.last < 0:
        return None
    found = await log.record(suspensions.partition, chain.last)
    if found is None and await _is_before(log, suspensions.partition, chain.last):
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
    found = await log.record(partition, offset)
    if found is None:
        return await _is_before(log, partition, offset)
    return found.leader_epoch == leader_epoch


async def _is_before(log: Log, partition: int, offset: int) -> bool:
    """Return whether the log begins after an offset; retention may just have moved its start."""
    return offset < (await log.extent(partition)).start
