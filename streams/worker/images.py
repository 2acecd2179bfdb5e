"""Writes images of one partition, so that Redis may be lost and the log be trimmed.

What an image is, and why there is always a whole one, is said in ``streams.store.image``. The steps
of the owner, which the code repeats:

1. Begin: start an epoch, which shuts out every older writer, ask whether the partition is still
   owned, and read the list of the last image. The order is that of ``checkpoints``, and so is the
   reason: who wakes up too late has shut out its successor, and must not write anything.
2. Compact: pages are new then, and changes few.
3. While memory and Redis agree, take what Redis keeps besides pages, and the hashes of the pages.
4. Send the pages that the last image does not have. They are read from Redis, each must have its
   hash, and no compaction takes place meanwhile.
5. Send the rest of the parts and, when the broker has all of them, the manifest.
6. Empty the places that are no longer needed.

What always holds: an image is what Redis kept at one moment, so it is as good as a copy of Redis
that was made then; and of one log the offsets of images rise, since a state that has not come
further than the last one is not written. Nobody waits for an image: what cannot be written is
tried again later, and holds up no decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from streams.store.holding import Holding
from streams.store.image import Draft, Image, Moment, Record, UnusableImage, changed_since
from streams.store.port import Verdict
from streams.worker.checkpoints import STOP_WITHIN
from streams.worker.compaction import Expect, Quiet
from streams.worker.ports import ImageTopic, LogUnavailable, NotSent

logger = logging.getLogger("turnstile.worker")

FIRST_AFTER = 60.0
"""Seconds after a claim an image may be written, however seldom they are."""
TIME_SHARE = 0.05
"""Of the time at most, images are written, however often they are wanted."""
READ_PAGES = 16
"""So many pages are read from Redis at once."""
SEND_BYTES = 2 * 1024 * 1024
"""A transaction takes no further part from this size on."""


class NotWritten(Exception):
    """The image was given up: the partition is not decided here any more."""


class Imaging:
    """The images of one partition, for as long as one claim lasts.

    Attributes:
        reached: the offset at which the last image continues; None: not known, or none.
    """

    def __init__(
        self,
        topic: ImageTopic,
        every: float,
        log: tuple[bytes, int],
        holding: Holding,
        quiet: Quiet,
        expect_ok: Expect,
    ) -> None:
        """Nothing is written yet.

        Args:
            topic: to write to.
            every: seconds from one image to the next; 0: none is written.
            log: the id of its topic, and P.
            holding: of the partition.
            quiet: see ``compaction``.
            expect_ok: ends the worker if Redis is not where it was left.
        """
        self.reached: int | None = None
        self._topic = topic
        self._every = every
        self._log = log
        self._holding = holding
        self._quiet = quiet
        self._expect_ok = expect_ok
        self._time = asyncio.get_running_loop().time
        self._due_at = self._time() + min(every, FIRST_AFTER)
        self._begun = False
        self._last: Image | None = None

    def is_due(self, position: int) -> bool:
        """Whether an image is worth it by now.

        Args:
            position: the offset up to which Redis has everything.
        """
        is_behind = not self._begun or changed_since(self._last, position, *self._log)
        return bool(self._every) and self._time() >= self._due_at and is_behind

    async def run(self, compact: Callable[[], Awaitable[None]]) -> None:
        """Write an image, if there is anything new."""
        began = self._time()
        try:
            await self._write(compact)
        except NotWritten:
            self._begun = False
        except (NotSent, LogUnavailable) as error:
            self._begun = False
            logger.warning(
                "partition %d: no checkpoint could be written, which is tried again: %s",
                self._holding.partition,
                error,
            )
        now = self._time()
        self._due_at = now + max(self._every, (now - began) / TIME_SHARE)

    async def mark(self) -> None:
        """Append to the topic what no reader sees (``Partitions.keep_cleanable``)."""
        if not self._every:
            return
        try:
            if not self._begun:
                await self._begin()
            await self._topic.send([])
        except NotWritten:
            self._begun = False
        except (NotSent, LogUnavailable) as error:
            self._begun = False
            logger.warning(
                "partition %d: the topic of checkpoints could not be appended to, so that Kafka "
                "keeps superseded records for longer: %s",
                self._holding.partition,
                error,
            )

    async def stop(self) -> None:
        """Disconnect; the last image stays what it is."""
        self._begun = False
        with suppress(TimeoutError):
            await asyncio.wait_for(self._topic.stop(), STOP_WITHIN)

    async def _write(self, compact: Callable[[], Awaitable[None]]) -> None:
        if not self._begun:
            await self._begin()
        # Step 2.
        await compact()
        # Step 3.
        async with self._may_write():
            moment, hashes = await self._holding.moment(), self._holding.hashes
            if isinstance(moment, Verdict):
                self._expect_ok(moment, "a checkpoint")
                return
        if not changed_since(self._last, moment.meta.next, *self._log):
            return
        # Step 4.
        began = self._time()
        draft = Draft(self._last)
        names = draft.keep(hashes)
        sending: list[Record] = []
        for first in range(0, len(names), READ_PAGES):
            wanted = {name: hashes[name] for name in names[first : first + READ_PAGES]}
            for name, page in (await self._pages(wanted)).items():
                sending += draft.add(name, page)
            sending = await self._send(sending, SEND_BYTES)
        await self._finish(draft, moment, sending)
        logger.info(
            "partition %d: checkpoint at offset %d is written: %d of %d pages are new, in %.1f s",
            self._holding.partition,
            moment.meta.next,
            len(names),
            len(hashes),
            self._time() - began,
        )

    async def _begin(self) -> None:
        # Step 1.
        await self._topic.start()
        if not await self._holding.is_held():
            raise NotWritten
        try:
            self._last = await self._topic.read(with_contents=False)
        except UnusableImage as unusable:
            logger.warning(
                "partition %d: the last checkpoint is not whole, and another is written: %s",
                self._holding.partition,
                unusable,
            )
            self._last = None
        self.reached = self._last.manifest.next if self._last else None
        self._begun = True

    async def _pages(self, hashes: dict[str, int]) -> dict[str, bytes]:
        """Pages of these hashes."""
        pages = await self._holding.pages(hashes)
        if pages is not None:
            return pages
        async with self._may_write():
            found = await self._holding.moment()
            verdict = found if isinstance(found, Verdict) else Verdict.DAMAGED
            self._expect_ok(verdict, "reading pages for a checkpoint")
        raise NotWritten

    async def _finish(self, draft: Draft, moment: Moment, sending: list[Record]) -> None:
        # Step 5.
        records, manifest = draft.finish(moment, self._holding.partition)
        await self._send(sending + records, 0)
        async with self._may_write():
            pass  # whoever owns the partition by now has its own
        await self._topic.send([manifest])
        self.reached = moment.meta.next
        # Step 6.
        await self._send(draft.emptied(), 0)
        self._last = draft.image

    async def _send(self, records: list[Record], least: int) -> list[Record]:
        """Send records in transactions; what is back are those that are less than so many bytes."""
        sending: list[Record] = []
        size = 0
        for record in records:
            sending.append(record)
            size += len(record[0]) + len(record[1] or b"")
            if size >= SEND_BYTES:
                await self._topic.send(sending)
                sending, size = [], 0
        if sending and size >= least:
            await self._topic.send(sending)
            return []
        return sending

    @asynccontextmanager
    async def _may_write(self) -> AsyncIterator[None]:
        """Enter while memory and Redis agree.

        Raises:
            NotWritten: the partition is not decided here any more.
        """
        async with self._quiet() as may_write:
            if not may_write:
                raise NotWritten
            yield
