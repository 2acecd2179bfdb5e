"""An event loop whose time is virtual, and synchronous code that runs in it.

Nothing here looks at a clock or waits for anything real: when no callback is ready, time jumps to
the next timer. Callbacks that are ready run in the order in which they became so, which asyncio
promises; what varies is drawn from the seed, by those who wait.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from greenlet import getcurrent, greenlet

_MOST_ROUNDS = 200_000  # some thousands are usual


class Standstill(Exception):
    """Everything waits and no timer is set, or time does not go on."""


class VirtualLoop(asyncio.BaseEventLoop):
    """One thread, no I/O, no clock."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._rounds = 0

    def time(self) -> float:
        return self._now

    def go_on(self) -> None:
        """Allow as many rounds again, so that what has found no end can be ended."""
        self._rounds = 0

    def _run_once(self) -> None:
        """Run what is ready; if nothing is, go on to the time of the next timer."""
        ready, timers = self._ready, self._scheduled
        self._rounds += 1
        if self._rounds > _MOST_ROUNDS:
            raise Standstill(f"no end after {_MOST_ROUNDS} rounds")
        while not ready:
            if not timers:
                raise Standstill
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if not timer._cancelled:
                self._now = max(self._now, timer._when)
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is left out when its time comes."""

    def _write_to_self(self) -> None:
        """Nobody has to be woken."""


class Fibre:
    """Synchronous code that can wait for coroutines of the loop, while everything else goes on."""

    def __init__(self, work: Callable[[Fibre], None]) -> None:
        self._code = greenlet(lambda: work(self))
        self._loop: greenlet | None = None

    async def run(self) -> None:
        """Run the code to its end; what it raises is raised here."""
        # Code that was made by other code returns here all the same when it ends.
        self._loop = self._code.parent = getcurrent()
        wanted = self._code.switch()
        while not self._code.dead:
            try:
                answer = await wanted
            except BaseException as error:  # the code is told, and ends or goes on
                wanted = self._code.throw(error)
            else:
                wanted = self._code.switch(answer)

    def wait(self, wanted: Coroutine[Any, Any, Any]) -> Any:
        """Called by the code: what a coroutine of the loop returns, or raises."""
        return self._loop.switch(wanted)


def tracked_tasks(owner: Callable[[], dict[asyncio.Task[Any], None] | None]) -> Any:
    """A task factory that notes each task with whoever makes it, as long as it runs."""

    def make(
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, context=context)
        tasks = context.run(owner) if context else owner()
        if tasks is not None:
            tasks[task] = None
            task.add_done_callback(tasks.pop)
        return task

    return make
