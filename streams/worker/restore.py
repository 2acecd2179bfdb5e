"""Restores the state of a partition from its last snapshot, where Redis does not have it.

Operators know the snapshots of a partition as its snapshots, from the name of the topic.

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

The worker stages the snapshot beside the state in Redis, piece by piece, under the guard of its
ownership, and installs it in one atomic write. Until then nothing has changed, and an interrupted
restore begins again. The restored state is then loaded and verified like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace

from streams.store.misfit import Suspension, Suspensions
from streams.store.snapshot import Manifest, Snapshot, UnusableSnapshot, pieces
from streams.store.store_port import Guard, Installation, Stage, Verdict
from streams.worker.continuity import rewritten
from streams.worker.ports import Log, World, ending_of

logger = logging.getLogger("turnstile.worker")

STAGE_BYTES = 4 * 1024 * 1024
"""A write of at least this size takes no further entry of the snapshot."""
TELL_EVERY = 2.0
"""Seconds from one progress report of a restore to the next."""


async def find_snapshot(
    world: World,
    next_offset: int,
    log: Log,
    suspensions: Suspensions,
) -> Snapshot | Suspension | None:
    """Return the snapshot that has to replace the state in Redis, if one has to.

    Args:
        world: the ports of the worker.
        next_offset: where Redis continues; 0 if it has nothing that can be used.
        log: to read in.
        suspensions: of the partition.

    Returns:
        The snapshot to restore; why the partition has to be suspended; None to continue from
        ``next_offset``.
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
            return suspensions.other_layout(str(unusable))
        found = unusable.manifest
        if found and (suspension := await _misfit(found, log, suspensions)):
            return suspension
        if suspensions.log_start == 0:
            logger.warning(
                "partition %d: its snapshot is incomplete; applying the log from offset 0: %s",
                suspensions.partition,
                unusable,
            )
            return None
        return suspensions.snapshot_damaged(str(unusable))
    if snapshot is None or snapshot.manifest.next <= next_offset:
        return None
    return await _misfit(snapshot.manifest, log, suspensions) or snapshot


async def _misfit(manifest: Manifest, log: Log, suspensions: Suspensions) -> Suspension | None:
    """Return why the log does not continue from a snapshot, if it does not."""
    return suspensions.misfit(manifest.identity, manifest.next) or await rewritten(
        manifest.chain, manifest.leader_epoch, log, suspensions
    )


async def restore(world: World, guard: Guard, snapshot: Snapshot, suspensions: Suspensions) -> None:
    """Replace the state in Redis by a snapshot; end the worker if it lost the partition."""
    manifest, partition = snapshot.manifest, guard.partition
    time = asyncio.get_running_loop().time
    total = max(1, sum(map(len, snapshot.contents.values())))
    logger.info(
        "partition %d: restoring its state from the snapshot at offset %d, %.1f MB",
        partition,
        manifest.next,
        total / 1e6,
    )
    done, tell_at = 0, time()
    for stage in _stages(snapshot):
        if time() >= tell_at:
            note = suspensions.restoring(manifest.next, done / total)
            await world.store.keep_suspension(partition, note.reason, note.problem, note.remedy)
            tell_at = time() + TELL_EVERY
        _expect_ok(world, guard, await world.store.stage(guard, stage))
        done += stage.size
    counts = manifest.pages, manifest.changes, manifest.outbox
    installed = await world.store.install(guard, Installation(manifest.fields, *counts))
    _expect_ok(world, guard, installed)
    logger.info("partition %d: restored its state as of offset %d", partition, manifest.next)


def _expect_ok(world: World, guard: Guard, verdict: Verdict) -> None:
    if verdict is not Verdict.OK:
        world.end(
            ending_of(verdict),
            f"partition {guard.partition}: restoring the state was rejected: {verdict}",
        )


def _stages(snapshot: Snapshot) -> Iterator[Stage]:
    """Split a snapshot into pieces, each for one write."""
    yield Stage({}, [], {}, is_first=True)
    for pages in pieces(snapshot.pages.items(), STAGE_BYTES):
        yield Stage(dict(pages), [], {}, is_first=False)
    for changes in pieces((("", change) for change in snapshot.changes), STAGE_BYTES):
        yield Stage({}, [change for _, change in changes], {}, is_first=False)
    for outbox_entries in pieces(snapshot.outbox.items(), STAGE_BYTES):
        yield Stage({}, [], dict(outbox_entries), is_first=False)
