"""Restores the state of a partition from its last snapshot, where Redis does not have it.

    Redis has                  last snapshot        log             the worker
    nothing                    none or incomplete   begins at 0     applies the log from offset 0
    nothing                    none or incomplete   begins later    suspends the partition
    nothing                    fits                                 restores the snapshot
    a part of the state                                             the same as for nothing
    less than the log          none or incomplete                   suspends the partition
    less than the log          fits                                 restores the snapshot
    all, and it fits the log   is not read                          continues from Redis

"Less than the log": the log begins after the offset at which Redis continues. A snapshot fits if
it belongs to this topic and this P, the log contains the offset at which it continues, and the
last record that it covers is the one in the log (``continuity``). A snapshot that does not fit
suspends the partition, even an incomplete one: it proves charges that this log does not contain.

The worker replaces the state by the snapshot in one atomic write, under the guard of its ownership.
Until then nothing has changed, and an interrupted restore begins again. The restored state is then
loaded and verified like any other.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from streams.store.misfit import PartitionSuspended, Suspensions
from streams.store.snapshot import Manifest, Snapshot, UnusableSnapshot
from streams.store.store_port import Guard, Verdict
from streams.worker.continuity import check_continues
from streams.worker.ports import Log, World, ending_of

logger = logging.getLogger("turnstile.worker")


async def find_snapshot(
    world: World,
    next_offset: int,
    log: Log,
    suspensions: Suspensions,
) -> Snapshot | None:
    """Return the snapshot that has to replace the state in Redis; None to continue from there.

    ``next_offset`` is where Redis continues, 0 if it has nothing that can be used. The partition is
    suspended if the log does not continue the last snapshot, or that one is needed and unusable.
    """
    if 0 < next_offset >= suspensions.log_start:
        return None
    suspensions = replace(suspensions, holder="the snapshot")
    if suspensions.log_end:
        logger.info(
            "partition %d: Redis does not have the state; reading the last snapshot",
            suspensions.partition,
        )
    try:
        snapshot = await world.snapshots_of(suspensions.partition).read(with_contents=True)
    except UnusableSnapshot as unusable:
        if unusable.is_foreign:  # that release may have decided the same records differently
            raise PartitionSuspended(suspensions.other_layout(str(unusable))) from unusable
        if unusable.manifest:
            await _check_fits(unusable.manifest, log, suspensions)
        if suspensions.log_start == 0:
            logger.warning(
                "partition %d: its snapshot is incomplete; applying the log from offset 0: %s",
                suspensions.partition,
                unusable,
            )
            return None
        raise PartitionSuspended(suspensions.snapshot_damaged(str(unusable))) from unusable
    if snapshot is None or snapshot.manifest.meta.next <= next_offset:
        return None
    await _check_fits(snapshot.manifest, log, suspensions)
    return snapshot


async def _check_fits(manifest: Manifest, log: Log, suspensions: Suspensions) -> None:
    # The identity comes first: a meta of another layout cannot be read.
    if misfit := suspensions.misfit(manifest.identity):
        raise PartitionSuspended(misfit)
    await check_continues(manifest.meta, log, suspensions)


async def restore(world: World, guard: Guard, snapshot: Snapshot, suspensions: Suspensions) -> None:
    """Replace the state in Redis by a snapshot; end the worker if it lost the partition."""
    manifest, partition = snapshot.manifest, guard.partition
    logger.info(
        "partition %d: restoring its state from the snapshot at offset %d, %.1f MB",
        partition,
        manifest.meta.next,
        sum(map(len, snapshot.pages.values())) / 1e6,
    )
    note = suspensions.restoring(manifest.meta.next)
    await world.store.keep_suspension(partition, note.reason, note.problem, note.remedy)
    verdict = await world.store.write(
        guard,
        manifest.saved,
        replaces=True,
        changes=snapshot.changes,
        pages=snapshot.pages,
        outbox=snapshot.outbox,
    )
    if verdict is not Verdict.OK:
        world.end(
            ending_of(verdict),
            f"partition {partition}: restoring the state was rejected: {verdict}",
        )
    logger.info("partition %d: restored its state as of offset %d", partition, manifest.meta.next)
