"""An event loop with virtual time, and synchronous code that runs in it.

The loop uses no clock and no I/O: when no callback is ready, time advances to the next timer.
Callbacks run in the order in which they became ready, as asyncio promises. Delays vary because
waiting code draws them from the seed.
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
    """Raised if all tasks wait and no timer is set, or if time does not advance."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without I/O, whose clock is virtual."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._rounds = 0

    def time(self) -> float:
        return self._now

    def go_on(self) -> None:
        """Reset the count of rounds, so that tasks of an endless run can be cancelled."""
        self._rounds = 0

    def _run_once(self) -> None:
        """Run the ready callbacks; if there are none, advance to the next timer."""
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
        """Do nothing: ``_run_once`` skips the handle."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread waits."""


class Fibre:
    """Synchronous code that can await coroutines of the loop, while other tasks run."""

    def __init__(self, work: Callable[[Fibre], None]) -> None:
        self._code = greenlet(lambda: work(self))
        self._loop: greenlet | None = None

    async def run(self) -> None:
        """Run the code to its end; raise its error."""
        # Code that other code has created returns here as well when it ends.
        self._loop = self._code.parent = getcurrent()
        wanted = self._code.switch()
        while not self._code.dead:
            try:
                answer = await wanted
            except BaseException as error:  # the code receives the error, and may handle it
                wanted = self._code.throw(error)
            else:
                wanted = self._code.switch(answer)

    def wait(self, wanted: Coroutine[Any, Any, Any]) -> Any:
        """Await a coroutine from the synchronous code; return its result or raise its error."""
        return self._loop.switch(wanted)


def tracked_tasks(owner: Callable[[], dict[asyncio.Task[Any], None] | None]) -> Any:
    """Return a task factory that registers each running task with its owner."""

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
