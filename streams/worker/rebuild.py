"""Builds the state of a partition again from its last image, where Redis does not have it.

    what Redis has          the last image           the log        what is done
    nothing                 none, or not whole       from 0         it is applied from 0
    nothing                 none, or not whole       begins later   stop
    nothing                 whole                    goes on        the image is put back
    ends before the log     whole                    goes on        the image is put back
    ends before the log     none, or not whole                      stop
    all, and the log goes on from there                             the image is not looked at

"Goes on": the image is of this topic and this P, the log has the offset at which it continues, and
the last record that it has applied is the one in the log (``continuity``). An image of which that
does not hold, whole or not, stops the partition: it knows of charges that this log does not.

The image is put beside what Redis has, piece by piece, under the guard of the claim, and takes its
place at one moment. Until then nothing has changed, and who is interrupted begins again. After it
the state is loaded as any other, and has to prove itself as any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

from streams.store.image import Image, Manifest, UnusableImage
from streams.store.layout import LAYOUT, Meta
from streams.store.port import Guard, Installation, Stage, Verdict
from streams.topics.seen import TopicsSeen
from streams.worker.continuity import rewritten
from streams.worker.ports import Extent, Log, World
from streams.worker.stops import Stop, Stops

logger = logging.getLogger("turnstile.worker")

STAGE_BYTES = 4 * 1024 * 1024
"""A write of a part of an image takes no further piece from this size on."""
TELL_EVERY = 2.0
"""Seconds after which it is shown how far it is."""


async def rebuilt(
    world: World,
    guard: Guard,
    kept: Meta | None,
    seen: TopicsSeen,
    extent: Extent,
    log: Log,
    stops: Stops,
) -> Manifest | Stop | None:
    """Put the last image back, if Redis needs it.

    Args:
        world: to read and write in.
        guard: of the claim.
        kept: what Redis has; None for nothing.
        seen: the topics.
        extent: where the log begins and ends.
        log: to read in.
        stops: of the partition.

    Returns:
        What was put back; why the partition has to stop; None if there is nothing to put back.
    """
    next_offset = kept.next if kept else 0  # of nothing is left what a claim has written
    if 0 < next_offset >= extent.start:
        return None
    stops = replace(stops, holder="the checkpoint")
    if extent.end:
        logger.info(
            "partition %d: Redis does not have what was decided, the last checkpoint is read",
            guard.partition,
        )
    try:
        image = await world.images_of(guard.partition).read(with_contents=True)
    except UnusableImage as unusable:
        found = unusable.manifest
        if found and (stop := await _misfit(found, seen, extent, log, stops)):
            return stop
        if extent.start == 0:
            logger.warning(
                "partition %d: its checkpoint is not whole, and the log is applied from its "
                "beginning: %s",
                guard.partition,
                unusable,
            )
            return None
        return stops.checkpoint_damaged(str(unusable))
    if image is None or image.manifest.next <= next_offset:
        return None
    if stop := await _misfit(image.manifest, seen, extent, log, stops):
        return stop
    await _put_back(world, guard, image, stops)
    return image.manifest


async def _misfit(
    manifest: Manifest, seen: TopicsSeen, extent: Extent, log: Log, stops: Stops
) -> Stop | None:
    """Why the log does not go on from an image, if it does not."""
    if manifest.layout != LAYOUT:
        return stops.other_layout(str(manifest.layout))
    if manifest.topic != seen.topic.hex():
        return stops.other_log(manifest.topic, seen.topic.hex())
    if manifest.partitions != seen.partitions:
        return stops.other_partitions(manifest.partitions, seen.partitions)
    if manifest.next > extent.end:
        return stops.log_ends_early(manifest.next, extent.end)
    if manifest.next < extent.start:
        return stops.log_begins_late(manifest.next)
    return await rewritten(manifest.chain, manifest.leader_epoch, log, stops)


async def _put_back(world: World, guard: Guard, image: Image, stops: Stops) -> None:
    manifest, partition = image.manifest, guard.partition
    time = asyncio.get_running_loop().time
    total = max(1, sum(map(len, image.contents.values())))
    logger.info(
        "partition %d: its state is built again from the checkpoint at offset %d, %.1f MB",
        partition,
        manifest.next,
        total / 1e6,
    )
    done, tell_at = 0, time()
    for stage in _stages(image):
        if time() >= tell_at:
            note = stops.rebuilding(manifest.next, done / total)
            await world.store.keep_stop(partition, note.reason, note.problem, note.remedy)
            tell_at = time() + TELL_EVERY
        _expect_ok(world, guard, await world.store.stage(guard, stage))
        done += stage.size
    counts = manifest.pages, manifest.changes, manifest.outbox
    installed = await world.store.install(guard, Installation(manifest.fields, *counts))
    _expect_ok(world, guard, installed)
    logger.info("partition %d: its state as of offset %d is there", partition, manifest.next)


def _expect_ok(world: World, guard: Guard, verdict: Verdict) -> None:
    if verdict is not Verdict.OK:
        world.end(f"partition {guard.partition}: building its state again is {verdict}")


def _stages(image: Image) -> Iterator[Stage]:
    """An image in pieces that can be written at once."""
    yield Stage({}, [], {}, is_first=True)
    for pages in _pieces(image.pages.items()):
        yield Stage(dict(pages), [], {}, is_first=False)
    for changes in _pieces(("", change) for change in image.changes):
        yield Stage({}, [change for _, change in changes], {}, is_first=False)
    for parcels in _pieces(image.outbox.items()):
        yield Stage({}, [], dict(parcels), is_first=False)


def _pieces(entries: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    piece: list[tuple[str, bytes]] = []
    size = 0
    for entry in entries:
        piece.append(entry)
        size += len(entry[1])
        if size >= STAGE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
